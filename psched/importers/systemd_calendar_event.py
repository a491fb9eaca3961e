"""Parses calendar events of systemd (systemd.time(7)), and computes when they elapse.

An event does not elapse at a time that a clock change skips. At a repeated time it elapses the first time only.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from calendar import monthrange
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from psched.cron.occurrences import gap_at
from psched.cron.zones import check_timezone, load_zone, offset_at, offset_of_wall
from psched.errors import ConfigError
from psched.importers.entries import Following

_SHORTHANDS = {
    "minutely": "*-*-* *:*:00",
    "hourly": "*-*-* *:00:00",
    "daily": "*-*-* 00:00:00",
    "monthly": "*-*-01 00:00:00",
    "weekly": "Mon *-*-* 00:00:00",
    "yearly": "*-01-01 00:00:00",
    "annually": "*-01-01 00:00:00",
    "anually": "*-01-01 00:00:00",
    "quarterly": "*-01,04,07,10-01 00:00:00",
    "semiannually": "*-01,07-01 00:00:00",
    "semi-annually": "*-01,07-01 00:00:00",
    "biannually": "*-01,07-01 00:00:00",
    "bi-annually": "*-01,07-01 00:00:00",
}
_DAYS = ("sunday", "monday", "tuesday", "wednesday", "thursday", "friday", "saturday")
_WEEKDAYS = {name[:length]: number for number, name in enumerate(_DAYS) for length in (3, len(name))}
_PART = re.compile(r"(?P<low>\*|\d{1,9})(?:\.\.(?P<high>\d{1,9}))?(?:/(?P<step>\d{1,9}))?")
_FIRST_YEAR, _LAST_YEAR = 1970, 2199
_LONGEST_SEARCH = 9 * 366
"""Days of the longest search."""
_EPOCH = date(1970, 1, 1)

ALL_YEARS = frozenset(range(_FIRST_YEAR, _LAST_YEAR + 1))


class NotACalendarEventError(Exception):
    """The text is not a calendar event that psched can parse. The message says why."""


@dataclass(frozen=True, kw_only=True)
class CalendarEvent:
    """A calendar event: values that must all match. Weekdays are numbers; Sunday is 0.

    `from_end`: whether days count from the end of the month, where 1 is the last day. `stars`: the names of the fields
    that begin with `*`.
    """

    weekdays: Collection[int] = field(default=frozenset(range(7)))
    years: Collection[int] = ALL_YEARS
    months: Collection[int] = field(default=frozenset(range(1, 13)))
    days: Collection[int] = field(default=frozenset(range(1, 32)))
    from_end: bool = False
    hours: Collection[int] = (0,)
    minutes: Collection[int] = (0,)
    seconds: Collection[int] = (0,)
    timezone: str | None = None
    stars: Collection[str] = ()

    def is_on(self, day: date) -> bool:
        number = monthrange(day.year, day.month)[1] + 1 - day.day if self.from_end else day.day
        return (
            number in self.days
            and day.month in self.months
            and day.year in self.years
            and day.isoweekday() % 7 in self.weekdays
        )

    def following(self, timezone: str) -> Following:
        """Return the function that finds the next time of the event. `timezone` applies if the event names no zone."""
        zone = load_zone(self.timezone or timezone)
        times = sorted(h * 3600 + m * 60 + s for h in self.hours for m in self.minutes for s in self.seconds)

        def following(after: int) -> int | None:
            wall = after + offset_at(zone, after)
            today, passed = divmod(wall, 86400)
            for day in range(today, today + _LONGEST_SEARCH):
                if not self.is_on(_EPOCH + timedelta(days=day)):
                    continue
                for place in range(bisect_right(times, passed) if day == today else 0, len(times)):
                    moment = day * 86400 + times[place]
                    if gap_at(zone, moment) is None:
                        instant = moment - offset_of_wall(zone, moment)
                        if instant > after:
                            return instant
            return None

        return following


def parse(text: str) -> CalendarEvent:
    """Return the event that `OnCalendar=` names. Raises NotACalendarEventError."""
    words = text.split()
    timezone = _timezone(words)
    if len(words) == 1 and words[0].lower() in _SHORTHANDS:
        words = _SHORTHANDS[words[0].lower()].split()
    if len(words) == 1 and re.fullmatch(r"@\d{1,11}", words[0]):
        return _unix_time(int(words[0][1:]))
    found: dict[str, Collection[int]] = {}
    stars: list[str] = []
    from_end = False
    if words and words[0][0].isalpha():
        found["weekdays"] = _weekdays(words.pop(0))
    if words and ":" not in words[0]:
        from_end = _read_date(words.pop(0), found, stars)
    if words:
        _read_time(words.pop(0), found, stars)
    if words or not (found or stars):
        raise NotACalendarEventError(f"psched cannot parse the calendar event {text!r}")
    stars += [name for name in ("months", "days") if name not in found]
    return CalendarEvent(**found, from_end=from_end, timezone=timezone, stars=tuple(stars))


def _timezone(words: list[str]) -> str | None:
    """If the last word is a time zone, remove the word and return it; else return None."""
    if len(words) < 1 or not words[-1][0].isalpha() or words[-1].lower() in _SHORTHANDS:
        return None
    try:
        check_timezone(words[-1])
    except ConfigError:
        return None
    return words.pop()


def _unix_time(seconds: int) -> CalendarEvent:
    moment = datetime.fromtimestamp(seconds, UTC)
    return CalendarEvent(
        years=(moment.year,),
        months=(moment.month,),
        days=(moment.day,),
        hours=(moment.hour,),
        minutes=(moment.minute,),
        seconds=(moment.second,),
        timezone="UTC",
    )


def _weekdays(text: str) -> frozenset[int]:
    found: set[int] = set()
    for term in filter(None, text.lower().split(",")):
        ends = [_WEEKDAYS.get(end) for end in re.split(r"\.\.|-", term)]
        first, last = (((number or 0) + 6) % 7 for number in (ends[0], ends[-1]))  # systemd's weeks begin on Monday
        if None in ends or len(ends) > 2 or first > last:
            raise NotACalendarEventError(
                f"expected a weekday, or a range that does not pass Sunday, such as Mon..Fri, got {term!r}"
            )
        found |= {(number + 1) % 7 for number in range(first, last + 1)}
    return frozenset(found)


def _read_date(text: str, found: dict[str, Collection[int]], stars: list[str]) -> bool:
    """Read a date into `found`. Return whether its days count from the end of the month."""
    parts = re.split(r"[-~]", text)
    if len(parts) not in (2, 3):
        raise NotACalendarEventError(f"{text!r} is not a date")
    *years, months, days = parts
    if years:
        if "*/" in years[0]:
            raise NotACalendarEventError(f"expected a first year before the step, such as 2026/2, got {years[0]!r}")
        _read(found, stars, "years", _in_century(years[0]), _FIRST_YEAR, _LAST_YEAR)
    _read(found, stars, "months", months, 1, 12)
    from_end = text[-len(days) - 1] == "~"
    if from_end:
        found["days"] = frozenset(_from_end(days))
    else:
        _read(found, stars, "days", days, 1, 31)
    return from_end


def _in_century(text: str) -> str:
    """Return years with their century: 00 to 69 become 2000 to 2069, and 70 to 99 become 1970 to 1999."""
    return re.sub(r"(?<![/\d])\d\d(?!\d)", lambda match: f"{'20' if int(match[0]) < 70 else '19'}{match[0]}", text)


def _from_end(text: str) -> Iterator[int]:
    """Yield days that are counted from the end of the month. `7/2` yields 7, 5, 3 and 1: steps go towards the end."""
    for term in text.split(","):
        match = _PART.fullmatch(term)
        if match is None:
            raise NotACalendarEventError(f"{term!r} is not a day of the month")
        low = 31 if match["low"] == "*" else int(match["low"])
        if match["high"]:
            low, high = int(match["high"]), low
        else:
            high = 1 if match["step"] or match["low"] == "*" else low
        if not 1 <= high <= low <= 31:
            raise NotACalendarEventError(f"{term!r} is not a day from 1 to 31, counted from the end of the month")
        yield from range(low, high - 1, -int(match["step"] or 1))


def _read_time(text: str, found: dict[str, Collection[int]], stars: list[str]) -> None:
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise NotACalendarEventError(f"{text!r} is not a time")
    _read(found, stars, "hours", parts[0], 0, 23)
    _read(found, stars, "minutes", parts[1], 0, 59)
    if len(parts) == 3:
        if "." in parts[2].replace("..", ""):
            raise NotACalendarEventError(f"{text!r} has fractions of a second, but psched's rules have whole seconds")
        _read(found, stars, "seconds", parts[2], 0, 59)


def _read(found: dict[str, Collection[int]], stars: list[str], name: str, text: str, low: int, high: int) -> None:
    values: set[int] = set()
    for term in text.split(","):
        match = _PART.fullmatch(term)
        if match is None:
            raise NotACalendarEventError(f"{term!r} is not valid for the {name}")
        first = low if match["low"] == "*" else int(match["low"])
        default = high if match["step"] or match["low"] == "*" else first
        last = int(match["high"]) if match["high"] else default
        step = int(match["step"] or 1)
        if not low <= first <= last <= high or step == 0:
            raise NotACalendarEventError(f"{term!r} is out of range for the {name}")
        values |= set(range(first, last + 1, step))
    if text.startswith("*"):
        stars.append(name)
    found[name] = frozenset(values)
