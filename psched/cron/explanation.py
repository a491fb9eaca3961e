"""Explains in English what a cron expression means, and why a date or time matches it or does not."""

from __future__ import annotations

from calendar import day_name, month_name, monthrange
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import product
from zoneinfo import ZoneInfo

from psched.cron.every_and_at import Interval, Moment
from psched.cron.expression import CronDialect, DayRule, Fields, Timetable, fields_of, parse
from psched.cron.occurrences import Occurrence, following, gap_at, note_of
from psched.cron.zones import load_zone, offset_of_wall

_EPOCH = datetime(1970, 1, 1)
_MANY = 4
"""The maximum number of times of the day, or of evenly spaced values of a field, that are listed one by one."""
_WEEKDAYS = [day_name[(number - 1) % 7] for number in range(7)]
"""The days of the week, beginning with Sunday as in cron."""
_MONTHS = list(month_name)
_ORDINALS = {1: "first", 2: "second", 3: "third", 4: "fourth", 5: "fifth", -1: "last"}


@dataclass(frozen=True, slots=True)
class DateVerdict:
    """Whether a date or time matches an expression, and why. `occurrences`: all occurrences on that date."""

    matches: bool
    reasons: tuple[str, ...]
    occurrences: tuple[Occurrence, ...] = ()


def in_words(cron: str, dialect: CronDialect = "vixie") -> str:
    """Return an English phrase such as "at 09:00 from Monday to Friday". Raises ConfigError like `parse`."""
    timetable = parse(cron, dialect)
    if isinstance(timetable, Interval):
        after = f", {_span(timetable.phase)} after the full interval" if timetable.phase else ""
        return f"every {_span(timetable.seconds, one='')}{after}, counted from 1970-01-01 00:00 UTC"
    if isinstance(timetable, Moment):
        return f"once, at {timetable}"
    read = fields_of(cron, dialect)
    return " ".join(filter(None, (_times(read), _days(read), _months(read))))


def why(cron: str, timezone: str, at: date, dialect: CronDialect = "vixie") -> DateVerdict:
    """Return whether `at` matches in `timezone`, and why. A `datetime` is a wall time.

    Raises ConfigError like `parse` and `load_zone`.
    """
    timetable, zone = parse(cron, dialect), load_zone(timezone)
    reasons = list(_mismatches(cron, timetable, at, dialect))
    first, last = day_in(timezone, at)
    found: list[Occurrence] = []
    instant = following(timetable, zone, first - 1, last)
    while instant is not None:
        found.append(Occurrence(instant, note_of(timetable, zone, found[-1].time if found else first - 1, instant)))
        instant = following(timetable, zone, instant, last)
    if not isinstance(timetable, Interval):
        reasons += _clock_changes(zone, at, isinstance(timetable, Moment) or timetable.once, bool(reasons))
    is_due = bool(found)
    if isinstance(at, datetime):
        instants = {_wall(at) - offset_of_wall(zone, _wall(at), fold) for fold in (0, 1)}
        is_due = gap_at(zone, _wall(at)) is None and any(each.time in instants for each in found)
    if isinstance(timetable, Interval) and not is_due:
        asked = _instant(zone, at.replace(tzinfo=None)) if isinstance(at, datetime) else first
        following_one = timetable.following(zone, asked - 1)
        reasons.append(f"the next occurrence is {datetime.fromtimestamp(following_one, zone):%Y-%m-%d %H:%M:%S %Z}")
    return DateVerdict(is_due, tuple(reasons), tuple(found))


def _mismatches(cron: str, timetable: Timetable, at: date, dialect: CronDialect) -> Iterator[str]:
    if isinstance(timetable, Interval):
        return
    if isinstance(timetable, Moment):
        wall = _EPOCH + timedelta(seconds=timetable.wall)
        if at != (wall if isinstance(at, datetime) else wall.date()):
            yield f"the only occurrence is {timetable}"
        return
    read = fields_of(cron, dialect)
    yield from _date_mismatches(read, at.date() if isinstance(at, datetime) else at)
    if isinstance(at, datetime):
        yield from _time_mismatches(read, at)


