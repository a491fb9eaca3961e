"""The occurrences of a backfill, their order, and their division among its parts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from psched.model import NO_OCCURRENCE, Calendar, Rule, ScheduleRow
from psched.schedules import rule_occurrences
from psched.schedules.backfill_spans import (
    count,
    first_to_backfill,
    next_to_backfill,
    rule_of_backfill,
    shares,
    spans_left,
    spans_passed,
    uncovered,
    without,
)

EVERY = Rule("@every 10s", "UTC")
LAST = 1000
TIMES = range(0, LAST + 1, 10)
"""The occurrences of `EVERY` up to `LAST`."""

spans = st.lists(st.tuples(st.integers(0, LAST), st.integers(0, 200)), max_size=8).map(
    lambda drawn: [(first, first + length) for first, length in drawn]
)


def order(rule: Rule) -> list[int]:
    """Return the occurrences in the order in which a backfill's part runs them."""
    found = [first_to_backfill(rule, "vixie")]
    while found[-1] != NO_OCCURRENCE:
        found.append(next_to_backfill(rule, found[-1], "vixie"))
    return found[:-1]


@given(spans, st.integers(1, 12), st.booleans())
def test_parts_share_what_is_not_covered(covered: list[tuple[int, int]], number: int, reverse: bool) -> None:
    left = [time for time in TIMES if not any(first <= time <= last for first, last in covered)]
    found = list(uncovered(EVERY, 0, LAST, covered, "vixie"))
    assert count(EVERY, found, "vixie") == len(left)
    parts = shares(EVERY, found, number, "vixie")
    orders = [order(rule_of_backfill(EVERY, "key", part, reverse)) for part in parts]
    assert len(parts) == min(number, len(left))
    assert max(map(len, orders), default=0) - min(map(len, orders), default=0) <= 1
    assert [time for run in orders for time in (reversed(run) if reverse else run)] == left


@given(spans, st.booleans(), st.integers(0, 99))
def test_what_a_part_has_passed_and_has_left_is_all_that_it_has(
    covered: list[tuple[int, int]], reverse: bool, at: int
) -> None:
    found = tuple(uncovered(EVERY, 0, LAST, covered, "vixie"))
    if not found:
        return
    rule = rule_of_backfill(EVERY, "key", found, reverse)
    times = order(rule)
    reached = times[min(at, len(times) - 1)]
    row = ScheduleRow("", "t", {}, "waiting", rule=rule, next_time=reached, next_run_time=0)
    place = times.index(reached)
    for part, run in ((row, place), (replace(row, next_time=NO_OCCURRENCE), len(times))):
        passed, left = spans_passed(part), spans_left(part)
        assert (count(rule, passed, "vixie"), count(rule, left, "vixie")) == (run, len(times) - run)
        assert all(rule_occurrences.first_time(rule, first, "vixie") <= last for first, last in left)


def test_a_backfill_leaves_out_the_days_of_a_calendar() -> None:
    day = 86400
    rule = Rule("@daily", "UTC", exclude=(Calendar("off", 1, ("1970-01-03", "1970-01-05")),), delay=60, max_runs=2)
    part = rule_of_backfill(rule, "key", ((0, 9 * day),), reverse=False)
    assert order(part) == [n * day for n in (0, 1, 3, 5, 6, 7, 8, 9)]
    assert (part.delay, part.max_runs) == (0, None)


@pytest.mark.parametrize(
    ("times", "parts"),
    [([], [(10, 20)]), ([10, 15, 20], [(11, 14), (16, 19)]), ([5, 25], [(10, 20)]), ([15, 16], [(10, 14), (17, 20)])],
)
def test_a_stretch_without_some_times_is_the_parts_between_them(times: list[int], parts: list[tuple[int, int]]) -> None:
    assert list(without((10, 20), times)) == parts
