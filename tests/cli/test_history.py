"""psched history shows what is in the ledger, and only what was asked for."""

from __future__ import annotations

import time

import pytest

import psched
from tests.cli.commands import Commands

START = 1356966000
HOUR = 3600


@pytest.fixture
def ran(psched: Commands) -> Commands:
    """A command line with two schedules: `good` ran three times; `bad` ran once, at its second attempt."""
    psched.ok("add", "good", "t", "0 * * * *", "{}", "-s", str(START))
    with schedules_of(psched) as schedules:
        for _ in range(3):
            task = schedules.poll()
            assert task is not None
            task.finish()
    psched.ok("modify", "good", "-s", "4000000000")
    psched.ok("add", "bad", "t", "0 * * * *", "{}", "-s", str(START - HOUR))
    with schedules_of(psched) as schedules:
        for _ in range(2):
            task = schedules.poll()
            assert task is not None
            assert task.key == "bad"
            if task.attempts == 1:
                task.retry(0, error="Traceback\nValueError: it broke")
            else:
                task.finish()
    return psched


def schedules_of(commands: Commands) -> psched.ScheduleCollection:
    return psched.open(commands.folder / "etc" / "psched.yml", "development")


def test_the_history_of_a_schedule_is_in_the_order_of_its_occurrences(ran: Commands) -> None:
    found = ran.ok("history", "good", "--json").json
    assert [row["scheduled_time"] for row in found] == [START, START + HOUR, START + 2 * HOUR]
    assert [row["previous"] for row in found] == [None, START, START + HOUR]
    assert found[0]["scheduled_time_local"] == "2013-01-01T00:00:00+09:00"
    assert (found[0]["outcome"], found[0]["attempts"], found[0]["error"]) == ("finished", 1, None)
    assert found[0]["started"] <= found[0]["ended"] + 0.01
    assert found[0]["reckoning"].startswith("vixie 20")


def test_failures_are_found_by_when_they_were_settled(ran: Commands) -> None:
    [row] = ran.ok("history", "--failed", "--since", "2d", "--json").json
    assert (row["key"], row["attempts"], row["error"]) == ("bad", 2, "Traceback\nValueError: it broke")
    assert ran.ok("history", "--failed", "--since", "2d", "--until", "1h", "--json").json == []
    assert len(ran.ok("history", "--since", "2d", "--json").json) == 4


def test_what_was_late_or_missed_in_a_range_is_listed(ran: Commands) -> None:
    ran.ok("modify", "bad", "-s", "4000000000")
    ran.ok("add", "fine", "t", "* * * * * *", "{}", "-s", str(int(time.time())))
    with schedules_of(ran) as schedules:
        task = schedules.poll()
        assert task is not None
        task.finish()
    found = [row["key"] for row in ran.ok("history", "--late", "--since", "1d", "--json").json]
    assert (sorted(found), len(ran.ok("history", "--json").json)) == (["bad", "good", "good", "good"], 5)
    assert ran.ok("history", "--late", "10000d", "--since", "1d", "--json").json[0]["key"] == "bad"
    assert ran.ok("history", "fine", "--late", "--json").json == []
    assert "--output cannot be combined with --late" in ran("history", "--late", "--output").err


def test_the_occurrences_of_one_schedule_can_be_limited(ran: Commands) -> None:
    found = ran.ok("history", "good", "--since", "2013-01-01T01:00", "--until", f"{START + HOUR}", "--json").json
    assert [row["scheduled_time"] for row in found] == [START + HOUR]


def test_the_table_shows_local_times_and_the_last_words_of_an_error(ran: Commands) -> None:
    header, line = ran.ok("history", "bad").out.splitlines()
    assert header.split() == ["key", "scheduled_time", "outcome", "attempts", "started", "ended", "node", "detail"]
    assert "2012-12-31 23:00:00 +0900" in line
    assert line.endswith("ValueError: it broke")
    assert "2012-12-31 14:00:00 +0000" in ran.ok("history", "bad", "--utc").out


def test_a_key_that_no_schedule_has_or_had_is_reported(ran: Commands) -> None:
    for options in ((), ("--json",), ("--failed",)):
        assert ran.fault("history", "nosuch", *options) == "no schedule has or had the key 'nosuch'"


def test_a_schedule_without_entries_has_an_empty_history(ran: Commands) -> None:
    ran.ok("add", "new", "t", "0 * * * *", "{}")
    assert ran.ok("history", "new", "--json").json == []
    assert ran.ok("history", "good", "--failed", "--json").json == []


def test_a_deleted_schedule_keeps_its_history(ran: Commands) -> None:
    ran.ok("delete", "good")
    assert len(ran.ok("history", "good", "--json").json) == 3
    assert ran.ok("history", "good", "--since", "1d", "--json").json == []


def test_what_is_no_time_is_reported(psched: Commands) -> None:
    outcome = psched("history", "--since", "yesterday")
    assert outcome.code == 2
    assert "'yesterday' is not a time; give unix seconds, a date like 2026-03-29, or a span like 2d" in outcome.err


