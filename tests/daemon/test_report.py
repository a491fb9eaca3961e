"""What a master reports to its commands, and what a command makes of what somebody else has written in its place."""

from __future__ import annotations

import json

import pytest

from psched.daemon.report import Report


def test_what_was_reported_is_read() -> None:
    report = Report(troubles=("worker 1 cannot begin: no table",))
    report.reload.begin()
    report.reload.end("processors: expected\na number")
    report.upgrade.begin()
    assert Report.parse(report.line()) == report
    assert "\n" not in report.line()
    assert report.upgrade.open


def test_a_reason_without_end_is_cut_to_what_is_read_at_once() -> None:
    report = Report(troubles=("x" * 10**6,) * 100)
    report.reload.begin()
    report.reload.end("\x00" * 10**6)
    assert len(report.line()) < 65536
    assert Report.parse(report.line()).reload.ended == 1


def test_a_request_that_begins_during_another_takes_its_place() -> None:
    report = Report()
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
def test_what_cannot_be_read_is_no_report(line: str) -> None:
    assert Report.parse(line) == Report()


def test_nothing_that_a_terminal_obeys_is_passed_on() -> None:
    requests = {"begun": 1, "ended": 1, "refusal": "\x1b]0;owned\x07\x9b31m"}
    line = json.dumps({"reload": requests, "upgrade": requests, "troubles": ["\x1b[2J"]})
    found = Report.parse(line)
    assert not {"\x1b", "\x07", "\x9b"} & {*str(found.reload.refusal), *found.troubles[0]}
