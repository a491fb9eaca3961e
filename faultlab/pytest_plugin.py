"""pytest plugin: lists tests that did not run, with the reason.

With PSCHED_REQUIRE_ALL=1, any skip and any expected failure is a failure, whatever its reason.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator
from typing import TypeVar

import pytest

from faultlab import prerequisites

Report = TypeVar("Report", pytest.TestReport, pytest.CollectReport)

REQUIRE_ALL = "PSCHED_REQUIRE_ALL"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """End a test marked `needs(program, …)` as NOT RUN if one of these programs is missing."""
    for marker in item.iter_markers("needs"):
        for program in marker.args:
            prerequisites.find(program)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """With PSCHED_REQUIRE_ALL=1, report each skip and each expected failure as a failure."""
    report = yield
    return _strict(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """With PSCHED_REQUIRE_ALL=1, report each module that is skipped as a whole as a failure."""
    report = yield
    return _strict(report)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the tests that did not run, grouped by their reason."""
    skipped: dict[str, list[str]] = defaultdict(list)
    for report in terminalreporter.getreports("skipped"):
        skipped[_reason(report)].append(report.nodeid)
    if skipped:
        terminalreporter.write_sep("=", "NOT RUN", yellow=True)
    for reason, names in sorted(skipped.items()):
        count = "1 test" if len(names) == 1 else f"{len(names)} tests"
        terminalreporter.write_line(f"NOT RUN: {count} – {reason}", yellow=True)
        for name in names:
            terminalreporter.write_line(f"    {name}")


def _strict(report: Report) -> Report:
    expected = getattr(report, "wasxfail", None)
    if os.environ.get(REQUIRE_ALL) == "1" and (report.skipped or expected is not None):
        reason = _reason(report) if expected is None else f"expected to fail: {expected}"
        report.outcome = "failed"
        report.longrepr = f"NOT RUN, but {REQUIRE_ALL}=1: {reason}"
        if expected is not None:
            del report.wasxfail
    return report


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    if isinstance(report.longrepr, tuple):
        return report.longrepr[2].removeprefix("Skipped: ").removeprefix(prerequisites.NOT_RUN)
    return str(report.longrepr)
