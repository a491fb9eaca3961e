"""From wall times to instants: what happens to a schedule when clocks are put forward or back. Used wherever cron is.

Every expression means one fixed set of instants, and a next time is the least element past a given one: the same
question always has the same answer, and the latest answers are remembered. A *once* expression (the dialect decides)
maps each matching wall time to one instant: to its first pass, or to the end of the gap it falls in, unless the gap is
3 h or longer, as Debian's cron(8) does. Any other consists of all instants whose wall time matches: none in a gap, two
when the wall time comes twice. Of an hour that begins within a gap (by Lord Howe's clocks, each spring) the dialect
perfectsched sees the rest only when it comes from the hour before, minute by minute.

Two facts about the tz database are relied on, and a test holds them: no zone puts its clock back by more than a day,
and between two changes of one zone lie more than two days.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from psched.cron.expression import parse
from psched.cron.matching import DAY, Expression
from psched.cron.zones import change_between, load_zone, offset_at, offset_of_wall
from psched.errors import ConfigError

EARLIEST = int(datetime(1, 1, 4, tzinfo=UTC).timestamp())
"""Where time begins here; asking for a time before it is asking for this one."""
LATEST = int(datetime(9999, 12, 28, tzinfo=UTC).timestamp())
"""Where it ends: three days from the end of datetime's range, so that no offset and no look-ahead leaves it."""

_SKIPPED_DAY = 3 * 3600
_SETTLED = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp())
"""No zone's rules change after this, so dates and clock changes repeat every 400 years."""
_CYCLE = 400 * 365 * DAY + 97 * DAY

_REMEMBERED = 4096
"""Answers of each kind. Schedules that are due together tend to ask with the same words."""


def next_time(cron: str, after: int, timezone: str, dialect: str = "vixie") -> int:
    """Return the first match strictly after `after`, both in unix seconds.

    Raises:
        ConfigError: the expression, zone or dialect cannot be used (`validate` says the same), or the answer lies past
            the year 9999. An `after` before the year 1 counts as the beginning of the year 1.
    """
    found = _next(cron, after, timezone, dialect)
    if found is None:
        raise ConfigError(f"cron {cron!r}: no match after {after} and before the year 10000; give an earlier time")
    return found


def first_time(cron: str, at: int, timezone: str, dialect: str = "vixie") -> int:
    """Return the first match at or after `at`, both in unix seconds. Raises as `next_time` does."""
    return next_time(cron, at - 1, timezone, dialect)


def last_time(cron: str, after: int, at: int, timezone: str, dialect: str = "vixie") -> int | None:
    """Return the last match after `after` and up to `at`, or None when there is none between.

    It is found by halving, so a span of years costs little more than one of minutes. Raises as `next_time` does.
    """
    expression, zone = parse(cron, dialect), load_zone(timezone)
    low = following(expression, zone, after, at)
    high = at
    while low is not None and low < high:
        middle = (low + high + 1) // 2
        found = following(expression, zone, middle - 1, at)
        low, high = (low, middle - 1) if found is None else (found, high)
    return low


def count(cron: str, after: int, until: int, timezone: str, dialect: str = "vixie") -> int:
    """Return how many matches there are after `after` and up to `until` (unix seconds).

    They are counted by stretches of one offset from UTC, not listed: a year of seconds costs less than a millisecond.
    Raises ConfigError when the expression, the zone or the dialect cannot be used.
    """
    expression, zone = parse(cron, dialect), load_zone(timezone)
    first, last = max(after + 1, EARLIEST), min(until, LATEST)
    number = _count_once if expression.once else _count_in_real_time
    return sum(number(expression, stretch, first, last) for stretch in _stretches(zone, first, last))


def validate(cron: str, timezone: str, dialect: str = "vixie") -> None:
    """Accept what will have matches for ever.

    Raises:
        ConfigError: the expression, the zone or the dialect is wrong, or there is no such date, or all its times fall
            in the hours that the zone's clock changes skip. One line that names the thing and the remedy.
    """
    if not _has_matches(cron, timezone, dialect):
        raise ConfigError(
            f"cron {cron!r} never runs in {timezone}: its only times are those skipped when the clock is put forward; "
            "choose another hour"
        )


@lru_cache(_REMEMBERED)
def _next(cron: str, after: int, timezone: str, dialect: str) -> int | None:
    return following(parse(cron, dialect), load_zone(timezone), after, LATEST)


@lru_cache(_REMEMBERED)
def _has_matches(cron: str, timezone: str, dialect: str) -> bool:
    return following(parse(cron, dialect), load_zone(timezone), _SETTLED, _SETTLED + _CYCLE) is not None


def following(expression: Expression, zone: ZoneInfo, after: int, limit: int) -> int | None:
    """Return the first instant after `after` of the expression's set, or None when that is past `limit`."""
    after = max(after, EARLIEST - 1)
    if after >= limit:
        return None
    search = _next_once if expression.once else _next_by_hours if expression.whole_hours else _next_in_real_time
    found = search(expression, zone, after, limit)
    return found if found is not None and found <= limit else None


