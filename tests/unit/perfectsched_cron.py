"""PerfectSched's algorithm for the next time, step by step, as it was observed.

It walks through the calendar, month by month, then day by day, hour by hour and minute by minute, until all fields
match. A moment is a local time with a UTC offset. A step into a gap continues by whole hours. A step to a repeated time
keeps the offset if it can, otherwise it takes the offset of daylight saving.
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, cached_property

from psched.backends.rdb_compat.ruby_cron_check import _FIELDS, _split
from psched.cron.zones import load_zone, offset_at

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 – of wall clocks, which have no zone
STEPS = 3000


@dataclass(frozen=True)
class Moment:
    zone: str
    wall: int
    offset: int

    @property
    def instant(self) -> int:
        return self.wall - self.offset

    @cached_property
    def date(self) -> datetime:
        return EPOCH + timedelta(seconds=self.wall)

    def later(self, seconds: int) -> Moment:
        """Return the moment that is `seconds` later."""
        return at(self.zone, self.instant + seconds)

    def set_to(self, date: datetime) -> Moment:
        """Return the moment with another local time."""
        return on_wall(self.zone, self.offset, (date - EPOCH) // timedelta(seconds=1))

    @cached_property
    def next_month(self) -> Moment:
        first = self.date.replace(day=1, hour=0, minute=0, second=0)
        return self.set_to(first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1))

    @cached_property
    def next_day(self) -> Moment:
        next_day = self.set_to(self.date + timedelta(days=1))
        return next_day.set_to(next_day.date.replace(hour=0, minute=0, second=0))

    @cached_property
    def next_hour(self) -> Moment:
        next_hour = self.later(3600)
        return next_hour.set_to(next_hour.date.replace(minute=0, second=0))

    @cached_property
    def next_minute(self) -> Moment:
        next_minute = self.later(60)
        return next_minute.set_to(next_minute.date.replace(second=0))


@cache
def on_wall(zone: str, offset: int, wall: int) -> Moment:
    """Return the moment of a local time. If the time is repeated, prefer the one with this offset."""
    while True:
        offsets = {
            found
            for shift in (-86400, 0, 86400)
            for found in [at(zone, wall - offset + shift).offset]
            if at(zone, wall - found).offset == found
        }
        if offsets:
            return Moment(zone, wall, offset if offset in offsets else max(offsets))
        wall += 3600


@cache
def at(zone: str, instant: int) -> Moment:
    offset = offset_at(load_zone(zone), instant)
    return Moment(zone, instant + offset, offset)


class EndlessError(Exception):
    """The original's algorithm never ends for this expression."""


def original_next(cron: str, after: int, zone: str) -> int:
    """Return the first match after `after`, in unix seconds. Raises EndlessError."""
    texts = _split(cron)
    minutes, hours, days, months, weekdays = (field.values(text) for field, text in zip(_FIELDS, texts, strict=True))
    moment = at(zone, after).next_minute

    def is_day(date: datetime) -> bool:
        if texts[2] == "L":
            return date.day == monthrange(date.year, date.month)[1]
        by_day, by_weekday = date.day in days, date.isoweekday() % 7 in weekdays
        return (by_day and by_weekday) if "*" in (texts[2], texts[4]) else (by_day or by_weekday)

    for _ in range(STEPS):
        date = moment.date
        if date.month not in months:
            moment = moment.next_month
        elif not is_day(date):
            moment = moment.next_day
        elif date.hour not in hours:
            moment = moment.next_hour
        elif date.minute not in minutes:
            moment = moment.next_minute
        else:
            return moment.instant
    raise EndlessError
