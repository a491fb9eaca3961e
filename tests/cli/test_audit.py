"""psched audit: its exit code says whether all occurrences are accounted for, and its output lists what is wrong."""

from __future__ import annotations

import sqlite3
import time

import pytest

import psched
from psched.time_text import local_time
from tests.cli.commands import Commands
from tests.cli.worker import running

APP = """
import psched
app = psched.App()
@app.task("t")
def handle(task):
    with open(task.data["file"], "a") as file:
        file.write(f"{task.scheduled_time}\\n")
"""
START = 1356966000
MONTH = "2013-01-01", "2013-12-31"


@pytest.fixture
def payroll(psched: Commands) -> Commands:
    """A command line with a schedule that ran for twelve months and was then deleted."""
    psched.ok("add", "payroll", "t", "0 0 1 * *", "{}", "-s", str(START), "-t", "Asia/Tokyo")
    run(psched, 12)
    psched.ok("delete", "payroll")
    return psched


def schedules_of(commands: Commands) -> psched.ScheduleCollection:
    return psched.open(commands.folder / "etc" / "psched.yml", "development")


def run(commands: Commands, count: int) -> None:
    with schedules_of(commands) as schedules:
        for _ in range(count):
            task = schedules.poll()
            assert task is not None
            task.finish()


def past_psched(commands: Commands, statement: str) -> None:
    with sqlite3.connect(commands.folder / "psched.db") as connection:
        connection.execute(statement)
    connection.close()


def test_what_ran_is_proved_in_a_line(payroll: Commands) -> None:
    assert payroll.ok("audit", "--from", MONTH[0], "--to", MONTH[1], "payroll").out == (
        "payroll: 12 of 12 occurrences ran, 2013-01-01 00:00:00 +0900 … 2013-12-01 00:00:00 +0900\n"
    )
    assert payroll.ok("audit", "--from", "2013-06-01", "--to", "2013-06-30").out.startswith("payroll: 1 of 1")


def test_what_is_missing_is_listed_and_the_exit_code_says_so(payroll: Commands) -> None:
    past_psched(payroll, f"DELETE FROM psched_schedules_ledger WHERE scheduled_time = {START + 31 * 86400}000")
    outcome = payroll("audit", "--from", MONTH[0], "--to", MONTH[1])
    assert (outcome.code, outcome.err) == (1, "")
    first, last = outcome.out.splitlines()
    assert first == "payroll: missing 2013-02-01 00:00:00 +0900: it has no entry in the ledger"
    assert last.startswith("payroll: 11 of 12 occurrences ran, ")
    assert last.endswith("NOT PROVED: 1 missing")


def test_a_run_later_than_the_bound_is_listed(payroll: Commands) -> None:
    outcome = payroll("audit", "--from", "2013-06-01", "--to", "2013-06-30", "--late", "3600", "--json")
    assert outcome.code == 1
    [verdict] = outcome.json
    assert (verdict["key"], verdict["proved"], verdict["ran"], verdict["missing"]) == ("payroll", False, 1, 0)
    [found] = verdict["violations"]
    assert (found["kind"], found["time_local"]) == ("late", "2013-06-01T00:00:00+09:00")


def test_nothing_on_record_is_no_proof(psched: Commands) -> None:
    assert psched.fault("audit", "--from", "1d") == "the ledger has no schedules, so nothing is proved"
    assert psched.fault("audit", "--from", "1d", "nobody") == "no schedule has or had the key 'nobody'"


@pytest.mark.parametrize(
    ("window", "expected"),
    [
        (("--from", "2013-11-22", "--to", "2013-11-21"), "--to is before --from"),
        (("--from", "1d", "--to", "2d"), "--to is before --from"),
        (("--from", "3000-01-01"), "--to (now) is before --from"),
    ],
)
def test_a_window_that_ends_before_it_begins_is_refused(
    payroll: Commands, window: tuple[str, ...], expected: str
) -> None:
    outcome = payroll("audit", *window)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err == f"psched: {expected} (see psched audit --help)\n"


def test_a_window_of_one_moment_is_judged(payroll: Commands) -> None:
    for window in ((str(START), str(START)), ("0s", "0s")):
        payroll.ok("audit", "--from", window[0], "--to", window[1])


def test_a_schedule_that_lags_behind_is_not_proved(psched: Commands) -> None:
    psched.ok("add", "hourly", "t", "0 * * * *", "{}", "-s", str(START), "-t", "Asia/Tokyo")
    run(psched, 3)
    outcome = psched("audit", "--from", "2013-01-01", "--to", "2013-01-02")
    assert outcome.code == 1
    assert outcome.out.startswith("hourly: missing 2013-01-01 03:00:00 +0900 … 2013-01-02 00:00:00 +0900 (22): ")
    assert outcome.out.endswith("NOT PROVED: 22 missing\n")