def gap_at(zone: ZoneInfo, wall: int) -> tuple[int, int] | None:
    """Return (instant of the change, seconds skipped) when the wall time does not exist, otherwise None."""
    before = offset_of_wall(zone, wall)
    instant = wall - before
    skipped = offset_at(zone, instant) - before
    return (change_between(zone, instant - skipped, instant), skipped) if skipped > 0 else None


def _next_once(expression: Expression, zone: ZoneInfo, after: int, limit: int) -> int | None:
    """Take the wall times in order; their instants never go back."""
    wall = expression.next_wall(after + offset_at(zone, after) + 1)
    while wall is not None and wall <= limit + DAY:
        instant = wall - offset_of_wall(zone, wall)
        gap = gap_at(zone, wall)
        if gap is not None:
            change, skipped = gap
            if skipped < _SKIPPED_DAY:
                return change
            wall = change + offset_at(zone, change)
        elif instant <= after:  # `after` lies in a second pass: these ran in the first
            change = change_between(zone, instant, after)
            wall = change + offset_at(zone, change - 1)
        else:
            return instant
        wall = expression.next_wall(wall)
    return None


def _next_by_hours(expression: Expression, zone: ZoneInfo, after: int, limit: int) -> int | None:
    """Follow the clock, past the rest of an hour whose beginning was skipped, unless the hour before matches, too."""
    found = _next_in_real_time(expression, zone, after, limit)
    while found is not None:
        end = _end_of_cut_hour(expression, zone, found)
        if end is None:
            return found
        found = _next_in_real_time(expression, zone, end - 1, limit)
    return None


def _end_of_cut_hour(expression: Expression, zone: ZoneInfo, instant: int) -> int | None:
    """Return when the hour of a match ends if it is one that is passed over, otherwise None."""
    offset = offset_at(zone, instant)
    passed = (instant + offset) % 3600
    if offset_at(zone, instant - passed) == offset:
        return None
    gap = gap_at(zone, instant + offset - passed)
    if gap is None:
        return None
    last = gap[0] - 1
    hour_before = (last + offset_at(zone, last)) // 3600 % 24
    return None if hour_before in expression.hours else instant - passed + 3600


def _next_in_real_time(expression: Expression, zone: ZoneInfo, after: int, limit: int) -> int | None:
    """Follow the clock from change to change.

    Only a change within a day of `start` can bring back wall times that were matched already, since no clock is put
    back further. Changes later than that, but before the match, therefore only shift the match itself.
    """
    start = after + 1
    while start <= limit:
        offset = offset_at(zone, start)
        wall = expression.next_wall(start + offset)
        if wall is None:
            return None
        instant = wall - offset
        seen = min(instant, start + DAY)
        if offset_at(zone, seen) != offset:
            start = change_between(zone, start, seen)
            continue
        if seen == instant:
            return instant
        if wall > limit + DAY:
            return None
        gap = gap_at(zone, wall)
        if gap is None:
            return wall - offset_of_wall(zone, wall)
        start = gap[0]
    return None


class _Stretch(NamedTuple):
    """Instants from `begin` to `end`, both included, with one `offset`. `before`: the offset until `begin`."""

    begin: int
    end: int
    offset: int
    before: int


def _stretches(zone: ZoneInfo, first: int, last: int) -> Iterator[_Stretch]:
    """Yield the stretches that cover `first` to `last`, from a day earlier on: a change there may matter at `first`."""
    if first > last:
        return
    begin = seen = first - DAY
    before = offset = offset_at(zone, begin)
    while seen < last:
        then = min(seen + DAY, last)
        if offset_at(zone, then) == offset:
            seen = then
            continue
        change = change_between(zone, seen, then)
        yield _Stretch(begin, change - 1, offset, before)
        begin, seen, before, offset = change, change, offset, offset_at(zone, change)
    yield _Stretch(begin, last, offset, before)


def _count_in_real_time(expression: Expression, stretch: _Stretch, first: int, last: int) -> int:
    begin, end = max(stretch.begin, first), min(stretch.end, last)
    return expression.count_walls(begin + stretch.offset, end + stretch.offset)


def _count_once(expression: Expression, stretch: _Stretch, first: int, last: int) -> int:
    """Count wall times at their first pass, and at the end of a gap those in it as one."""
    begin, end = max(stretch.begin, first), min(stretch.end, last)
    shown = stretch.begin + stretch.before  # the first wall time that the clock had not shown when it was changed
    low = max(begin + stretch.offset, shown)
    count = expression.count_walls(low, end + stretch.offset)
    if begin == stretch.begin and 0 < stretch.offset - stretch.before < _SKIPPED_DAY:
        here = begin + stretch.offset
        in_gap = expression.count_walls(shown, here - 1) > 0
        count += in_gap and not expression.count_walls(here, here)
    return count
