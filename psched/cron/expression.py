"""Parses cron expressions, with one-line errors, and matches them against wall times.

croniter only expands single terms of a list, such as `1-5/2` or `fri`, after this module has checked them. croniter
misreads some whole expressions: `8-8` as "every", `22-2` as a range over midnight, `6,1#3` without the 6.

A wall time is an int: seconds since 1970-01-01 00:00 in local time, without a time zone.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from calendar import month_name, monthrange
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import MAXYEAR, date
from functools import lru_cache
from itertools import islice, product
from typing import Literal, NamedTuple, get_args

from croniter import CroniterError, croniter
from croniter.croniter import DOW_ALPHAS, M_ALPHAS

from psched.cron import every_and_at
from psched.cron.every_and_at import Interval, Moment, TimetableSyntaxError
from psched.error_messages import did_you_mean
from psched.errors import ConfigError

CronDialect = Literal["vixie", "perfectsched"]
DIALECTS: tuple[CronDialect, ...] = get_args(CronDialect)
"""The dialects: rules for days, steps and clock changes, as in Debian's cron (`vixie`), or as in PerfectSched (Ruby).
"""
MAX_LENGTH = 128
"""The maximum number of characters of an expression, as in the tables of PerfectSched."""

DAY = 86400

_EPOCH = date(1970, 1, 1).toordinal()
_LAST = -1
"""The number n that means "the last" in "the nth weekday of a month"."""
_MONTHS_OF_28_YEARS = 28 * 12
"""The number of months in 28 years. In this time every month begins with every weekday, in common and in leap years."""

MonthDays = Mapping[tuple[int, int], tuple[int, ...]]
"""The matching days for every kind of month. The key has the weekday of the month's first day, from 0 for Monday, and
the number of days of the month."""


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A parsed cron expression. `psched.cron.occurrences` explains `once` and `whole_hours`."""

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    """Minutes of the day, not of the hour."""
    hours: frozenset[int]
    months: frozenset[int]
    month_days: MonthDays
    once: bool
    whole_hours: bool = False

    def ever_matches(self) -> bool:
        """Return whether any date of any year matches."""
        return any(days for _, days in islice(self._months_from(0), _MONTHS_OF_28_YEARS))

    def next_wall(self, wall: int) -> int | None:
        """Return the first matching wall time at or after `wall`; None if there is none until the year 9999."""
        day, second = divmod(wall, DAY)
        passed = self._count_times(second - 1)
        if passed == len(self.minutes) * len(self.seconds):
            day, passed = day + 1, 0
        found = self._day_from(day)
        return None if found is None else found * DAY + self._time(passed if found == day else 0)

    def count_walls(self, low: int, high: int) -> int:
        """Return the number of matching wall times from `low` to `high`, both included.

        The cost grows with the number of months.
        """
        if low > high:
            return 0
        (first, begin), (last, end) = divmod(low, DAY), divmod(high, DAY)
        count = self._count_days(first, last) * self._count_times(DAY - 1)
        if begin and self._count_days(first, first):
            count -= self._count_times(begin - 1)
        if self._count_days(last, last):
            count -= self._count_times(DAY - 1) - self._count_times(end)
        return count

    def walls(self, low: int, high: int) -> Iterator[int]:
        """Yield the matching wall times from `low` to `high`, both included, in order."""
        first, last = low // DAY, high // DAY
        for before, days in self._months_from(first):
            if before >= last:
                return
            for midnight in ((before + day) * DAY for day in days if first <= before + day <= last):
                for minute in self.minutes:
                    begin = midnight + minute * 60
                    yield from (begin + second for second in self.seconds if low <= begin + second <= high)

    def _count_times(self, second_of_day: int) -> int:
        """Return the number of matching times on a matching day, up to and including `second_of_day`."""
        minute, second = divmod(second_of_day, 60)
        before, until = bisect_left(self.minutes, minute), bisect_right(self.minutes, minute)
        return before * len(self.seconds) + (until - before) * bisect_right(self.seconds, second)

    def _time(self, passed: int) -> int:
        """Return the time of match number `passed` on a matching day, in seconds since midnight.

        Numbers begin with 0.
        """
        minute, second = divmod(passed, len(self.seconds))
        return self.minutes[minute] * 60 + self.seconds[second]

    def _count_days(self, first: int, last: int) -> int:
        count = 0
        for before, days in self._months_from(first):
            if before >= last:
                break
            count += bisect_right(days, last - before) - bisect_left(days, first - before)
        return count

    def _day_from(self, day: int) -> int | None:
        for before, days in self._months_from(day):
            place = bisect_left(days, day - before)
            if place < len(days):
                return before + days[place]
        return None

    def _months_from(self, day: int) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield the matching months, beginning with the month of `day`.

        Each month is given by the day before its first day, in days since 1970, and by its matching days.
        """
        start = date.fromordinal(day + _EPOCH)
        for year in range(start.year, MAXYEAR + 1):
            for month in range(start.month if year == start.year else 1, 13):
                if month in self.months:
                    yield date(year, month, 1).toordinal() - _EPOCH - 1, self.month_days[monthrange(year, month)]


@dataclass(frozen=True, slots=True)
class DayRule:
    """The combined meaning of the fields day and weekday."""

    day: str
    """The text of the field day, in lower case."""
    weekday: str
    days: frozenset[int]
    last_day: bool
    weekdays: frozenset[int]
    """Matching weekdays; Sunday is 0."""
    nth_weekdays: frozenset[tuple[int, int]]
    """Weekdays with their number in the month; -1 is the last such weekday of the month."""
    needs_both: bool
    """Whether the fields day and weekday must both match. If not, a match of one of them is enough."""
    ignores_weekday: bool

    def fits_day(self, day: int, length: int) -> bool:
        """Return whether the field day matches this day of a month with `length` days."""
        return day in self.days or (self.last_day and day == length)

    def fits_weekday(self, day: int, weekday: int, length: int) -> bool:
        """Return whether the field weekday matches day `day` of a month.

        `weekday`: the weekday of this day; 0 is Sunday.
        """
        if self.ignores_weekday or weekday in self.weekdays or (weekday, (day + 6) // 7) in self.nth_weekdays:
            return True
        return day + 7 > length and (weekday, _LAST) in self.nth_weekdays

    def fits(self, day: int, weekday: int, length: int) -> bool:
        """Return whether both fields together match this day."""
        by_day, by_weekday = self.fits_day(day, length), self.fits_weekday(day, weekday, length)
        return (by_day and by_weekday) if self.needs_both else (by_day or by_weekday)


class Fields(NamedTuple):
    seconds: Sequence[int]
    minutes: Sequence[int]
    hours: Sequence[int]
    months: Sequence[int]
    days: DayRule


MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_VALUE = r"(?:[0-9]+|[a-z]+)"
_PLAIN = re.compile(rf"(?P<low>\*|{_VALUE})(?:(?<!\*)-(?P<high>{_VALUE}))?(?:/(?P<step>[0-9]+))?")
_NTH = re.compile(rf"(?P<weekday>{_VALUE})#(?P<n>[1-5])")
_LAST_WEEKDAY = re.compile(r"(?P<weekday>[0-9]|[a-z]{3})l")
_RANDOM = re.compile(r"[hr](?:[(/].*)?")


@dataclass(frozen=True, slots=True)
class _CronField:
    name: str
    place: int
    low: int
    high: int
    names: tuple[str, ...] = ()
    special: str = ""

    def expected(self) -> str:
        names = f", {self.names[0]}-{self.names[-1]}" if self.names else ""
        return f"expected {self.low}-{self.high}{names}{self.special}, '*', ranges (1-3), steps (*/2) or lists of these"


_SECOND = _CronField("second", 0, 0, 59)  # croniter has no seconds-first columns; its minutes have the same range
_MINUTE = _CronField("minute", 0, 0, 59)
_HOUR = _CronField("hour", 1, 0, 23)
_DAY = _CronField("day", 2, 1, 31, special=", L (last day)")
_MONTH = _CronField("month", 3, 1, 12, tuple(M_ALPHAS))
_WEEKDAY = _CronField("weekday", 4, 0, 7, tuple(DOW_ALPHAS), special=", 5L (last Friday), 5#2 (second Friday)")


def check_dialect(name: str) -> None:
    """Raise ConfigError if `name` is not one of `DIALECTS`."""
    if name not in DIALECTS:
        raise ConfigError(f"cron_dialect {name!r}: expected {' or '.join(DIALECTS)}" + did_you_mean(name, DIALECTS))


Timetable = Expression | Interval | Moment
"""A parsed expression."""


@lru_cache(maxsize=4096)
def parse(cron: str, dialect: CronDialect) -> Timetable:
    """Parse an expression; cached. Raises ConfigError with the field, the expected value and the remedy."""
    check_dialect(dialect)
    if len(cron) > MAX_LENGTH:
        raise ConfigError(
            f"cron {cron[:40]!r}… has {len(cron)} characters, but may have {MAX_LENGTH} at most; use ranges and steps"
        )
    try:
        special = every_and_at.read(cron.strip(" \t\r\n").lower())
        return _read(_split(cron), dialect) if special is None else special
    except (_MistakeError, TimetableSyntaxError) as mistake:
        raise ConfigError(f"cron {cron!r}{mistake}") from mistake.__cause__


def excessive_step(cron: str, dialect: str) -> str | None:
    """Return a warning if a step is so large that only the first value of its range matches, as in `*/90`.

    Return None if there is no such step. `cron` must be valid.
    """
    if every_and_at.read(cron.strip().lower()) is not None:
        return None
    for field, text in zip((_SECOND, _MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY), _split(cron), strict=True):
        for match in filter(None, map(_PLAIN.fullmatch, text.split(","))):
            is_single_in_ruby = dialect != "vixie" and match["low"] != "*" and match["high"] is None
            if match["step"] is None or int(match["step"]) == 1 or is_single_in_ruby:
                continue
            values = list(_term(field, match[0], dialect == "vixie"))
            if len(values) == 1:
                whole = _WHOLE[field.name]
                return (
                    f"cron {cron!r}: {field.name} {match[0]!r} matches {values[0]} alone, because steps begin again "
                    f"with each {whole}; write {values[0]} if you mean that, or several schedules for a longer interval"
                )
    return None


_WHOLE = {"second": "minute", "minute": "hour", "hour": "day", "day": "month", "month": "year", "weekday": "week"}
"""For each field, the period after which its values begin again: minutes begin again with every hour."""


class _MistakeError(Exception):
    """A mistake in an expression. The message is meant to be appended to the expression."""


def _split(cron: str) -> list[str]:
    """Return the six fields; the first is for seconds."""
    text = cron.strip(" \t\r\n").lower()
    if text.startswith("@"):
        if text not in MACROS:
            raise _MistakeError(f": expected one of {' '.join(MACROS)}, @every or @at" + did_you_mean(text, MACROS))
        text = MACROS[text]
    fields = re.split(r"[ \t\r\n]+", text) if text else []
    if len(fields) not in (5, 6):
        raise _MistakeError(
            f" has {len(fields)} field{'s' if len(fields) != 1 else ''}; expected minute hour day month weekday, or six"
            " fields that begin with seconds"
        )
    return fields if len(fields) == 6 else ["0", *fields]


def fields_of(cron: str, dialect: CronDialect) -> Fields:
    """Return the values of each field. `cron` must be valid, and neither `@every` nor `@at`."""
    return _fields(_split(cron), dialect)


def _fields(fields: list[str], dialect: CronDialect) -> Fields:
    vixie = dialect == "vixie"
    second, minute, hour, day, month, weekday = fields
    columns = ((_SECOND, second), (_MINUTE, minute), (_HOUR, hour), (_MONTH, month))
    seconds, minutes, hours, months = (
        sorted({value for term in text.split(",") for value in _term(field, term, vixie)}) for field, text in columns
    )
    return Fields(seconds, minutes, hours, months, _day_rule(day, weekday, vixie))


def _read(fields: list[str], dialect: CronDialect) -> Expression:
    vixie = dialect == "vixie"
    seconds, minutes, hours, months, days = _fields(fields, dialect)
    expression = Expression(
        seconds=tuple(seconds),
        minutes=tuple(hour * 60 + minute for hour in hours for minute in minutes),
        hours=frozenset(hours),
        months=frozenset(months),
        month_days=_month_days(days),
        once=vixie and not fields[1].startswith("*") and not fields[2].startswith("*"),
        whole_hours=not vixie,
    )
    if not expression.ever_matches():
        raise _MistakeError(_why_never(days, months))
    return expression


@lru_cache(maxsize=1024)
def _day_rule(day: str, weekday: str, vixie: bool) -> DayRule:
    """Return the combined meaning of the fields day and weekday.

    Cached, because many expressions have the same values in these fields. In Debian's cron, both fields must match if
    one of them begins with `*`. In Ruby, both must match if one of them is just `*`. Otherwise a match of one field is
    enough.
    """
    day_alone = not vixie and day == "l"  # chrono, the parser of PerfectSched, then ignores the weekday
    both = day_alone or any(text.startswith("*") if vixie else text == "*" for text in (day, weekday))
    days, last_day = _days(day, vixie)
    weekdays: set[int] = set()
    nth_weekdays: set[tuple[int, int]] = set()
    for term in weekday.split(","):
        if match := _NTH.fullmatch(term):
            nth_weekdays.add((_number(_WEEKDAY, match["weekday"]) % 7, int(match["n"])))
        elif match := _LAST_WEEKDAY.fullmatch(term):
            nth_weekdays.add((_number(_WEEKDAY, match["weekday"]) % 7, _LAST))
        else:
            weekdays |= {value % 7 for value in _term(_WEEKDAY, term, vixie)}
    return DayRule(
        day, weekday, frozenset(days), last_day, frozenset(weekdays), frozenset(nth_weekdays), both, day_alone
    )


@lru_cache(maxsize=1024)
def _month_days(rule: DayRule) -> MonthDays:
    return {
        (first, length): tuple(day for day in range(1, length + 1) if rule.fits(day, (first + day) % 7, length))
        for first, length in product(range(7), range(28, 32))
    }


def _days(day: str, vixie: bool) -> tuple[set[int], bool]:
    """Return the days of the month, and whether the last day matches.

    In Ruby, the last day matches only if the field names no other day.
    """
    terms = day.split(",")
    days = {value for term in terms if term != "l" for value in _term(_DAY, term, vixie)}
    return days, "l" in terms and (vixie or not days)


def _term(field: _CronField, term: str, vixie: bool) -> frozenset[int]:
    """Expand a term to its values: `*`, a value or a range, each with or without a step."""
    match = _PLAIN.fullmatch(term)
    if match is None or _RANDOM.fullmatch(term):
        raise _MistakeError(_malformed(field, term))
    step = 1 if match["step"] is None else _step(field, match["step"], vixie)
    if step == 0:
        raise _MistakeError(f": {field.name} {term!r} steps by 0; expected a step of 1 or more")
    if match["low"] == "*":
        return _expand(field, f"*/{step}")
    low = _number(field, match["low"])
    if match["high"] is not None:
        high = _number(field, match["high"])
        if field is _WEEKDAY and match["high"] == "sun" and match["low"] != "sun":
            high = 7  # `fri-sun` ends with Sunday as day 7
        if high == 7 and low in (0, 7) and field is _WEEKDAY and not vixie:
            high = low  # Ruby reads each 7 as 0
        _check_order(field, term, low, high)
    else:
        # "5/15" means 5 to the end of the field; in Ruby only 5
        high = field.high if match["step"] is not None and vixie else low
    if low == high:
        return frozenset((low % 7 if field is _WEEKDAY else low,))
    return _expand(field, f"{low}-{high}/{step}")


def _step(field: _CronField, text: str, vixie: bool) -> int:
    """Return a step. Ruby reads each digit 7 in the field weekday as 0, so `71` is a step of 1."""
    in_ruby = 0 if vixie or field is not _WEEKDAY else int(text.replace("7", "0"))
    return int(text) if in_ruby == 0 else in_ruby


def _number(field: _CronField, value: str) -> int:
    """Return a single value as a number. Sunday is 7 if the value is written as 7, otherwise 0."""
    if not value.isdecimal() and value not in field.names:
        raise _MistakeError(
            f": {field.name} {value!r} is unknown; {field.expected()}" + did_you_mean(value, field.names)
        )
    (number,) = _expand(field, value)
    return 7 if field is _WEEKDAY and value.isdecimal() and int(value) == 7 else number


def _check_order(field: _CronField, term: str, low: int, high: int) -> None:
    if low <= high:
        return
    top = 6 if field is _WEEKDAY else field.high
    spans = [(low, top), (field.low, high)] if low <= top else [(field.low, high)]
    instead = ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in spans)
    instead = "the values as a list" if "/" in term else f"'{instead}'"
    raise _MistakeError(f": {field.name} {term!r} runs backwards; write {instead}")


@lru_cache(maxsize=4096)
def _expand(field: _CronField, term: str) -> frozenset[int]:
    """Expand a valid term with croniter. Cached, as this takes 0.2 ms."""
    columns = ["*"] * 5
    columns[field.place] = term
    try:
        values = croniter.expand(" ".join(columns))[0][field.place]
    except CroniterError as error:
        raise _MistakeError(f": {field.name} {term!r} is out of range; {field.expected()}") from error
    if values == ["*"]:
        return frozenset(range(field.low, 7 if field is _WEEKDAY else field.high + 1))
    return frozenset(int(value) for value in values)


def _malformed(field: _CronField, term: str) -> str:
    if _RANDOM.fullmatch(term):
        return f": {field.name} {term!r} is random and differs from host to host; write a number"
    if term == "?":
        return f": {field.name} '?' is not known here; write '*'"
    return f": {field.name} {term!r} is not understood; {field.expected()}"


def _why_never(rule: DayRule, months: Sequence[int]) -> str:
    if not rule.last_day and min(rule.days) > max(monthrange(2000, month)[1] for month in months):
        return f" never runs: there is no day {rule.day} in {' or '.join(month_name[month] for month in months)}"
    return (
        f" never runs: no day fits both {rule.day!r} and {rule.weekday!r} (both must match, since one begins with '*')"
    )
