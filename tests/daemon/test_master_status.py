"""The status that a master writes for its commands, and how commands read one that is damaged or forged."""

from __future__ import annotations

import json

import pytest

from psched.supervisor.master_status import MasterStatus, PendingWorker


def test_a_report_is_read_as_it_was_written() -> None:
    pending = (PendingWorker(1, 4711.5, "was killed by SIGSEGV"), PendingWorker(2, None, ""))
    report = MasterStatus(troubles=("worker 1 cannot start: no table",), pending=pending)
    report.reload.begin()
    report.reload.end("processors: expected\na number")
    report.upgrade.begin()
    assert MasterStatus.parse(report.line()) == report
    assert "\n" not in report.line()
    assert report.upgrade.open


def test_long_reports_are_cut_below_the_size_of_one_read() -> None:
    report = MasterStatus(troubles=("x" * 10**6,) * 100, pending=(PendingWorker(1, 1e9 / 3, "x" * 10**6),) * 1000)
    report.reload.begin()
    report.reload.end("\x00" * 10**6)
    report.upgrade.end("\x00" * 10**6)
    assert len(report.line()) < 65536
    assert MasterStatus.parse(report.line()).reload.ended == 1


def test_a_request_that_begins_during_another_takes_its_place() -> None:
    report = MasterStatus()
    report.reload.begin()
    report.reload.begin()
    assert report.reload.open
    report.reload.end(None)
    assert (report.reload.begun, report.reload.ended) == (2, 2)
    report.reload.end("too late")
    assert report.reload.refusal is None


@pytest.mark.parametrize(
    "line", ["", "4711", "[]", "{}", "null", '{"reload": 1, "upgrade": 2, "troubles": 3}', "[" * 60000, '{"reload": {']
)
def test_an_unreadable_line_is_an_empty_report(line: str) -> None:
    assert MasterStatus.parse(line) == MasterStatus()


def test_control_characters_are_not_passed_on() -> None:
    requests = {"begun": 1, "ended": 1, "refusal": "\x1b]0;owned\x07\x9b31m"}
    pending = [{"number": 1, "fork_at": None, "last_end": "\x1b[2J"}]
    line = json.dumps({"reload": requests, "upgrade": requests, "troubles": ["\x1b[2J"], "pending": pending})
    found = MasterStatus.parse(line)
    shown = f"{found.reload.refusal}{found.troubles[0]}{found.pending[0].text(0)}"
    assert "the previous one" in shown
    assert not {"\x1b", "\x07", "\x9b"} & {*shown}
