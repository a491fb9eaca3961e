"""The occurrences of a rule. All other modules compute due times with these functions. Times are unix seconds."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from datetime import date, datetime, timedelta
from functools import lru_cache

from psched import cron
from psched.calendar_check import WEEKDAYS
from psched.cron import CronDialect
from psched.cron.expression import parse
from psched.cron.occurrences import matches, next_match, note_of
from psched.cron.zones import load_zone, offset_of_wall
from psched.model import NO_OCCURRENCE, Calendar, Rule

_MOST_EXCLUDED = 20_000
"""If the calendars exclude this many matching days in a row, the rule is taken to have no further occurrence."""
_DAY = timedelta(days=1)


def next_time(rule: Rule, after: int, dialect: CronDialect) -> int:
    """Return the first occurrence after `after`, or `NO_OCCURRENCE`. Raises ConfigError if the rule is not valid."""
    if rule.start is rule.end is None and not rule.exclude:
        found = next_match(rule.cron, after, rule.timezone, dialect)
        return NO_OCCURRENCE if found is None else found
    first, last = _bounds(rule, after, NO_OCCURRENCE)
    for _ in range(_MOST_EXCLUDED):
        found = next_match(rule.cron, first, rule.timezone, dialect)
        if found is None or found > last:
            break
        if not rule.exclude or _excluding(rule, day := _day_of(rule, found)) is None:
            return found
        first = _span_of(rule, day)[1]
    return NO_OCCURRENCE


def first_time(rule: Rule, at: float, dialect: CronDialect) -> int:
    """Return the first occurrence at or after `at`. Raises like `next_time`."""
    return next_time(rule, math.ceil(at) - 1, dialect)


def last_time(rule: Rule, after: int, at: int, dialect: CronDialect) -> int | None:
    """Return the last occurrence after `after` and up to `at`, or None. Raises like `next_time`."""
    first, last = _bounds(rule, after, at)
    while True:
        found = cron.last_time(rule.cron, first, last, rule.timezone, dialect)
        if found is None or not rule.exclude or _excluding(rule, day := _day_of(rule, found)) is None:
            return found
        last = _span_of(rule, day)[0] - 1


def count(rule: Rule, after: int, until: int, dialect: CronDialect) -> int:
    """Return how many occurrences there are after `after` and up to `until`. Raises like `next_time`."""
    first, last = _bounds(rule, after, until)
    found = cron.count(rule.cron, first, last, rule.timezone, dialect)
    if found and rule.exclude:
        for begin, end in _excluded_spans(rule, first + 1, last):
            found -= cron.count(rule.cron, max(begin - 1, first), min(end, last), rule.timezone, dialect)
    return found


def listed(rule: Rule, after: int, until: int, dialect: CronDialect) -> Iterator[int]:
    """Yield the occurrences after `after` and up to `until`. Raises like `next_time`."""
    first, last = _bounds(rule, after, until)
    for time in matches(rule.cron, first, last, rule.timezone, dialect):
        if not rule.exclude or _excluding(rule, _day_of(rule, time)) is None:
            yield time


def times(rule: Rule, at: int, number: int, dialect: CronDialect) -> Iterator[int]:
    """Yield the first `number` occurrences at or after `at`, or fewer if there are no more. Raises like `next_time`."""
    time = at - 1
    for _ in range(number):
        time = next_time(rule, time, dialect)
        if time == NO_OCCURRENCE:
            break
        yield time


@lru_cache(4096)
def plain(rule: Rule) -> Rule:
    """Return the rule without the options that only delay its runs or limit their number."""
    return replace(rule, delay=0, spread=0, max_runs=None)


def validate(rule: Rule, dialect: CronDialect) -> None:
    """Raise ConfigError, with the remedy, if the occurrences of the rule cannot be computed."""
    cron.validate(rule.cron, rule.timezone, dialect)


def restrictions(rule: Rule) -> Iterator[str]:
    """Yield texts about the parts of a rule, besides its expression, that limit its occurrences or move its runs."""
    if rule.start is not None:
        yield f"not before {local_text(rule, rule.start)}"
    if rule.end is not None:
        yield f"not after {local_text(rule, rule.end)}"
    if rule.exclude:
        yield f"not on days of {', '.join(each.name for each in rule.exclude)}"
    if rule.max_runs is not None:
        yield "once" if rule.max_runs == 1 else f"{rule.max_runs} times at the most"
    if rule.spread:
        yield f"spread over {rule.spread:g} s"


def why_not(rule: Rule, time: int) -> str | None:
    """Return why a time that matches the rule's expression is not an occurrence; None if it is an occurrence."""
    if rule.start is not None and time < rule.start:
        return f"the schedule starts {local_text(rule, rule.start)}"
    if rule.end is not None and time > rule.end:
        return f"the schedule ended {local_text(rule, rule.end)}"
    if rule.exclude and (calendar := _excluding(rule, day := _day_of(rule, time))) is not None:
        return f"{day:%a %Y-%m-%d} is a day of the calendar {calendar.name!r} (version {calendar.version})"
    return None


def clock_note(rule: Rule, before: int, time: int, dialect: CronDialect) -> str:
    """Return what a clock change does to the occurrence at `time`; often an empty string.

    `before`: the previous occurrence.
    """
    if rule.exclude:  # a clock change on an excluded day has no effect
        last = cron.last_time(rule.cron, before, time - 1, rule.timezone, dialect)
        before = before if last is None else last
    return note_of(parse(rule.cron, dialect), load_zone(rule.timezone), before, time)


def _day_of(rule: Rule, time: int) -> date:
    return datetime.fromtimestamp(time, load_zone(rule.timezone)).date()


def _span_of(rule: Rule, day: date) -> tuple[int, int]:
    """Return the first and the last instant of a date, in the time zone of the rule."""
    zone = load_zone(rule.timezone)
    begin, end = (wall - offset_of_wall(zone, wall) for wall in (_wall(day), _wall(day + _DAY)))
    return begin, end - 1


def _wall(day: date) -> int:
    return (day - date(1970, 1, 1)).days * 86400


def _excluding(rule: Rule, day: date) -> Calendar | None:
    text, weekday = day.isoformat(), WEEKDAYS[day.weekday()]
    for calendar in rule.exclude:
        place = bisect_left(calendar.dates, text)
        if weekday in calendar.weekdays or calendar.dates[place : place + 1] == (text,):
            return calendar
    return None


def _excluded_spans(rule: Rule, first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield the first and the last instant of each excluded day between two instants."""
    if first > last:
        return
    begin, end = _day_of(rule, first), _day_of(rule, last)
    if any(calendar.weekdays for calendar in rule.exclude):
        days = [begin + number * _DAY for number in range((end - begin).days + 1)]
    else:
        texts = {text for calendar in rule.exclude for text in calendar.dates}
        days = sorted(day for day in map(date.fromisoformat, texts) if begin <= day <= end)
    yield from (_span_of(rule, day) for day in days if _excluding(rule, day) is not None)


def local_text(rule: Rule, seconds: float) -> str:
    """Return a time as a date, in the time zone of the rule."""
    return f"{datetime.fromtimestamp(seconds, load_zone(rule.timezone)):%Y-%m-%d %H:%M:%S %Z}"


def _bounds(rule: Rule, after: int, until: int) -> tuple[int, int]:
    """Return `after` and `until`, narrowed by the rule's `start` and `end`."""
    first = after if rule.start is None else max(after, math.ceil(rule.start) - 1)
    return first, until if rule.end is None else min(until, math.floor(rule.end))
