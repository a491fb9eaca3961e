"""psched audit proves what ran, by its exit code, or lists what is wrong."""

from __future__ import annotations

import sqlite3

import pytest

import psched
from tests.cli.commands import Commands

START = 1356966000
MONTH = "2013-01-01", "2013-12-31"


@pytest.fixture
def payroll(psched: Commands) -> Commands:
    """A schedule that ran twelve months, and then was deleted."""
    psched.ok("add", "payroll", "t", "0 0 1 * *", "{}", "-s", str(START), "-t", "Asia/Tokyo")
    run(psched, 12)
    psched.ok("delete", "payroll")
    return psched


def run(commands: Commands, count: int) -> None:
    with psched.open(commands.folder / "etc" / "psched.yml", "development") as schedules:
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
    assert first == "payroll: missing 2013-02-01 00:00:00 +0900: nothing is on record of it"
    assert last.startswith("payroll: 11 of 12 occurrences ran, ")
    assert last.endswith("NOT PROVED: 1 violations")


def test_a_run_later_than_the_bound_is_listed(payroll: Commands) -> None:
    outcome = payroll("audit", "--from", "2013-06-01", "--to", "2013-06-30", "--late", "3600", "--json")
    assert outcome.code == 1
    [verdict] = outcome.json
    assert (verdict["key"], verdict["proved"], verdict["ran"], verdict["missing"]) == ("payroll", False, 1, 0)
    [found] = verdict["violations"]
    assert (found["kind"], found["time_local"]) == ("late", "2013-06-01T00:00:00+09:00")


def test_nothing_on_record_is_no_proof(psched: Commands) -> None:
    assert psched.fault("audit", "--from", "1d") == "no schedule is on record, so nothing is proved"
    assert psched.fault("audit", "--from", "1d", "nobody") == "no schedule has or had the key 'nobody'"


def test_a_schedule_that_lags_behind_is_not_proved(psched: Commands) -> None:
    psched.ok("add", "hourly", "t", "0 * * * *", "{}", "-s", str(START), "-t", "Asia/Tokyo")
    run(psched, 3)
    outcome = psched("audit", "--from", "2013-01-01", "--to", "2013-01-02")
    assert outcome.code == 1
    assert "hourly: missing 2013-01-01 03:00:00 +0900: it is waiting" in outcome.out
