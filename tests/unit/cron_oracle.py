"""Finds the runs of a cron expression around a clock change by a check of every second, with its own parser."""

from __future__ import annotations

from calendar import monthrange
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from itertools import pairwise

from psched.cron.zones import load_zone

EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 – of wall clocks, which have no zone
LONGEST_GAP = 3 * 3600
"""Seconds. Times in a gap of this length or longer do not run."""


@dataclass(frozen=True)
class Window:
    """The seconds around a clock change. `start`: the instant of the first; `clock`: the local time of each.

    `first`: the first instant with each local time. `hours`: the index in `clock` at which an hour begins. `days`: the
    times of each day that occur. `gaps`: an instant, and the local times that were skipped before it.
    """

    start: int
    clock: list[int]
    first: dict[int, int]
    hours: dict[int, int]
    days: dict[int, set[int]]
    gaps: list[tuple[int, dict[int, set[int]]]]


@lru_cache
def window(zone: str, change: int) -> Window:
    """Return the window: 1.5 h, and the length of a repeated time, before the change and after it."""
    info = load_zone(zone)

    def wall(instant: int) -> int:
        return instant + round(datetime.fromtimestamp(instant, info).utcoffset().total_seconds())  # type: ignore[union-attr]

    margin = 5400 + max(0, wall(change - 1) - wall(change))
    start = change - margin
    clock = [wall(instant) for instant in range(start, change + margin)]
    first = {shown: start + i for i, shown in reversed(list(enumerate(clock)))}
    hours = {shown // 3600: i for i, shown in reversed(list(enumerate(clock)))}
    jumps = [(start + i, a + 1, b) for i, (a, b) in enumerate(pairwise(clock), 1) if 1 < b - a <= LONGEST_GAP]
    return Window(
        start, clock, first, hours, by_day(first), [(instant, by_day(range(a, b))) for instant, a, b in jumps]
    )


def by_day(walls: Iterable[int]) -> dict[int, set[int]]:
    """Return local times by day, as seconds of the day."""
    days: dict[int, set[int]] = defaultdict(set)
    for wall in walls:
        days[wall // 86400].add(wall % 86400)
    return days


def values(text: str, low: int, high: int, vixie: bool) -> set[int]:
    """Return the values of one field, which has only numbers, ranges and steps."""
    found: set[int] = set()
    for term in text.split(","):
        span, _, step = term.partition("/")
        first, _, last = span.partition("-")
        if span == "*":
            first, last = str(low), str(high)
        elif not last:
            last = str(high) if step and vixie else first
        found |= set(range(int(first), int(last) + 1, int(step or 1)))
    return found


class Reading:
    """An expression, parsed by this module."""

    def __init__(self, cron: str, vixie: bool) -> None:
        fields = cron.split() if len(cron.split()) == 6 else ["0", *cron.split()]
        second, minute, hour, self.day, month, self.weekday = fields
        self.vixie = vixie
        hours, minutes = values(hour, 0, 23, vixie), values(minute, 0, 59, vixie)
        self.times = {(h * 60 + m) * 60 + s for h in hours for m in minutes for s in values(second, 0, 59, vixie)}
        self.months = values(month, 1, 12, vixie)
        self.once = vixie and minute[0] != "*" and hour[0] != "*"

    def matches_date(self, moment: datetime) -> bool:
        if self.day == "L" and not self.vixie:
            return moment.month in self.months and self._hits_day(moment)  # Ruby looks at no weekday then
        both = any(text[0] == "*" if self.vixie else text == "*" for text in (self.day, self.weekday))
        hits = (self._hits_day(moment), self._hits_weekday(moment))
        return moment.month in self.months and (all(hits) if both else any(hits))

    def _hits_day(self, moment: datetime) -> bool:
        last = monthrange(moment.year, moment.month)[1]
        others = ",".join(term for term in self.day.split(",") if term != "L")
        text = self.day.replace("L", str(last)) if self.vixie or not others else others  # Ruby drops it beside others
        return moment.day in values(text, 1, 31, self.vixie)

    def _hits_weekday(self, moment: datetime) -> bool:
        return any(self._hits_weekday_term(term, moment) for term in self.weekday.split(","))

    def _hits_weekday_term(self, term: str, moment: datetime) -> bool:
        plain, _, nth = term.partition("#")
        plain = plain.removesuffix("L")
        if not self.vixie and plain.split("/")[0] in ("0-7", "7-7"):
            plain = "0"  # Ruby reads each 7 as 0
        in_week = moment.isoweekday() % 7 in {day % 7 for day in values(plain, 0, 7, self.vixie)}
        if term.endswith("L"):
            return in_week and (moment + timedelta(days=7)).month != moment.month
        return in_week and (not nth or (moment.day - 1) // 7 + 1 == int(nth))

    def matching(self, days: Mapping[int, set[int]]) -> set[int]:
        """Return those local times that match."""
        hits = [day for day in days if self.matches_date(EPOCH + timedelta(days=day))]
        return {day * 86400 + time for day in hits for time in self.times & days[day]}


def cut(reading: Reading, seen: Window, place: int) -> bool:
    """Return whether a time is in an hour whose begin is skipped. Ruby finds such an hour only from the hour before."""
    hour = seen.clock[place] // 3600
    begins = seen.hours[hour]
    if reading.vixie or begins == 0 or hour * 3600 in seen.first:
        return False
    before = seen.clock[begins - 1] // 3600 % 24
    return not any(time // 3600 == before for time in reading.times)


def expected(cron: str, zone: str, change: int, dialect: str) -> list[int]:
    """Return every run in the window, found by a check of every second."""
    reading, seen = Reading(cron, dialect == "vixie"), window(zone, change)
    runs = reading.matching(seen.days)
    if not reading.once:
        return [seen.start + i for i, shown in enumerate(seen.clock) if shown in runs and not cut(reading, seen, i)]
    found = {seen.first[shown] for shown in runs}
    found |= {instant for instant, gap in seen.gaps if reading.matching(gap)}
    return sorted(found)
