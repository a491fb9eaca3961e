"""Debian's cron as a reference: the daemon's loop over minutes, its treatment of clock changes, and its parser."""

from __future__ import annotations

import calendar
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

_WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = {name.lower(): number for number, name in enumerate(calendar.month_abbr) if name}
_WEEKDAYS = {"sun": 0, "mon": 1, "tue": 2, "wed": 3, "thu": 4, "fri": 5, "sat": 6}
_A_FEW = 5
_MANY = 3 * 60
"""Minutes. The daemon treats a longer jump of the clock in another way."""


@dataclass(frozen=True)
class Job:
    """One line of a crontab, as sets of numbers."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    wild: bool
    both_days: bool

    def is_on(self, day: int, month: int, weekday: int) -> bool:
        """Return whether the job runs on this date."""
        hits = (day in self.days, weekday in self.weekdays)
        return month in self.months and (all(hits) if self.both_days else any(hits))


def read(when: str) -> Job:
    """Parse five fields, or a word such as `@daily`."""
    minute, hour, day, month, weekday = _WORDS.get(when, when).split()
    return Job(
        minutes=_bits(minute, 0, 59, {}),
        hours=_bits(hour, 0, 23, {}),
        days=_bits(day, 1, 31, {}),
        months=_bits(month, 1, 12, _MONTHS),
        weekdays=frozenset(value % 7 for value in _bits(weekday, 0, 7, _WEEKDAYS)),
        wild=minute[0] == "*" or hour[0] == "*",
        both_days=day[0] == "*" or weekday[0] == "*",
    )


def _bits(text: str, low: int, high: int, names: Mapping[str, int]) -> frozenset[int]:
    bits: set[int] = set()
    for term in text.lower().split(","):
        span, _, step = term.partition("/")
        if span == "*":
            first, last = low, high
        else:
            first, last = (
                names[end] if end in names else int(end) for end in (span.split("-") if "-" in span else (span, span))
            )
        assert low <= first <= last <= high, text
        bits |= set(range(first, last + 1, int(step or 1)))
    return frozenset(bits)


def runs(whens: Iterable[str], zone: ZoneInfo, begin: int, end: int) -> dict[str, list[int]]:
    """Return the times at which the daemon runs each rule, from `begin` to `end` (unix seconds, whole minutes).

    The daemon has started long before `begin`.
    """
    jobs = {when: read(when) for when in whens}
    by_clock: dict[int, list[tuple[str, Job]]] = defaultdict(list)
    for when, job in jobs.items():
        for hour in job.hours:
            for minute in job.minutes:
                by_clock[hour * 60 + minute].append((when, job))
    found: dict[str, list[int]] = {when: [] for when in jobs}
    for instant, minute, do_wild, do_fixed in _wakeups(zone, begin, end):
        moment = datetime.fromtimestamp(minute * 60, UTC)
        weekday = moment.isoweekday() % 7
        for when, job in by_clock[minute % 1440]:
            if (do_wild if job.wild else do_fixed) and job.is_on(moment.day, moment.month, weekday):
                times = found[when]
                if not times or times[-1] != instant:  # two times in a gap are run at the same instant
                    times.append(instant)
    return found


def _wakeups(zone: ZoneInfo, begin: int, end: int) -> Iterator[tuple[int, int, bool, bool]]:
    """Yield each wakeup: the time, the local minute whose jobs run, and whether wildcard and fixed jobs of it run."""
    warm_up = begin - 6 * 3600
    virtual = _wall_minute(zone, warm_up) - 1
    for instant in range(warm_up, end + 1, 60):
        running = _wall_minute(zone, instant)
        wakeups, virtual = _wake(running, virtual)
        if instant >= begin:
            yield from ((instant, *wakeup) for wakeup in wakeups)


def _wake(running: int, virtual: int) -> tuple[list[tuple[int, bool, bool]], int]:
    """Return the minutes whose jobs the daemon runs when the clock shows `running`, and the last minute done then.

    With each minute it returns whether its wildcard jobs and its fixed jobs run. `virtual`: the last minute done so
    far.
    """
    ahead = running - virtual
    if -_MANY < ahead <= 0:  # the clock was set back: what is wild follows it
        return [(running, True, False)], virtual
    if 0 < ahead <= _A_FEW:
        return [(minute, True, True) for minute in range(virtual + 1, running + 1)], running
    if _A_FEW < ahead <= _MANY:  # the clock was put forward: what is fixed is made up for
        missed = [(minute, False, True) for minute in range(virtual + 1, running + 1)]
        return [(running, True, False), *missed], running
    return [(running, True, True)], running


def _wall_minute(zone: ZoneInfo, instant: int) -> int:
    offset = datetime.fromtimestamp(instant, zone).utcoffset()
    assert offset is not None
    return (instant + int(offset.total_seconds())) // 60
