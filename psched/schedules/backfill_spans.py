"""Which occurrences of a schedule a backfill runs, and how they are divided among the rows of the backfill.

Pure functions; times are unix seconds. A backfill may cover years, so it stores time ranges (spans) instead of
occurrences. A row of a backfill runs each occurrence of the row's rule in the row's ranges.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from psched.cron import CronDialect
from psched.model import NO_OCCURRENCE, Backfill, Rule, ScheduleRow, Span
from psched.schedules import rule_occurrences

MOST_SPANS = 1000
"""The maximum number of time ranges of one backfill. Each row of a backfill stores its ranges, and each acquire of the
row reads them.
"""


def next_to_backfill(rule: Rule, time: int, dialect: CronDialect) -> int:
    """Return the occurrence that a backfill runs after the one at `time`, or `NO_OCCURRENCE`."""
    assert rule.backfill is not None
    if rule.backfill.reverse:
        for first, last in reversed(rule.backfill.spans):
            found = rule_occurrences.last_time(rule, first - 1, min(last, time - 1), dialect) if first < time else None
            if found is not None:
                return found
        return NO_OCCURRENCE
    for first, last in rule.backfill.spans:
        if last > time:
            following = rule_occurrences.next_time(rule, max(first - 1, time), dialect)
            if following <= last:
                return following
    return NO_OCCURRENCE


def first_to_backfill(rule: Rule, dialect: CronDialect) -> int:
    """Return the first occurrence that a backfill runs, or `NO_OCCURRENCE`."""
    assert rule.backfill is not None
    spans = rule.backfill.spans
    return next_to_backfill(rule, spans[-1][1] + 1 if rule.backfill.reverse else spans[0][0] - 1, dialect)


def last_to_backfill(row: ScheduleRow, until: float) -> int:
    """Return the end of the range of occurrences that a backfill of the schedule may run. It is at most `until`.

    The next occurrence and all later ones belong to the regular runs. A schedule that has run as often as `max_runs`
    allows has no occurrences after its last one.
    """
    regular = row.regular()
    last = min(int(until), regular.next_time - 1)
    if regular.ended and row.has_run_enough and row.previous is not None:
        last = min(last, row.previous)
    return last


def spans_left(row: ScheduleRow) -> tuple[Span, ...]:
    """Return the time ranges that the row of a backfill still has to run, including a run in progress."""
    backfill = row.rule.backfill
    if backfill is None or row.ended:
        return ()
    first, last = (0, row.next_time) if backfill.reverse else (row.next_time, NO_OCCURRENCE)
    return clipped(backfill.spans, first, last)


def spans_passed(row: ScheduleRow) -> tuple[Span, ...]:
    """Return the time ranges that the row of a backfill has run."""
    backfill = row.rule.backfill
    if backfill is None or row.ended:
        return () if backfill is None else backfill.spans
    first, last = (row.next_time + 1, NO_OCCURRENCE) if backfill.reverse else (0, row.next_time - 1)
    return clipped(backfill.spans, first, last)


def clipped(spans: Iterable[Span], first: int, last: int) -> tuple[Span, ...]:
    """Return the parts of the time ranges that are between `first` and `last`, both included."""
    parts = ((max(begin, first), min(end, last)) for begin, end in spans)
    return tuple((begin, end) for begin, end in parts if begin <= end)


def count(rule: Rule, spans: Iterable[Span], dialect: CronDialect) -> int:
    return sum(rule_occurrences.count(rule, first - 1, last, dialect) for first, last in spans)


def uncovered(rule: Rule, first: int, last: int, covered: Iterable[Span], dialect: CronDialect) -> Iterator[Span]:
    """Yield the time ranges from `first` to `last` that contain occurrences of the rule outside of `covered`.

    Each range begins and ends with an occurrence.
    """
    begin = first
    for taken, until in [*sorted(covered), (last + 1, last + 1)]:
        if taken > begin:
            found = rule_occurrences.first_time(rule, begin, dialect)
            if found < taken:
                end = rule_occurrences.last_time(rule, found, taken - 1, dialect)
                yield found, found if end is None else end
        begin = max(begin, until + 1)


def without(span: Span, times: Sequence[int]) -> Iterator[Span]:
    """Yield the parts of a time range that are left when `times` (sorted) are removed."""
    begin, end = span
    for time in times[bisect_left(times, begin) :]:
        if time > end:
            break
        if begin < time:
            yield begin, time - 1
        begin = time + 1
    if begin <= end:
        yield begin, end


def shares(rule: Rule, spans: Sequence[Span], number: int, dialect: CronDialect) -> list[tuple[Span, ...]]:
    """Split the time ranges into up to `number` consecutive parts, and return the parts.

    All parts have about the same number of occurrences, and none is empty.
    """
    total = count(rule, spans, dialect)
    number = min(number, total)
    parts: list[tuple[Span, ...]] = []
    rest = list(spans)
    for place in range(number):
        wanted = total * (place + 1) // number - total * place // number
        part: list[Span] = []
        while wanted:
            first, last = rest.pop(0)
            found = rule_occurrences.count(rule, first - 1, last, dialect)
            if found > wanted:
                end = _nth(rule, first, last, wanted, dialect)
                rest.insert(0, (rule_occurrences.next_time(rule, end, dialect), last))
                last, found = end, wanted
            part.append((first, last))
            wanted -= found
        parts.append(tuple(part))
    return parts


def _nth(rule: Rule, first: int, last: int, number: int, dialect: CronDialect) -> int:
    """Return the occurrence with this number (from 1) in a time range. The range must have that many occurrences."""
    while first < last:
        middle = (first + last) // 2
        found = rule_occurrences.count(rule, first - 1, middle, dialect)
        if found < number:
            first, number = middle + 1, number - found
        else:
            last = middle
    return first


def rule_of_backfill(rule: Rule, schedule: str, spans: tuple[Span, ...], reverse: bool) -> Rule:
    """Return the rule of a row that runs the occurrences of the schedule's `rule` in `spans`.

    This rule has the `start` and the `end` of the time ranges, so it has no later occurrences.
    """
    backfill = Backfill(schedule, spans, reverse)
    return replace(rule, delay=0, spread=0, max_runs=None, start=spans[0][0], end=spans[-1][1], backfill=backfill)
