"""Occurrences of a cron expression in a time zone: next, last, count and preview, with clock changes.

When a clock is put forward, some wall times do not exist: they are in a *gap*. When a clock is put back, some wall
times occur twice.

- A *once* expression (`Expression.once`) runs once for each matching wall time, as in Debian's cron(8). A time that
  occurs twice runs at its first pass. A time in a gap runs at the end of the gap, or not at all if the gap is 3 h or
  longer.
- Any other expression matches each instant whose wall time matches: no instant in a gap, and two instants for a
  time that occurs twice.
- The dialect perfectsched has an exception for an hour that begins within a gap (Lord Howe Island, each spring). The
  rest of that hour only matches if the hour before matches, too.

This module relies on two facts about the tz database, which a test checks: no zone puts its clock back by more than a
day, and two changes of one zone are more than two days apart.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from psched.cron.every_and_at import Interval, Moment
from psched.cron.expression import DAY, CronDialect, Expression, Timetable, parse
from psched.cron.zones import change_between, load_zone, offset_at, offset_of_wall
from psched.errors import ConfigError
from psched.time_text import local_time

EARLIEST = int(datetime(1, 1, 4, tzinfo=UTC).timestamp())
"""The first instant. Earlier instants are treated as this instant."""
LATEST = int(datetime(9999, 1, 1, tzinfo=UTC).timestamp()) - 1
"""The last instant. An occurrence after this instant is never due. With any offset or look-ahead added, the instant is
still in the range of datetime."""

_SKIPPED_DAY = 3 * 3600
"""Seconds. Times in a gap of this length or more are skipped. Times in a shorter gap run at the end of the gap."""
_LAST_CHANGE = int(datetime(2100, 1, 1, tzinfo=UTC).timestamp())
"""After this instant no zone changes its rules, so dates and clock changes repeat every 400 years (`_CYCLE`)."""
_CYCLE = 400 * 365 * DAY + 97 * DAY

_CACHED = 4096
"""How many results each function caches. Schedules that are due at the same time often have the same expression."""


def next_time(cron: str, after: int, timezone: str, dialect: CronDialect = "vixie") -> int:
    """Return the first match after `after`, both in unix seconds.

    Raises ConfigError if the expression, zone or dialect is not valid, or if there is no later match before the year
    9999.
    """
    found = next_match(cron, after, timezone, dialect)
    if found is None:
        raise ConfigError(
            f"cron {cron!r}: no match after {local_time(after)} and before the year 9999; give an earlier time"
        )
    return found


def first_time(cron: str, at: int, timezone: str, dialect: CronDialect = "vixie") -> int:
    """Return the first match at or after `at`, both in unix seconds. Raises like `next_time`."""
    return next_time(cron, at - 1, timezone, dialect)


def last_time(cron: str, after: int, at: int, timezone: str, dialect: CronDialect = "vixie") -> int | None:
    """Return the last match after `after` and up to `at`, by binary search. Raises like `next_time`."""
    expression, zone = parse(cron, dialect), load_zone(timezone)
    low = following(expression, zone, after, at)
    high = at
    while low is not None and low < high:
        middle = (low + high + 1) // 2
        found = following(expression, zone, middle - 1, at)
        low, high = (low, middle - 1) if found is None else (found, high)
    return low


def count(cron: str, after: int, until: int, timezone: str, dialect: CronDialect = "vixie") -> int:
    """Return how many matches there are after `after` and up to `until` (unix seconds). Raises ConfigError.

    Counts periods with a constant UTC offset, without listing matches: a year of seconds takes less than a millisecond.
    """
    timetable, zone = parse(cron, dialect), load_zone(timezone)
    first, last = max(after + 1, EARLIEST), min(until, LATEST)
    if not isinstance(timetable, Expression):
        return timetable.count(zone, first, last)
    return sum(_count_in(stretch, timetable, zone, first) for stretch in _stretches(zone, first, last))


def matches(cron: str, after: int, until: int, timezone: str, dialect: CronDialect = "vixie") -> Iterator[int]:
    """Yield the matches after `after` and up to `until` (unix seconds). Raises ConfigError.

    While no clock changes, a match takes a fraction of a microsecond. A call of `next_time` takes some 20 µs.
    """
    timetable, zone = parse(cron, dialect), load_zone(timezone)
    first, last = max(after + 1, EARLIEST), min(until, LATEST)
    if isinstance(timetable, Expression):
        offset = _steady_offset(zone, first // DAY - 1, last // DAY + 1)
        if offset is not None:
            yield from (wall - offset for wall in timetable.walls(first + offset, last + offset))
            return
    time = first - 1
    while (found := following(timetable, zone, time, last)) is not None:
        yield found
        time = found


@lru_cache(_CACHED)
def _steady_offset(zone: ZoneInfo, first: int, last: int) -> int | None:
    """Return the UTC offset from day `first` to day `last` (days since 1970); None if the offset changes."""
    if not EARLIEST // DAY < first <= last < LATEST // DAY:
        return None
    offsets = {offset_at(zone, day * DAY) for day in range(first, last + 2)}
    return offsets.pop() if len(offsets) == 1 else None


@lru_cache(_CACHED)
def validate(cron: str, timezone: str, dialect: CronDialect = "vixie") -> None:
    """Raise ConfigError unless the expression matches again and again. `@at`, which matches once, is accepted.

    The error is one line with the remedy. Causes: the expression, the zone or the dialect is not valid, the date never
    exists, or clock changes skip all matching times.
    """
    if isinstance(parse(cron, dialect), Moment):
        load_zone(timezone)
    elif next_match(cron, _LAST_CHANGE, timezone, dialect, _LAST_CHANGE + _CYCLE) is None:
        raise ConfigError(
            f"cron {cron!r} never runs in {timezone}: its only times are those skipped when the clock is put forward; "
            "choose another hour"
        )


@lru_cache(_CACHED)
def next_match(cron: str, after: int, timezone: str, dialect: CronDialect, limit: int = LATEST) -> int | None:
    """Return the first match after `after` and up to `limit`, or None. Raises like `next_time`."""
    return following(parse(cron, dialect), load_zone(timezone), after, limit)


def following(timetable: Timetable, zone: ZoneInfo, after: int, limit: int) -> int | None:
    """Return the first match after `after`, or None if that match is after `limit`."""
    after = max(after, EARLIEST - 1)
    if after >= limit:
        return None
    if isinstance(timetable, Expression):
        search = _next_once if timetable.once else _next_by_hours if timetable.whole_hours else _next_in_real_time
        found = search(timetable, zone, after, limit)
    else:
        found = timetable.following(zone, after)
    return found if found is not None and found <= limit else None


def gap_at(zone: ZoneInfo, wall: int) -> tuple[int, int] | None:
    """Return the instant of the clock change and the skipped seconds if the wall time is in a gap, else None."""
    before = offset_of_wall(zone, wall)
    instant = wall - before
    skipped = offset_at(zone, instant) - before
    return (change_between(zone, instant - skipped, instant), skipped) if skipped > 0 else None


def _next_once(expression: Expression, zone: ZoneInfo, after: int, limit: int) -> int | None:
    """Return the next match. Tries matching wall times in order, because a later wall time has no earlier instant."""
    wall = expression.next_wall(after + offset_at(zone, after) + 1)
    while wall is not None and wall <= limit + DAY:
        instant = wall - offset_of_wall(zone, wall)
        gap = gap_at(zone, wall)
        if gap is not None:
            change, skipped = gap
            if skipped < _SKIPPED_DAY:
                return change
            wall = change + offset_at(zone, change)
        elif instant <= after:  # `after` is in the second pass of wall times that ran in their first pass
            change = change_between(zone, instant, after)
            wall = change + offset_at(zone, change - 1)
        else:
            return instant
        wall = expression.next_wall(wall)
    return None


def _next_by_hours(expression: Expression, zone: ZoneInfo, after: int, limit: int) -> int | None:
    """Return the next match, like `_next_in_real_time`, but with the exception of the dialect perfectsched.

    If an hour begins in a gap, the rest of the hour only matches if the hour before matches, too.
    """
    found = _next_in_real_time(expression, zone, after, limit)
    while found is not None:
        end = _end_of_cut_hour(expression, zone, found)
        if end is None:
            return found
        found = _next_in_real_time(expression, zone, end - 1, limit)
    return None


def _end_of_cut_hour(expression: Expression, zone: ZoneInfo, instant: int) -> int | None:
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
    """Return the next instant whose wall time matches. Each step searches from one clock change to the next.

    Only a change within a day after the start of a step can repeat wall times that have already matched, because no
    clock is put back by more than a day. A later change before the match only shifts the match.
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
    """Instants from `begin` to `end`, both included, with the same `offset`. `before`: the offset before `begin`."""

    begin: int
    end: int
    offset: int
    before: int


