"""Prints the number of runs that `scripts/compare-imports` has compared."""

from __future__ import annotations

import pytest

from tests.importers.enumeration import COMPARED, IS_WHOLE


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in terminalreporter.getreports("passed") if IS_WHOLE else ():
        for name, number in report.user_properties:
            if name == COMPARED:
                terminalreporter.line(
                    f"{report.nodeid}: {number:,} {name} of 400 days, none with an unexplained difference"
                )
