"""Failing schedules, and schedules that no worker runs, appear in list, show, history --failed and doctor."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from faultlab.servers import Server
from psched import Task
from psched import open as open_psched
from psched.application.handler_base import describe_error
from psched.schedules.collection import ScheduleCollection
from psched.store.type_filter import TypeFilter
from tests.announcements import announce
from tests.cli.commands import Commands, Outcome

LONG_AGO = int(time.time()) // 3600 * 3600 - 48 * 3600
ERROR = "Traceback (most recent call last)\nValueError: it broke"


@pytest.fixture(params=["rdb", "redis", "rdb_compat"])
def table(request: pytest.FixtureRequest, fresh: Commands) -> Iterator[Commands]:
    """A command line with a table of schedules, for each type of store."""
    if request.param == "redis":
        server: Server = request.getfixturevalue("redis")
        with server.database() as url:
            fresh.configure(f"development: {{type: redis, url: '{url}'}}")
            fresh.ok("init")
            yield fresh
        return
    fresh.configure(f"development:\n  type: {request.param}\n  url: sqlite:///../psched.db\n")
    fresh.ok("init")
    yield fresh


def is_compat(commands: Commands) -> bool:
    return "rdb_compat" in (commands.folder / "etc" / "psched.yml").read_text()


def add(commands: Commands, key: str, *more: str, start: int = LONG_AGO) -> None:
    commands.ok("add", key, "report", "0 * * * *", "{}", "-t", "UTC", "-s", str(start), *more)


def collection(commands: Commands) -> ScheduleCollection:
    return open_psched(commands.folder / "etc" / "psched.yml", "development")


@contextmanager
def taken(commands: Commands) -> Iterator[Task]:
    """Acquire the first due schedule, yield its task, and finish it at the end."""
    with collection(commands) as schedules:
        task = schedules.poll()
        assert task is not None
        yield task
        task.finish()


def fail(commands: Commands, times: int = 1, wait: float = 0) -> None:
    """Let the first due schedule fail `times` times. The next attempt is then due in `wait` seconds."""
    with collection(commands) as schedules:
        for left in reversed(range(times)):
            task = schedules.poll()
            assert task is not None
            task.retry(0 if left else wait, error=ERROR)


def shown(commands: Commands, key: str) -> dict[str, Any]:
    [listed] = [row for row in commands.ok("list", "--json").json if row["key"] == key]
    found: dict[str, Any] = commands.ok("show", key, "--json").json
    assert {name: value for name, value in listed.items() if name != "lateness"} == {
        name: value for name, value in found.items() if name != "lateness"
    }
    return found


def findings(outcome: Outcome) -> list[tuple[bool, str]]:
    return [(one["ok"], one["message"]) for one in outcome.json if one["subject"] == "overdue"]


def test_a_schedule_that_no_worker_takes_is_overdue(table: Commands) -> None:
    add(table, "late")
    found = shown(table, "late")
    assert (found["state"], found["overdue"], found["attempts"]) == ("overdue", True, 0)
    assert found["lateness"] >= 48 * 3600
    assert "overdue (2 d late)" in table.ok("list").out or "overdue (2 d " in table.ok("list").out
    outcome = table("doctor", "--json")
    [(ok, message)] = findings(outcome)
    assert (outcome.code, ok) == (1, False)
    assert message.startswith("'late' (type 'report'): its occurrence of 20")
    assert " +0900 is 2 d" in message
    asked = (
        "is a node running that routes its type? (psched run, pschedd status)"
        if is_compat(table)
        else "no node is running; start one: psched run, or pschedd start"
    )
    assert message.endswith(f" late and was not started; {asked}")


def test_where_nothing_was_begun_it_is_asked_for_a_worker_once(table: Commands) -> None:
    for key in ("one", "two", "three"):
        add(table, key)
    first, *others = findings(table("doctor", "--json"))
    assert not first[0]
    assert first[1].startswith("no worker has started any of the following 3 schedules; ")
    assert sorted(message.split()[0] for _, message in others) == ["'one'", "'three'", "'two'"]


def test_a_failing_schedule_shows_its_attempts_and_its_error(table: Commands) -> None:
    add(table, "fails")
    add(table, "fresh", start=2_000_000_000)
    fail(table, 1 if is_compat(table) else 3, wait=500)
    found, doctor = shown(table, "fails"), table("doctor", "--json")
    if is_compat(table):  # its table does not tell a run from the wait for a retry, nor count attempts
        assert (found["state"], found["overdue"]) == ("leased", False)
        assert found["lateness"] >= 48 * 3600
        return
    assert (found["state"], found["overdue"], found["attempts"], found["last_error"]) == ("failing", True, 3, ERROR)
    assert found["lateness"] >= 48 * 3600
    assert shown(table, "fresh")["state"] == "waiting"
    listed = table.ok("list").out
    assert "failing (next: attempt 4, 2 d" in listed
    assert "late): ValueError: it broke" in listed
    lines = dict(line.split(maxsplit=1) for line in table.ok("show", "fails").out.splitlines() if " " in line)
    assert (lines["state"], lines["attempts"]) == ("failing", "3 so far")
    assert lines["lateness"].startswith("2 d")
    [(ok, message)] = findings(doctor)
    assert (doctor.code, ok) == (1, False)
    assert "late: 3 attempts have failed; the last error: ValueError: it broke; the next attempt is due 20" in message


def test_failing_schedules_are_a_warning_before_they_are_overdue(table: Commands) -> None:
    for key, attempts in (("often", 3), ("once", 1)):
        table.ok("add", key, "report", "* * * * *", "{}", "-s", str(int(time.time()) - 60))
        if not is_compat(table):
            fail(table, attempts, wait=5000)
    outcome = table.ok("doctor", "--json")
    warnings = [one for one in outcome.json if one["warning"]]
    if is_compat(table):
        assert warnings == []
        return
    [warning] = warnings
    assert (warning["subject"], warning["ok"]) == ("failing", True)
    assert warning["message"].startswith(
        "2 schedules are failing; the worst is 'often' (type 'report') with 3 attempts of its occurrence of 20"
    )
    assert ", the last error: ValueError: it broke; psched history --failed lists them" in warning["message"]
    [line] = [line for line in table.ok("doctor").out.splitlines() if " failing " in line]
    assert line.split()[0] == "warning"


def raised() -> str:
    """Return what psched stores of an exception that has a cause and a message of several lines."""
    try:
        try:
            {}["account"]
        except KeyError as error:
            raise RuntimeError("the ledger is closed\nask for it to be opened\n") from error
    except RuntimeError as error:
        return describe_error(error)


def test_an_error_of_several_lines_is_summed_up_and_shown_by_its_lines(psched: Commands) -> None:
    kept = raised()
    psched.ok("add", "fails", "report", "0 * * * *", "{}", "-s", str(LONG_AGO), "--max-attempts", "2")
    with collection(psched) as schedules:
        task = schedules.poll()
        assert task is not None
        task.retry(0, error=kept)
    summary = "RuntimeError: the ledger is closed"
    for command in (("list",), ("history", "--failed")):
        [line] = [line for line in psched.ok(*command).out.splitlines() if line.startswith("fails")]
        assert any(cell.endswith(summary) for cell in line.split("\t"))
        assert "ask for it" not in line
    [(_, message)] = findings(psched("doctor", "--json"))
    assert f"; the last error: {summary}; " in message
    audited = psched("audit", "--from", str(LONG_AGO), "--to", str(LONG_AGO)).out
    assert f"it failed once, the last error: {summary} (the next attempt is due " in audited
    shown_lines = psched.ok("show", "fails").out.splitlines()
    begin = shown_lines.index(f"{'last_error':<14} {kept.splitlines()[0]}")
    wanted = [f"{'' if number else 'last_error':<14} {line}" for number, line in enumerate(kept.rstrip().split("\n"))]
    assert shown_lines[begin : begin + len(wanted)] == [line.rstrip() for line in wanted]
    assert psched.ok("show", "fails", "--json").json["last_error"] == kept
    with collection(psched) as schedules:
        task = schedules.poll()
        assert task is not None
        task.retry(0, error=kept)
    [line] = [line for line in psched.ok("history", "fails").out.splitlines() if "\tfailed\t" in line]
    assert line.endswith(summary)
    assert (
        f"given up after 2 attempts: {summary}\n" in psched("audit", "--from", str(LONG_AGO), "--to", str(LONG_AGO)).out
    )


def test_history_shows_what_is_failing_now(table: Commands) -> None:
    if is_compat(table):
        assert "keeps no ledger" in table.fault("history", "--failed")
        return
    add(table, "fails")
    add(table, "well", start=2_000_000_000)
    fail(table, 2)
    for arguments in (
        ("--failed",),
        ("--failed", "--since", "1h"),
        ("fails", "--failed"),
        ("fails", "--failed", "--since", "3d"),
    ):
        [row] = table.ok("history", *arguments, "--json").json
        assert (row["key"], row["scheduled_time"], row["outcome"], row["attempts"]) == ("fails", LONG_AGO, "failing", 2)
        assert (row["error"], row["ended"], row["fence"]) == (ERROR, None, None)
    for arguments in (
        ("well", "--failed"),
        ("--failed", "--until", "1h"),
        ("fails", "--failed", "--since", "1h"),
        ("fails",),
    ):
        assert table.ok("history", *arguments, "--json").json == []
    _, line = table.ok("history", "--failed").out.splitlines()
    assert line.split()[0] == "fails"
    assert line.endswith("ValueError: it broke")


def test_an_attempt_after_failures_is_running_and_still_overdue(table: Commands) -> None:
    if is_compat(table):
        return
    add(table, "fails")
    fail(table)
    with taken(table):
        found = shown(table, "fails")
        assert (found["state"], found["overdue"], found["attempts"]) == ("running", True, 2)
        assert "running (attempt 2, 2 d" in table.ok("list").out
        [(_, message)] = findings(table("doctor", "--json"))
        assert "attempt 2 is running on " in message
        assert "; the last error: ValueError: it broke" in message
        [row] = table.ok("history", "--failed", "--json").json
        assert (row["outcome"], row["attempts"]) == ("running", 2)
    assert table.ok("history", "fails", "--failed", "--json").json[0]["outcome"] == "finished"


def test_a_first_attempt_may_take_as_long_as_it_likes(table: Commands) -> None:
    add(table, "long")
    with taken(table):
        found = shown(table, "long")
        assert (found["state"], found["overdue"]) == ("leased" if is_compat(table) else "running", False)
        assert findings(table.ok("doctor", "--json")) == [
            (True, "no occurrence is more than 10 min late, and none is later than its alert_after")
        ]


def test_what_is_paused_or_not_late_enough_is_not_overdue(table: Commands) -> None:
    now = int(time.time())
    table.ok("add", "due", "report", "* * * * * *", "{}", "-s", str(now - 5)) if not is_compat(table) else None
    add(table, "tomorrow", "-a", str(now + 86400))
    if not is_compat(table):
        assert shown(table, "due")["state"] == "due"
        assert shown(table, "tomorrow")["state"] == "waiting"
        add(table, "paused")
        table.ok("pause", "paused")
        assert (shown(table, "paused")["state"], shown(table, "paused")["lateness"]) == ("paused", 0)
    assert findings(table.ok("doctor", "--json"))[0][0]


def test_it_is_reported_whether_a_live_node_routes_what_is_overdue(psched: Commands) -> None:
    add(psched, "late")
    for types, asked in (
        ("other", "no live node routes the type 'report'"),
        ("report", "1 live node routes its type; are its workers busy? (pschedd status)"),
    ):
        with collection(psched) as schedules:
            announce(schedules.store.nodes, "host/1", "schedules", TypeFilter((types,)))
        [(_, message)] = findings(psched("doctor", "--json"))
        assert message.endswith(f" late and was not started; {asked}")


@pytest.mark.parametrize(
    ("retry_wait", "bound"),
    [("5", "1 min"), ("200", "6 min 40 s"), ("{first: 10, factor: 2, limit: 100}", "3 min 20 s")],
)
def test_the_longest_wait_for_a_retry_decides_what_is_overdue(psched: Commands, retry_wait: str, bound: str) -> None:
    psched.use("sqlite:///../psched.db", f"  retry_wait: {retry_wait}\n")
    [(ok, message)] = findings(psched.ok("doctor", "--json"))
    assert (ok, message) == (True, f"no occurrence is more than {bound} late, and none is later than its alert_after")
    late = int(time.time()) - 90
    psched.ok("add", "late", "t", "* * * * * *", "{}", "-s", str(late))
    assert findings(psched("doctor", "--json"))[0][0] == (bound != "1 min")


def test_the_originals_columns_are_there_on_request(psched: Commands) -> None:
    add(psched, "late")
    header, row, _ = psched.ok("list", "--format", "perfectsched").out.splitlines()
    assert header.split() == ["key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "data"]
    assert "overdue" not in row