def test_a_store_without_a_ledger_says_so(fresh: Commands) -> None:
    fresh.configure("development:\n  type: rdb_compat\n  url: sqlite:///../compat.db\n")
    fresh.ok("init")
    assert "keeps no ledger" in fresh.fault("history", "key")


@pytest.fixture
def written(psched: Commands) -> Commands:
    """A command line with two schedules whose runs kept their output.

    An attempt of `backup` failed, and the next one is not settled yet.
    """
    for key in ("backup", "other"):
        psched.ok("add", key, "t", "0 * * * *", "{}", "-s", str(START))
    with schedules_of(psched) as schedules:
        for task in schedules.poll_multi(2):
            task.keep_output(f"of {task.key}\n\x1b[2Jdisk full\n", "ended with exit status 1", failed=True)
            task.retry(0 if task.key == "backup" else 1000, error="it failed")
        task = schedules.poll()
        assert task is not None
        task.keep_output("", "ended with exit status 0")
    return psched


def test_the_output_of_a_schedule_is_shown_by_attempts_with_how_each_ended(written: Commands) -> None:
    lines = written.ok("history", "backup", "--output").out.splitlines()
    first, second = lines[0], lines[3]
    assert first.startswith("backup 2013-01-01 00:00:00 +0900 attempt 1, until ")
    assert first.endswith(": ended with exit status 1")
    assert lines[1:3] == ["  | of backup", "  | \\x1b[2Jdisk full"]
    assert second.startswith("backup 2013-01-01 00:00:00 +0900 attempt 2, until ")
    assert lines[4:] == ["2 outputs."]


def test_output_is_one_object_for_each_attempt_with_json(written: Commands) -> None:
    first, second = written.ok("history", "backup", "--output", "--json").json
    assert (first["key"], first["scheduled_time"], first["attempt"]) == ("backup", START, 1)
    assert (first["failed"], first["result"]) == (True, "ended with exit status 1")
    assert first["text"] == "of backup\n\x1b[2Jdisk full\n"
    assert first["scheduled_time_local"] == "2013-01-01T00:00:00+09:00"
    assert (second["attempt"], second["failed"], second["text"]) == (2, False, "")


def test_output_is_chosen_as_the_history_is(written: Commands) -> None:
    def chosen(*arguments: str) -> list[tuple[str, int]]:
        found = written.ok("history", "--output", "--json", *arguments).json
        return [(row["key"], row["attempt"]) for row in found]

    assert chosen() == [("backup", 1), ("backup", 2), ("other", 1)]
    assert chosen("--failed") == [("backup", 1), ("other", 1)]
    assert chosen("--since", "1h") == [("backup", 1), ("backup", 2), ("other", 1)]
    assert chosen("--until", "1h") == []
    assert chosen("backup", "--until", str(START)) == [("backup", 1), ("backup", 2)]
    assert chosen("backup", "--since", str(START + 1)) == []
    assert chosen("--limit", "1") == chosen("backup", "--limit", "1") == [("backup", 2)]
    assert chosen("--limit", "2", "--failed") == [("backup", 1), ("other", 1)]
    assert written.fault("history", "nosuch", "--output") == "no schedule has or had the key 'nosuch'"


def test_without_output_the_history_shows_none(written: Commands) -> None:
    assert "disk full" not in written.ok("history", "--failed", "--json").out


def test_the_last_entries_are_shown_on_request(ran: Commands) -> None:
    found = ran.ok("history", "good", "--limit", "2", "--json").json
    assert [row["scheduled_time"] for row in found] == [START + HOUR, START + 2 * HOUR]
    assert [row["key"] for row in ran.ok("history", "--limit", "2", "--json").json] == ["good", "bad"]
    assert [row["key"] for row in ran.ok("history", "--failed", "--limit", "1", "--json").json] == ["bad"]


def test_a_long_history_is_cut_only_without_a_limit_or_a_time(ran: Commands, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.cli.history._DEFAULT_LIMIT", 2)
    outcome = ran("history", "good", "--json")
    assert [row["scheduled_time"] for row in outcome.json] == [START + HOUR, START + 2 * HOUR]
    assert outcome.err == "only the last 2 entries are shown; use --limit or --since for more\n"
    assert len(ran.ok("history", "good", "--since", "0", "--json").json) == 3
    assert len(ran.ok("history", "good", "--limit", "3", "--json").json) == 3


@pytest.mark.parametrize(("letter", "kept"), [("x", 8192), ("\N{EURO SIGN}", 8190)])
def test_of_a_long_output_the_end_is_kept(psched: Commands, letter: str, kept: int) -> None:
    psched.ok("add", "key", "t", "0 * * * *", "{}", "-s", str(START))
    with schedules_of(psched) as schedules:
        task = schedules.poll()
        assert task is not None
        task.keep_output("begin" + letter * 9000, "ended")
    [output] = psched.ok("history", "key", "--output", "--json").json
    assert (len(output["text"].encode()), set(output["text"])) == (kept, {letter}), "no character is cut"
