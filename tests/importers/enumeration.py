"""Compares psched's times of runs with those of another scheduler, one by one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from psched.importers.entries import Following
from psched.importers.run_time_comparison import clock_changes

DAY = 86400
BEGIN = 1_795_478_400
"""Unix seconds: 2026-11-24 00:00 UTC."""
IS_WHOLE = "PSCHED_WHOLE_IMPORTS" in os.environ
"""Whether all runs of 400 days are compared (by scripts/compare-imports), or only those of some days."""

COMPARED = "compared runs"
"""The name of the test property that contains the number of compared runs."""
RecordRuns = Callable[[str, object], None]


def stretches(timezone: str) -> Iterator[tuple[int, int]]:
    """Yield the ranges to compare (unix seconds): 400 days, or only a month's end and the days around clock changes."""
    end = BEGIN + 400 * DAY
    if IS_WHOLE:
        yield BEGIN, end
        return
    yield BEGIN + 5 * DAY, BEGIN + 8 * DAY
    for change in clock_changes(BEGIN, end, timezone):
        yield change // 3600 * 3600 - DAY, change // 3600 * 3600 + DAY


def runs(following: Following, begin: int, end: int) -> list[int]:
    """Return the runs from `begin` to `end`, both included, in unix seconds."""
    found = []
    instant = following(begin - 1)
    while instant is not None and instant <= end:
        found.append(instant)
        instant = following(instant)
    return found
