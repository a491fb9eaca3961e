"""Computes which runs of the next days a change of schedules adds and removes, and the effects of clock changes.

Pure functions. All times are unix seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from itertools import chain, islice
from typing import NamedTuple

from psched import cron
from psched.cron import CronDialect
from psched.cron.zones import change_between, load_zone, offset_at
from psched.errors import ConfigError
from psched.model import NEVER, Rule, ScheduleRow
from psched.schedules import rule_occurrences

DAYS = 7
SPAN = DAYS * 86400
"""The length of the period that is compared, in seconds."""
SHOWN = 3
"""How many runs of a schedule are listed. Further runs are counted."""
CROWDED = 50
"""A minute is reported if at least this many runs begin in it."""
_MOST_LISTED = 20_160
"""The maximum number of runs of one schedule in the period (one every 30 s) that are compared one by one."""
_FEW = 1000
"""If a rule has at least this many occurrences, they are first counted. More than `_MOST_LISTED` are never listed."""
_MOST_MINUTES = 5
_NEAR = 3 * 3600
"""Seconds before and after a clock change in which runs are checked."""


@dataclass(frozen=True, slots=True)
class RunTimes:
    """Runs in the next days: their number, and the `first` few.

    `exact`: False if there are too many runs to compare one by one. Then all runs of the schedule are counted, not only
    those that a change gains or loses.
    """

    count: int = 0
    first: tuple[float, ...] = ()
    exact: bool = True


NO_RUNS = RunTimes()


@dataclass(frozen=True, slots=True)
class Effect:
    """How a change affects the runs of a schedule in the next days.

    `notes`: the effects of clock changes. `warnings`: effects that the author of the change may not expect.
    """

    gained: RunTimes = NO_RUNS
    lost: RunTimes = NO_RUNS
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


NO_EFFECT = Effect()


@dataclass(frozen=True, slots=True)
class PlannedCrowdedMinute:
    """A minute in which many runs begin: `starts` with the plan, `before` without it. `time`: the start of the minute.

    `more`: how many more minutes like this the next days have.
    """

    time: int
    starts: int
    before: int
    more: int = 0


class _Timing(NamedTuple):
    """What decides the runs of a schedule that is neither paused nor ended.

    `rule`: see `rule_occurrences.plain`. `most`: how many more runs `max_runs` allows; None for any number.
    """

    rule: Rule
    delay: float
    next_time: int
    next_run_time: float
    settled: bool
    most: int | None


@dataclass(frozen=True)
class RunTimeComparison:
    """Compares the runs of schedules from `now` on. Caches results, as many schedules share a rule."""

    now: float
    dialect: CronDialect
    _compared: Callable[[_Timing | None, _Timing | None], tuple[RunTimes, RunTimes]] = field(init=False, repr=False)
    _occurrences: Callable[[Rule, int, int], Sequence[int] | None] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_compared", cache(self._compare))
        object.__setattr__(self, "_occurrences", cache(self._find_occurrences))

    @property
    def until(self) -> float:
        return self.now + SPAN

    def effect(self, before: ScheduleRow | None, after: ScheduleRow | None) -> Effect:
        """Return the effect of a change from one row to another. None stands for a missing row."""
        was, becomes = (None if row is None else _timing(row) for row in (before, after))
        lost, gained = (NO_RUNS, NO_RUNS) if was == becomes else self._compared(was, becomes)
        notes = (
            () if after is None or (before is not None and before.rule == after.rule) else self._clock_changes(after)
        )
        return Effect(gained, lost, tuple(notes), tuple(self._warnings(before, after)))

    def _compare(self, before: _Timing | None, after: _Timing | None) -> tuple[RunTimes, RunTimes]:
        """Return the removed runs, and the added runs."""
        counts = [0 if timing is None else self._count(timing) for timing in (before, after)]
        if before is None or after is None or 0 in counts or max(counts) > _MOST_LISTED:
            is_exact = 0 in counts
            lost, gained = (
                RunTimes(
                    count, () if timing is None else tuple(islice(self._runs(timing), min(count, SHOWN))), is_exact
                )
                for timing, count in zip((before, after), counts, strict=True)
            )
            return lost, gained
        were, become = (
            list(islice(self._runs(timing), count)) for timing, count in zip((before, after), counts, strict=True)
        )
        removed, added = set(were).difference(become), set(become).difference(were)
        return _first(were, removed), _first(become, added)

    def _count(self, timing: _Timing) -> int:
        """Return the number of runs up to `until`; 0 if the rule is not valid."""
        listed, last = self._later(timing), self._last_of(timing.delay)
        if listed is None:
            later = rule_occurrences.count(timing.rule, timing.next_time, last, self.dialect)
        else:
            later = len(listed)
        found = later + (timing.settled and timing.next_run_time < self.until)
        return found if timing.most is None else min(found, timing.most)

    def _runs(self, timing: _Timing) -> Iterator[float]:
        """Yield the times of the runs. They go on after `until`, so callers take only as many as `_count` returns."""
        if timing.settled:
            yield timing.next_run_time
        listed, time = self._later(timing), timing.next_time
        if listed is not None:
            yield from [each + timing.delay for each in listed]
            return
        while (time := rule_occurrences.next_time(timing.rule, time, self.dialect)) < NEVER:
            yield time + timing.delay

    def _later(self, timing: _Timing) -> Sequence[int] | None:
        """Return the occurrences after the next occurrence; None if there are too many to list.

        The last of them is the last occurrence whose run comes before `until`.
        """
        # usually the list that `crowded_minutes` needs, too
        begin = min(timing.next_time, self._first_of(timing.delay))
        found = self._occurrences(timing.rule, begin, self._last_of(timing.delay))
        return None if found is None else found[bisect_right(found, timing.next_time) :]

    def _first_of(self, delay: float) -> int:
        """Return `now - delay`, rounded up to a second. Occurrences after this second have their runs after `now`."""
        return math.ceil(self.now - delay)

    def _last_of(self, delay: float) -> int:
        """Return the last second at which an occurrence would have its run before `until`."""
        return math.ceil(self.until - delay) - 1

    def _find_occurrences(self, rule: Rule, after: int, until: int) -> Sequence[int] | None:
        """Return the occurrences after `after` and up to `until`; None for more than `_MOST_LISTED`.

        A rule that is not valid has no occurrences.
        """
        if until <= after:
            return ()
        try:
            listed = rule_occurrences.listed(rule, after, until, self.dialect)
            found = list(islice(listed, _FEW))
            if len(found) == _FEW and rule_occurrences.count(rule, after, until, self.dialect) > _MOST_LISTED:
                return None
        except ConfigError:
            return ()
        return [*found, *listed]

    def _warnings(self, before: ScheduleRow | None, after: ScheduleRow | None) -> Iterator[str]:
        if after is None:
            if before is not None and before.status == "running":
                yield "would preempt a run that is in progress"
            return
        if after.next_time >= NEVER:
            if before is None or before.next_time < NEVER:
                yield "would never run: the rule has no occurrence from now on"
        elif after.settled and after.next_run_time <= self.now and not after.is_extra:
            yield from () if before is not None and before.next_run_time <= self.now else ("would run immediately",)

    def _clock_changes(self, row: ScheduleRow) -> Iterator[str]:
        """Yield texts about how a clock change between `now` and `until` affects the occurrences of a row."""
        change = _clock_change(row.rule.timezone, int(self.now), int(self.until))
        if change is not None:
            yield from _notes_at(rule_occurrences.plain(row.rule), change, self.dialect)

    def crowded_minutes(
        self, before: Iterable[ScheduleRow], after: Iterable[ScheduleRow]
    ) -> list[PlannedCrowdedMinute]:
        """Return the minutes in which many runs begin, if more runs begin in them than before the change.

        At most five minutes are returned, those with the most runs first. Schedules with a `spread` of a minute or more
        do not count, nor do schedules that run each minute or more often.
        """
        were, become = Counter(map(_group, before)), Counter(map(_group, after))
        were.pop(None, None)
        become.pop(None, None)
        added = become - were
        minutes = self._starts(added)
        if not minutes or sum(become.values()) < CROWDED:
            return []
        total, past = self._starts(become, minutes), self._starts(were, minutes)
        found = [
            PlannedCrowdedMinute(minute * 60, starts, past[minute])
            for minute, starts in total.items()
            if starts >= CROWDED and starts > past[minute]
        ]
        found.sort(key=lambda crowded: (-crowded.starts, crowded.time))
        more = len(found) - _MOST_MINUTES
        return [
            *found[: _MOST_MINUTES - 1],
            *(replace(crowded, more=max(0, more)) for crowded in found[_MOST_MINUTES - 1 :][:1]),
        ]

    def _starts(
        self, groups: Mapping[tuple[Rule, float] | None, int], only: Mapping[int, int] | None = None
    ) -> Counter[int]:
        """Return how many runs begin in each minute. `only`: the minutes to count, None for all."""
        found: Counter[int] = Counter()
        for group, number in groups.items():
            if group is None:
                continue
            rule, delay = group
            times = self._occurrences(rule, self._first_of(delay), self._last_of(delay))
            if times is None or len(times) >= DAYS * 1440:
                continue
            for time in times:
                minute = int(time + delay) // 60
                if only is None or minute in only:
                    found[minute] += number
        return found


def _first(runs: Iterable[float], chosen: set[float]) -> RunTimes:
    return RunTimes(len(chosen), tuple(islice((time for time in runs if time in chosen), SHOWN)))


def _timing(row: ScheduleRow) -> _Timing | None:
    """Return what decides the runs of a schedule; None if it is paused or has ended."""
    regular, most = row.regular(), row.rule.max_runs
    if row.paused or regular.next_time >= NEVER:
        return None
    left = None if most is None else max(0, most - (row.runs or 0))
    return _Timing(
        rule_occurrences.plain(row.rule), row.delay, regular.next_time, regular.next_run_time, regular.settled, left
    )


def _group(row: ScheduleRow) -> tuple[Rule, float] | None:
    """Return a key that is equal for schedules whose runs begin together; None if the schedule is not counted."""
    if row.paused or row.rule.spread >= 60 or row.next_time >= NEVER:
        return None
    return rule_occurrences.plain(row.rule), row.delay


@lru_cache(256)
def _clock_change(timezone: str, begin: int, end: int) -> int | None:
    try:
        zone = load_zone(timezone)
    except ConfigError:
        return None
    return None if offset_at(zone, begin) == offset_at(zone, end) else change_between(zone, begin, end)


@lru_cache(4096)
def _notes_at(rule: Rule, change: int, dialect: CronDialect) -> Sequence[str]:
    """Return texts about how the clock change at `change` affects the occurrences near this time."""
    near = cron.occurrences(rule.cron, change - _NEAR, rule.timezone, 100, dialect)
    first_after = next((each for each in near if each.time >= change), None)
    noted = chain((each for each in near if each.time <= change + _NEAR), () if first_after is None else (first_after,))
    found = dict.fromkeys(each for each in noted if each.note and rule_occurrences.why_not(rule, each.time) is None)
    return [f"{rule_occurrences.local_text(rule, each.time)}: {each.note}" for each in found][:SHOWN]