def test_what_waits_behind_a_failing_occurrence_is_reported_with_its_error_and_next_attempt(psched: Commands) -> None:
    psched.ok("add", "hourly", "t", "0 * * * *", "{}", "-s", str(START), "-t", "Asia/Tokyo")
    with schedules_of(psched) as schedules:
        for wait in (0, 5000):
            task = schedules.poll()
            assert task is not None
            task.retry(wait, error="ValueError('it broke')\nTraceback …\nValueError: it broke\non line 3")
        due = schedules["hourly"].metadata().next_run_time
    outcome = psched("audit", "--from", "2013-01-01T01:00", "--to", "2013-01-01T23:00")
    assert outcome.code == 1
    waiting, summary = outcome.out.splitlines()
    assert waiting == (
        "hourly: missing 2013-01-01 01:00:00 +0900 … 2013-01-01 23:00:00 +0900 (23): it waits behind an occurrence "
        "that failed 2 times, the last error: ValueError: it broke (the run of 2013-01-01 00:00:00 +0900; the next "
        f"attempt is due {local_time(int(due))})"
    )
    assert summary.endswith("NOT PROVED: 23 missing")
    [verdict] = psched("audit", "--from", "2013-01-01", "--to", "2013-01-01T23:00", "--json").json
    assert [(one["count"], one["behind"], one["next_attempt"]) for one in verdict["violations"]] == [
        (1, None, due),
        (23, START, due),
    ]


@pytest.mark.parametrize(("since", "count"), [("1d", 24), ("3d", 48)])
def test_a_schedule_that_never_ran_is_not_proved(psched: Commands, since: str, count: int) -> None:
    psched.ok("add", "hourly", "t", "0 * * * *", "{}", "-s", str(int(time.time()) - 2 * 86400))
    outcome = psched("audit", "--from", since)
    assert outcome.code == 1
    assert "no occurrence was expected" not in outcome.out
    [verdict] = psched("audit", "--from", since, "--json").json
    assert (verdict["proved"], verdict["ran"], verdict["missing"] + verdict["pending"]) == (False, 0, count)
    [found] = verdict["violations"]
    assert (found["kind"], found["count"]) == ("missing", verdict["missing"])


def test_what_came_while_all_daemons_were_stopped_is_missing(psched: Commands) -> None:
    (psched.folder / "jobs.py").write_text(APP)
    psched.use("sqlite:///../psched.db", "  app: jobs:app\n  include: ..\n  poll_interval: 0.1\n")
    psched.ok("add", "every-second", "t", "* * * * * *", f'{{"file": "{psched.folder}/ran"}}')
    with running(psched, "run"):
        pass
    pass_time(psched, 100)
    [proof] = psched("audit", "--from", "200s", "--json").json
    assert proof["ran"] >= 1
    outcome = psched("audit", "--from", "80s", "--json")
    [verdict] = outcome.json
    assert (outcome.code, verdict["proved"], verdict["ran"]) == (1, False, 0)
    assert 68 <= verdict["missing"] <= 72
    [found] = verdict["violations"]
    assert (found["kind"], found["last"] - found["time"] + 1) == ("missing", found["count"])
    psched.ok("audit", "--from", str(proof["first"]), "--to", str(proof["last"]))


def test_nothing_was_to_be_run_where_no_rule_has_an_occurrence(psched: Commands) -> None:
    psched.ok("add", "monthly", "t", "0 0 1 * *", "{}", "-s", str(START), "-t", "Asia/Tokyo")
    found = psched.ok("audit", "--from", "2013-01-02", "--to", "2013-01-31")
    assert found.out == "monthly: no occurrence was expected\n"
    assert psched("audit", "--from", "2013-01-02", "--to", "2013-02-01").code == 1


def test_a_schedule_that_was_added_past_psched_is_judged_too(psched: Commands) -> None:
    start = int(time.time()) // 3600 * 3600 - 3 * 3600
    psched.ok("add", "hourly", "t", "0 * * * *", "{}", "-s", str(start))
    past_psched(psched, "DELETE FROM psched_schedules_changes")
    outcome = psched("audit", "--from", str(start - 5), "--to", str(start + 7200), "--json")
    assert outcome.code == 1
    [verdict] = outcome.json
    found = [(one["kind"], one["time"], one["last"], one["count"]) for one in verdict["violations"]]
    assert found == [("unknown", start - 5, start - 1, 0), ("missing", start, start + 7200, 3)]


def test_a_year_of_seconds_is_judged_at_once(psched: Commands) -> None:
    psched.ok("add", "every-second", "t", "* * * * * *", "{}", "-s", str(START))
    [verdict] = psched("audit", "--from", "2013-01-01", "--to", "2014-01-01", "--json").json
    assert verdict["missing"] == 365 * 86400 + 1
    assert len(verdict["violations"]) == 1


def pass_time(commands: Commands, seconds: int) -> None:
    """Move all stored times back by `seconds`, as if so much time had passed."""
    columns = {
        "psched_schedules": ("next_time", "due", "last_time", "ready"),
        "psched_schedules_ledger": ("scheduled_time", "last_time", "previous", "started", "ended"),
        "psched_schedules_changes": ("changed", "pending", "first_time", "due"),
    }
    for table, names in columns.items():
        past_psched(
            commands, f"UPDATE {table} SET " + ", ".join(f"{name} = {name} - {seconds * 1000}" for name in names)
        )