def day_in(timezone: str, at: date) -> tuple[int, int]:
    """Return the first and the last instant of the date of `at` in a time zone."""
    zone = load_zone(timezone)
    begin = datetime(at.year, at.month, at.day)
    return _instant(zone, begin), _instant(zone, begin + timedelta(days=1)) - 1


def _wall(at: datetime) -> int:
    return int((at - _EPOCH).total_seconds())


def _instant(zone: ZoneInfo, wall: datetime) -> int:
    return _wall(wall) - offset_of_wall(zone, _wall(wall))


def _date_mismatches(read: Fields, day: date) -> Iterator[str]:
    if day.month not in read.months:
        yield f"the month is {month_name[day.month]}, the expression wants {_listed(read.months, _MONTHS)}"
    rule, length, weekday = read.days, monthrange(day.year, day.month)[1], (day.weekday() + 1) % 7
    by_day, by_weekday = rule.fits_day(day.day, length), rule.fits_weekday(day.day, weekday, length)
    of_day = f"the date is day {day.day} of the month, the expression wants {_month_days(rule)}"
    of_weekday = f"the date is a {_WEEKDAYS[weekday]}, the expression wants {_weekdays(rule)}"
    if rule.needs_both:
        if not by_day:
            yield of_day
        if not by_weekday:
            yield of_weekday
    elif not by_day and not by_weekday:
        yield f"{of_day} or {_weekdays(rule)}; the date is a {_WEEKDAYS[weekday]}"


def _time_mismatches(read: Fields, at: datetime) -> Iterator[str]:
    fields = (("hour", at.hour, read.hours), ("minute", at.minute, read.minutes), ("second", at.second, read.seconds))
    for name, value, wanted in fields:
        if value not in wanted:
            yield f"the {name} is {value}, the expression wants {_listed(wanted)}"


def _clock_changes(zone: ZoneInfo, at: date, once: bool, mismatches: bool) -> Iterator[str]:
    if not isinstance(at, datetime) or mismatches:
        return
    wall = _wall(at)
    if (gap := gap_at(zone, wall)) is not None:
        then = "the occurrence comes when the clock has jumped" if once else "the occurrence is skipped"
        yield f"{at:%H:%M} does not exist on that day, because the clock jumps ahead by {gap[1] // 60} minutes; {then}"
    elif offset_of_wall(zone, wall, fold=1) != offset_of_wall(zone, wall):
        then = "only the first time is an occurrence" if once else "both times are occurrences"
        yield f"{at:%H:%M} comes twice on that day, as the clock is set back; {then}"


def _times(read: Fields) -> str:
    seconds, minutes, hours, _, _ = read
    if len(seconds) * len(minutes) * len(hours) <= _MANY:
        clocks = [time(*clock) for clock in product(hours, minutes, seconds)]
        return f"at {_joined([each.isoformat('auto' if each.second else 'minutes') for each in clocks])}"
    if list(seconds) == [0]:
        return _minutes(minutes, hours)
    every = _step(seconds, 60)
    of_seconds = f"every {_counted(every, 'second')}" if every else f"at {_numbered('second', seconds)}"
    if every and len(minutes) == 60 and len(hours) == 24:
        return of_seconds
    of_minutes = _minutes(minutes, hours)
    return f"{of_seconds} of {of_minutes.removeprefix('at ')}"


def _minutes(minutes: Sequence[int], hours: Sequence[int]) -> str:
    every = _step(minutes, 60)
    if every:
        of_hours = "" if len(hours) == 24 else f" of {_numbered('hour', hours)}"
        return f"every {_counted(every, 'minute')}{of_hours}"
    every_hour = _step(hours, 24)
    if every_hour:
        return f"at {_numbered('minute', minutes)} of every {_counted(every_hour, 'hour')}"
    if len(minutes) == 1 and len(hours) == hours[-1] - hours[0] + 1:
        return f"every hour from {hours[0]:02}:{minutes[0]:02} to {hours[-1]:02}:{minutes[0]:02}"
    return f"at {_numbered('minute', minutes)} of {_numbered('hour', hours)}"


