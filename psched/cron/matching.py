"""Which wall times an expression matches, regardless of any time zone. Pure; used wherever cron is.

A wall time is an int: seconds since 1970-01-01 00:00 by the clock on the wall, in the proleptic Gregorian calendar.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from calendar import isleap
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import MAXYEAR, date
from functools import lru_cache
from itertools import product

DAY = 86400
LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
"""The days of each month (by its number) in a common year."""
LAST = -1
"""In place of the n of "the nth weekday of a month": its last one."""

_EPOCH = date(1970, 1, 1).toordinal()

MonthDays = Mapping[tuple[int, int], tuple[int, ...]]
"""The days that match, by the month's length and the weekday of its first day (Monday = 0): all months there can be."""


@dataclass(frozen=True, slots=True)
class DayRule:
    """The fields day and weekday (Sunday = 0). `both`: a day must match both of them, otherwise one is enough."""

    days: frozenset[int]
    last_day: bool
    weekdays: frozenset[int]
    nth_weekdays: frozenset[tuple[int, int]]
    both: bool

    def matches(self, day: int, length: int, first: int) -> bool:
        """Tell whether a day matches in a month of that length that begins with that weekday."""
        weekday = (first + day) % 7
        by_day = day in self.days or (self.last_day and day == length)
        by_weekday = weekday in self.weekdays or (weekday, (day + 6) // 7) in self.nth_weekdays
        by_weekday = by_weekday or (day + 7 > length and (weekday, LAST) in self.nth_weekdays)
        return (by_day and by_weekday) if self.both else (by_day or by_weekday)


@lru_cache(maxsize=1024)
def month_days(rule: DayRule) -> MonthDays:
    """Work out the days for every kind of month; once for all expressions with the same rule, as most have."""
    return {
        (length, first): tuple(day for day in range(1, length + 1) if rule.matches(day, length, first))
        for length, first in product(range(28, 32), range(7))
    }


@dataclass(frozen=True, slots=True, eq=False)
class Expression:
    """A parsed cron expression. `once`: each wall time runs once, come what may; otherwise real time is followed.

    `whole_hours`: what is left of an hour whose beginning a clock change skips is looked at only when the hour before
    is among `hours`, as PerfectSched does.
    """

    seconds: tuple[int, ...]
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    months: frozenset[int]
    month_days: MonthDays
    once: bool
    whole_hours: bool = False

    def ever_matches(self) -> bool:
        """Tell whether there is such a date in any year."""
        kinds = ((month, leap) for month in self.months for leap in (False, True))
        return any(self.month_days[_length(leap, month), first] for month, leap in kinds for first in range(7))

    def next_wall(self, wall: int) -> int | None:
        """Return the first matching wall time at or after `wall`, or None when there is none up to the year 9999."""
        day, second = divmod(wall, DAY)
        time = self._time_from(second)
        found = self._day_from(day if time is not None else day + 1)
        if found is None:
            return None
        if time is None or found > day:
            time = (self.hours[0] * 60 + self.minutes[0]) * 60 + self.seconds[0]
        return found * DAY + time

    def count_walls(self, low: int, high: int) -> int:
        """Return how many wall times from `low` to `high`, both included, match: worked out by months, not listed."""
        if low > high:
            return 0
        (first, begin), (last, end) = divmod(low, DAY), divmod(high, DAY)
        count = self._count_days(first, last) * self._count_times(DAY - 1)
        if begin and self._count_days(first, first):
            count -= self._count_times(begin - 1)
        if self._count_days(last, last):
            count -= self._count_times(DAY - 1) - self._count_times(end)
        return count

    def _count_days(self, first: int, last: int) -> int:
        """Return how many matching days there are from `first` to `last`; both count from 1970-01-01."""
        start, end = date.fromordinal(first + _EPOCH), date.fromordinal(last + _EPOCH)
        year, month, earliest = start.year, start.month, start.day
        count = 0
        while (year, month) <= (end.year, end.month):
            if month in self.months:
                days = self.month_days[_length(isleap(year), month), date(year, month, 1).weekday()]
                latest = end.day if (year, month) == (end.year, end.month) else 31
                count += bisect_right(days, latest) - bisect_left(days, earliest)
            year, month, earliest = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)
        return count

    def _count_times(self, second_of_day: int) -> int:
        """Return how many matching times a matching day has up to the given second of the day."""
        minute, second = divmod(second_of_day, 60)
        hour, minute = divmod(minute, 60)
        hours, minutes, seconds = bisect_left(self.hours, hour), 0, 0
        if hour in self.hours:
            minutes = bisect_left(self.minutes, minute)
            if minute in self.minutes:
                seconds = bisect_right(self.seconds, second)
        return (hours * len(self.minutes) + minutes) * len(self.seconds) + seconds

    def _time_from(self, second_of_day: int) -> int | None:
        """Return the first matching second of the day from the given one on."""
        minute, second = divmod(second_of_day, 60)
        hour, minute = divmod(minute, 60)
        if hour in self.hours:
            if minute in self.minutes and second <= self.seconds[-1]:
                return (hour * 60 + minute) * 60 + self.seconds[bisect_left(self.seconds, second)]
            if minute < self.minutes[-1]:
                later = self.minutes[bisect_left(self.minutes, minute + 1)]
                return (hour * 60 + later) * 60 + self.seconds[0]
        if hour >= self.hours[-1]:
            return None
        later = self.hours[bisect_left(self.hours, hour + 1)]
        return (later * 60 + self.minutes[0]) * 60 + self.seconds[0]

    def _day_from(self, day: int) -> int | None:
        """Return the first matching day from the given one on; both count from 1970-01-01."""
        start = date.fromordinal(day + _EPOCH)
        year, month, earliest = start.year, start.month, start.day
        while year <= MAXYEAR:
            if month in self.months:
                first = date(year, month, 1)
                for found in self.month_days[_length(isleap(year), month), first.weekday()]:
                    if found >= earliest:
                        return first.toordinal() - _EPOCH + found - 1
            year, month, earliest = (year, month + 1, 1) if month < 12 else (year + 1, 1, 1)
        return None


def _length(leap: bool, month: int) -> int:
    return 29 if leap and month == 2 else LENGTHS[month]
