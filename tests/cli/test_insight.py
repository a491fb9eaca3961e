"""Output of `psched stats`, `psched queue stats`, `psched forecast`, `psched simulate`; and they write to no table."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from psched import open as open_collection
from psched.backends import open_stores
from psched.schedules.collection import ScheduleCollection
from psched.store import StoreSettings
from psched.store.run_stats import RunKind, RunSums
from tests.cli.commands import Commands


def opened(commands: Commands) -> ScheduleCollection:
    return open_collection(commands.folder / "etc" / "psched.yml", "development")


BOTH = "development: {type: %s, url: '%s', schedules: {}, queue: {}}"


def test_stats_and_forecast_on_each_database(fresh: Commands, database: str) -> None:
    fresh.configure(BOTH % ("rdb", database))
    fresh.ok("init")
    fresh.ok("queue", "submit", "one", "mail", "{}")
    fresh.ok("queue", "submit", "two", "report", "{}", "-t", "4000000000")
    fresh.ok("add", "key", "mail", "*/15 * * * *", "{}")
    found = fresh.ok("queue", "stats", "--json").json
    assert found["statuses"]["waiting"] == {"count": 2, "more": False}
    assert found["statuses"]["due"] == {"count": 1, "more": False}
    mail, report = found["types"]
    assert mail.pop("oldest") >= 0
    numbers = {name: {"count": count, "more": False} for name, count in (("waiting", 1), ("due", 1), ("running", 0))}
    assert mail == {"type": "mail", **numbers, "nodes": 0}
    assert (report["type"], report["oldest"]) == ("report", None)
    hours = fresh.ok("forecast", "--days", "1", "--json").json
    assert [hour["starts"] for hour in hours["hours"]] == [4] * 24
    assert (hours["schedules"], hours["unmeasured"], hours["unusable"]) == (1, ["mail"], 0)
    assert hours["hours"][0]["time_local"].endswith("+09:00")
    assert hours["hours"][0]["busy"] is None


def test_an_outage_is_simulated_on_each_database(fresh: Commands, database: str) -> None:
    fresh.configure(f"development: {{type: rdb, url: '{database}'}}")
    fresh.ok("init")
    fresh.ok("add", "every", "mail", "*/10 * * * *", "{}")
    fresh.ok("add", "latest", "mail", "*/10 * * * *", "{}", "--catch-up", "latest")
    outage = "2036-12-01T02:01..+2h"
    given = ("simulate", "--outage", outage, "--workers", "1", "--handler-time", "30")
    found = fresh.ok(*given, "--json").json
    assert (found["schedules"], found["missed"], found["skipped"]) == (2, 24, {"superseded": 11})
    assert (found["runs"], found["interrupted"]) == (2 * 27 * 6 - 11, 0)
    assert found["outage"]["end"] - found["outage"]["begin"] == 7200
    assert (found["begin_local"], found["end_local"]) == ("2036-12-01T01:01:00+09:00", "2036-12-02T04:01:00+09:00")
    assert found["caught_up"] == found["outage"]["end"] + 12 * 30
    assert [each["key"] for each in found["affected"]] == ["every", "latest"]
    assert found["affected"][0]["worst_time_local"] == "2036-12-01T02:10:00+09:00"
    lines = fresh.ok(*given).out.splitlines()
    assert "backlog        gone 2036-12-01 04:07 +0900, 6 min after the outage" in lines
    assert lines[-1].split("\t")[:2] == ["latest", "mail"]
    assert fresh.ok("history").out.splitlines()[1:] == []


def test_a_simulation_takes_handler_times_from_the_ledger(psched: Commands) -> None:
    psched.ok("add", "key", "mail", "* * * * *", "{}")
    given = ("simulate", "--workers", "2", "--to", "+1h")
    assert "--handler-time" in psched.fault(*given)
    with opened(psched) as schedules:
        while (task := schedules.poll()) is None:
            schedules["key"].run_now()
        task.finish()
    psched.ok("add", "other", "report", "* * * * *", "{}")
    shown = psched(*given)
    assert (shown.code, shown.out.splitlines()[0].split()) == (0, ["schedules", "2"])
    assert "report" in shown.err


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (("--outage", "now", "--workers", "1"), "FROM..TO"),
        (("--outage", "tomorrow..+2h", "--workers", "1"), "a span ahead like +2h"),
        (("--outage", "+2h..now", "--workers", "1"), "the outage must end after"),
        (("--workers", "0"), "from 1 to"),
        (("--workers", "1", "--handler-time", "x"), "seconds or a duration"),
        ((), "--workers"),
        (("--workers", "1", "--from", "now", "--to", "now"), "must end after"),
        (("--workers", "1", "--to", "9999-12-31"), "expected at most 10 years; shorten the range"),
    ],
    ids=str,
)
def test_what_cannot_be_simulated_is_refused(psched: Commands, given: tuple[str, ...], named: str) -> None:
    outcome = psched("simulate", "--handler-time", "1", *given)
    assert (outcome.code, outcome.out) in ((1, ""), (2, ""))
    assert named in outcome.err and outcome.err.count("\n") == 1


@pytest.fixture
def both(fresh: Commands) -> Commands:
    """A command line with a SQLite database for schedules and a queue."""
    fresh.configure(BOTH % ("rdb", "sqlite:///../psched.db"))
    fresh.ok("init")
    return fresh


def test_stats_into_a_pipe_are_lines_of_cells(both: Commands) -> None:
    both.ok("queue", "submit", "one", "mail", "{}")
    lines = both.ok("queue", "stats").out.splitlines()
    assert lines[0].split() == ["waiting", "1"]
    assert lines[-2].split("\t") == ["type", "waiting", "due", "running", "oldest", "nodes"]
    assert lines[-1].split("\t")[:4] == ["mail", "1", "1", "0"]


def test_stats_of_the_originals_table_have_no_types(fresh: Commands) -> None:
    fresh.configure(BOTH % ("rdb_compat", "sqlite:///../psched.db"))
    fresh.ok("init")
    fresh.ok("queue", "submit", "one", "mail", "{}")
    found = fresh.ok("queue", "stats", "--json").json
    assert found["types"] == []
    assert found["statuses"]["waiting"] == {"count": 1, "more": False}


def test_stats_show_rates_and_percentiles_of_the_last_runs(both: Commands) -> None:
    kept = StoreSettings(f"sqlite:///{both.folder}/psched.db", "test", "psched_schedules", "psched_queue")
    sums = RunSums()
    for duration in (0.02, 0.02, 40.0):
        sums.add_run(duration, 3.0)
    for store in open_stores("rdb", kept):
        assert store is not None and store.stats is not None
        minute = int(store.now()) // 60 * 60
        runs = [(RunKind(minute, "mail", "finished"), sums), (RunKind(minute, "mail", "failed"), sums)]
        store.stats.add("one", runs, 1000)
        store.stats.add("two", [(RunKind(minute - 3600 * 24, "mail", "finished"), sums)], 86400 * 2)
        store.close()
    for command in (["stats"], ["queue", "stats"]):
        found = both.ok(*command, "--json").json["runs"]
        [mail] = found["types"]
        assert (mail["type"], mail["runs"], mail["outcomes"]) == ("mail", 6, {"failed": 3, "finished": 3})
        assert 6 / 61 <= mail["per_minute"] <= 6 / 60
        assert mail["duration"]["p50"] < 0.03
        assert 20 < mail["duration"]["p95"] <= 50
        assert mail["wait"]["mean"] == 3
        assert found["end_local"].endswith("+09:00")
        shown = both.ok(*command).out.splitlines()
        assert shown[-2].split("\t")[:3] == ["type", "runs", "per_min"]
        assert shown[-1].split("\t")[:2] == ["mail", "6"]
        assert both.ok(*command, "--last", "2d", "--json").json["runs"]["types"][0]["runs"] == 9
    assert "expected seconds or a duration" in both("stats", "--last", "5").err


def test_the_originals_table_has_no_statistics_and_says_so(fresh: Commands) -> None:
    fresh.configure(BOTH % ("rdb_compat", "sqlite:///../psched.db"))
    fresh.ok("init")
    for command in (["stats"], ["queue", "stats"]):
        assert fresh.ok(*command, "--json").json["runs"] is None
        assert "rdb_compat keeps no statistics" in fresh.ok(*command).out


def test_the_forecast_says_how_many_schedules_may_skip_runs(psched: Commands) -> None:
    for key, overlap in (("one", "skip"), ("two", "skip"), ("three", "wait")):
        psched.ok("add", key, "t", "@hourly", "{}", "--overlap", overlap)
    assert psched("forecast", "--json").json["may_skip"] == 2
    assert "2 schedules have overlap: skip; runs that become due during" in psched("forecast").err


def test_the_forecast_says_how_many_schedules_have_an_unusable_rule(psched: Commands) -> None:
    for key, expected in (("one", "1 schedule has a rule that cannot"), ("two", "2 schedules have a rule that cannot")):
        psched.ok("add", key, "t", "@hourly", "{}")
        with closing(sqlite3.connect(psched.folder / "psched.db")) as database, database:
            database.execute("UPDATE psched_schedules SET cron = '61 * * * *'")
        assert expected in psched("forecast").err


def test_the_forecast_into_a_pipe_has_a_line_for_each_hour(psched: Commands) -> None:
    psched.ok("add", "key", "mail", "0 * * * *", "{}")
    shown = psched("forecast", "--days", "2")
    assert shown.code == 0
    header, *lines = shown.out.splitlines()
    assert header.split("\t") == ["time", "starts", "busy"]
    assert [line.split("\t")[1] for line in lines] == ["1"] * 48
    assert "mail" in shown.err


def test_a_terminal_shows_a_heatmap(psched: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    psched.ok("add", "key", "mail", "0 3 * * *", "{}")
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "100")
    lines = psched("forecast", "--days", "3").out.splitlines()
    assert lines[0].startswith("starts of 1 schedule by hour; the most is 1 from ")
    assert lines[1].split() == [str(hour) for hour in range(24)]
    assert sum("1" in line[14:] for line in lines[2:]) == 3


@pytest.mark.parametrize("days", ["0", "32", "x"])
def test_days_are_checked(psched: Commands, days: str) -> None:
    outcome = psched("forecast", "--days", days)
    assert (outcome.code, outcome.out) == (2, "")
    assert "from 1 to 31" in outcome.err


def test_without_tables_the_remedy_is_named(fresh: Commands) -> None:
    fresh.configure(BOTH % ("rdb", "sqlite:///../psched.db"))
    assert "psched queue init" in fresh.fault("queue", "stats")
    assert "psched init" in fresh.fault("forecast")