def _days(read: Fields) -> str:
    rule = read.days
    any_day, any_weekday = rule.day == "*", rule.weekday == "*" or rule.ignores_weekday
    if any_day and any_weekday:
        return "every day" if len(read.seconds) * len(read.minutes) * len(read.hours) <= _MANY else ""
    if any_weekday:
        return f"on {_month_days(rule)}"
    if any_day:
        return _in_range("on", _weekdays(rule))
    return f"on {_month_days(rule)} {'if it is' if rule.needs_both else 'or on'} {_weekdays(rule)}"


def _month_days(rule: DayRule) -> str:
    last = ["the last day of the month"] if rule.last_day else []
    if not rule.days:
        return last[0]
    if len(rule.days) == 31:
        return "any day of the month"
    days = f"{_numbered('day', rule.days)} of the month"
    return " or ".join([days, *last])


def _weekdays(rule: DayRule) -> str:
    if len(rule.weekdays) == 7:
        return "any day of the week"
    named = [_listed(rule.weekdays, _WEEKDAYS)] if rule.weekdays else []
    return _joined(
        [
            *named,
            *(f"the {_ORDINALS[n]} {_WEEKDAYS[weekday]} of the month" for weekday, n in sorted(rule.nth_weekdays)),
        ],
        "or",
    )


def _months(read: Fields) -> str:
    return "" if len(read.months) == 12 else _in_range("in", _listed(read.months, _MONTHS))


def _step(values: Sequence[int], size: int) -> int | None:
    """Return the step if `values` are 0, one step, two steps and so on, and the next would be `size`.

    Return None for other values, and for a single value.
    """
    step = size // len(values)
    return (
        step if len(values) > 1 and size % len(values) == 0 and tuple(values) == tuple(range(0, size, step)) else None
    )


def _span(seconds: int, one: str = "1 ") -> str:
    """Return text such as "5 minutes", in the largest unit without remainder. `one`: the text for the number 1."""
    units = ((86400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))
    size, unit = next(each for each in units if seconds % each[0] == 0)
    return f"{one}{unit}" if seconds == size else f"{seconds // size} {unit}s"


def _counted(number: int, unit: str) -> str:
    return unit if number == 1 else f"{number} {unit}s"


def _numbered(unit: str, values: Collection[int]) -> str:
    return f"{unit}{'s' if len(values) > 1 else ''} {_listed(values)}"


def _in_range(preposition: str, words: str) -> str:
    """Return `words` after "from" if they are a single range, such as "Monday to Friday", else after `preposition`."""
    is_range = " to " in words and " and " not in words and " or " not in words
    return f"{'from' if is_range else preposition} {words}"


def _listed(values: Collection[int], names: Sequence[str] | None = None) -> str:
    """Return text such as "1, 3 to 6 and 9". Only three or more consecutive values are listed as a range."""
    ordered = sorted(values)
    step = ordered[1] - ordered[0] if len(ordered) > _MANY else 1
    if step > 1 and names is None and ordered == list(range(ordered[0], ordered[-1] + 1, step)):
        return f"{ordered[0]}, {ordered[1]}, {ordered[2]}, … and {ordered[-1]}"
    words: list[str] = []
    for run in consecutive(ordered):
        named = [str(value) if names is None else names[value] for value in run]
        words += named if len(run) < 3 else [f"{named[0]} to {named[-1]}"]
    return _joined(words)


def consecutive(ordered: Sequence[int]) -> list[list[int]]:
    """Split sorted values into groups of consecutive values: 1, 2, 4 into [1, 2] and [4]."""
    runs: list[list[int]] = []
    for value in ordered:
        if runs and runs[-1][-1] == value - 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return runs


def _joined(words: Sequence[str], last: str = "and") -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