def _stretches(zone: ZoneInfo, first: int, last: int) -> Iterator[_Stretch]:
    """Yield the stretches between clock changes, from a day before `first` to `last`.

    A clock change in the day before `first` may affect `first`.
    """
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


def _count_in(stretch: _Stretch, expression: Expression, zone: ZoneInfo, first: int) -> int:
    """Return how many matches at or after `first` are in `stretch`."""
    begin = max(stretch.begin, first)
    if expression.whole_hours and (cut := _end_of_cut_hour(expression, zone, stretch.begin)) is not None:
        begin = max(begin, cut)
    here, end = begin + stretch.offset, stretch.end + stretch.offset
    if not expression.once:
        return expression.count_walls(here, end)
    shown = stretch.begin + stretch.before  # the first wall time that the clock had not shown before the change
    count = expression.count_walls(max(here, shown), end)
    if begin == stretch.begin and 0 < stretch.offset - stretch.before < _SKIPPED_DAY:
        in_gap = expression.count_walls(shown, here - 1) > 0
        count += in_gap and not expression.count_walls(here, here)
    return count


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A match at `time` (unix seconds).

    `note`: text about a clock change that affects the match, or that skips times before the match; often empty.
    """

    time: int
    note: str


def occurrences(cron: str, at: int, timezone: str, n: int, dialect: CronDialect = "vixie") -> list[Occurrence]:
    """Return the first `n` matches at or after `at` (unix seconds), or fewer if there are no more.

    Raises ConfigError.
    """
    timetable, zone = parse(cron, dialect), load_zone(timezone)
    found: list[Occurrence] = []
    before = at - 1
    for _ in range(n):
        time = next_match(cron, before, timezone, dialect)
        if time is None:
            break
        found.append(Occurrence(time, note_of(timetable, zone, before, time)))
        before = time
    return found


def note_of(timetable: Timetable, zone: ZoneInfo, before: int, time: int) -> str:
    """Return text about a clock change that affects the match at `time`, often empty. `before`: the previous match."""
    if isinstance(timetable, Interval):
        return ""
    if isinstance(timetable, Moment):
        is_in_gap = gap_at(zone, timetable.wall) is not None
        return f"runs late: {_clock(timetable.wall)} does not exist" if is_in_gap else _repeated(True, zone, time)
    expression = timetable
    return "; ".join(filter(None, (_missing(expression, zone, before, time), _repeated(expression.once, zone, time))))


def _missing(expression: Expression, zone: ZoneInfo, before: int, time: int) -> str:
    """Describe the matching wall times in a gap: skipped before `time`, or run late at `time`. Often empty."""
    here = time + offset_at(zone, time)
    before = max(before, EARLIEST - 1)
    wall = expression.next_wall(before + offset_at(zone, before) + 1)
    if wall is None or wall >= here or (gap := gap_at(zone, wall)) is None:
        return ""
    change, skipped = gap
    if expression.once and change == time:
        return f"runs late: {_clock(wall)} does not exist"
    end = change + offset_at(zone, change)
    further = expression.next_wall(wall + 1)
    more = " and later" if further is not None and further < end else ""
    target = _clock(end, day=end // DAY != wall // DAY)
    return f"skipped {_clock(wall, day=True)}{more}: the clock jumps from {_clock(end - skipped)} to {target}"


def _repeated(once: bool, zone: ZoneInfo, time: int) -> str:
    wall = time + offset_at(zone, time)
    first, second = (wall - offset_of_wall(zone, wall, fold) for fold in (0, 1))
    if second <= first:
        return ""
    if once:
        return f"runs once, though {_clock(wall)} comes twice"
    span = "hour" if second - first == 3600 else f"{(second - first) // 60} minutes"
    return f"second pass of the repeated {span}" if time == second else ""


def _clock(wall: int, day: bool = False) -> str:
    moment = datetime(1970, 1, 1) + timedelta(seconds=wall)
    clock = moment.strftime("%H:%M:%S" if moment.second else "%H:%M")
    return f"{moment:%Y-%m-%d} {clock}" if day else clock
