"""Forecasts how many runs of schedules start in each coming hour, and how many workers they keep busy."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from psched.cron import CronDialect
from psched.errors import ConfigError
from psched.model import Rule
from psched.schedules import rule_occurrences
from psched.store.counts import RuleUse

HOUR = 3600
_EXAMPLES = 3
"""At least so many schedules of each type, with different rules, stand for all: their last runs are averaged."""
_MOST_EXAMPLES = 300
"""The maximum number of schedules whose last runs are read. If there are few types, more schedules of each are read."""
_MOST_LISTED = 60
"""Up to this number of occurrences per hour, listing them is cheaper than counting them by arithmetic."""
_MEASURED = _MOST_EXAMPLES // _EXAMPLES
"""The maximum number of types whose runs' durations are looked up. The types with most starts are chosen."""


@dataclass(frozen=True, slots=True)
class HourForecast:
    """The forecast of one hour.

    `starts`: the number of runs that start in the hour from `time` (unix seconds). `busy`: the mean number of busy
    workers in the hour; None if the duration of runs is unknown for every type.
    """

    time: int
    starts: int
    busy: float | None


@dataclass(frozen=True, slots=True)
class Forecast:
    """The forecast of the coming hours.

    Leaves out runs by `run_now`, retries, occurrences that are already late, and paused schedules.

    - `schedules`: the number of schedules, without the `uncounted` ones.
    - `unmeasured`: types left out of `busy`, because the ledger has no run of them, or 100 types have more starts.
    - `unusable`: how many of `schedules` have a rule that cannot be used.
    - `uncounted`: the number of schedules left out because the processor time was used up. Their rules are the least
      common.
    - `may_skip`: the number of schedules with `overlap: skip`. All their starts are counted, although an occurrence
      that becomes due during a run is skipped.
    """

    hours: Sequence[HourForecast]
    schedules: int
    unmeasured: Sequence[str] = ()
    unusable: int = 0
    uncounted: int = 0
    may_skip: int = 0


@dataclass(slots=True)
class _OfType:
    """The starts of one type by hour, and the keys of some of its schedules."""

    starts: list[int]
    examples: list[str] = field(default_factory=list)


Durations = Callable[[Collection[str]], Mapping[str, Sequence[float]]]
"""Takes keys of schedules, and returns how long the last runs of each took, in seconds. The result may lack some of the
keys.
"""

StartsOf = Callable[[Rule, float], Mapping[int, int]]
"""Takes a rule and a delay, and returns the result of `starts_per_hour`."""


def forecast(
    uses: Iterable[RuleUse],
    begin: int,
    hours: int,
    dialect: CronDialect,
    durations: Durations,
    starts_of: StartsOf | None = None,
    seconds: float = math.inf,
) -> Forecast:
    """Return the forecast for `hours` hours from `begin` (unix seconds).

    The occurrences of each rule are counted once, the most common rules first, for up to `seconds` of processor time.
    `durations` is called once.
    """
    if starts_of is None:

        def starts_of(rule: Rule, delay: float) -> Mapping[int, int]:
            return starts_per_hour(rule, delay, begin, hours, dialect)

    used: dict[tuple[Rule, float], Counter[str | None]] = defaultdict(Counter)
    types: dict[str | None, _OfType] = defaultdict(lambda: _OfType([0] * hours))
    may_skip = 0
    for use in uses:
        may_skip += use.count if use.overlap == "skip" else 0
        examples = types[use.type].examples
        counts = used[use.rule, use.rule.delay_of(use.key)]
        if use.type not in counts and len(examples) < _MOST_EXAMPLES:
            examples.append(use.key)
        counts[use.type] += use.count
    schedules = unusable = uncounted = 0
    until = time.thread_time() + seconds
    for (rule, delay), counts in sorted(used.items(), key=lambda each: -each[1].total()):
        if time.thread_time() > until:
            uncounted += counts.total()
            continue
        schedules += counts.total()
        try:
            starts = starts_of(rule, delay)
        except ConfigError:  # doctor and list report these schedules as broken
            unusable += counts.total()
            continue
        for type_, count in counts.items():
            for hour, found in starts.items():
                types[type_].starts[hour] += found * count
    summed = _summed(types, begin, hours, durations, schedules, unusable)
    return replace(summed, uncounted=uncounted, may_skip=may_skip)


def starts_per_hour(rule: Rule, delay: float, begin: int, hours: int, dialect: CronDialect) -> Mapping[int, int]:
    """Return how many runs of a rule start in each of `hours` hours from `begin`. Leaves out hours without runs.

    `delay`: seconds from an occurrence to its run.

    Raises ConfigError if the rule is not valid.
    """
    first = begin - math.floor(delay)  # a time of occurrences, not of runs
    last = first + hours * HOUR - 1
    if rule_occurrences.count(rule, first - 1, last, dialect) <= hours * _MOST_LISTED:
        return Counter((time - first) // HOUR for time in rule_occurrences.listed(rule, first - 1, last, dialect))
    found: dict[int, int] = {}
    for hour in range(hours):
        start = first + hour * HOUR
        if number := rule_occurrences.count(rule, start - 1, start + HOUR - 1, dialect):
            found[hour] = number
    return found


def short_number(value: float) -> str:
    """Return a number as text of at most four characters, such as `12`, `0.3` or `15k`; `·` for 0."""
    if value == 0:
        return "·"
    for unit, size, least in (("M", 1_000_000, 999_500), ("k", 1000, 1000)):  # from 999,500 on, k would be 1000k
        if value >= least:
            return f"{value / size:.0f}{unit}"
    return f"{value:.0f}" if value >= 10 or float(value).is_integer() else f"{max(value, 0.1):.1f}"


def _summed(
    types: Mapping[str | None, _OfType],
    begin: int,
    hours: int,
    durations: Durations,
    schedules: int,
    unusable: int,
) -> Forecast:
    starts, busy = [0] * hours, [0.0] * hours
    unmeasured: list[str] = []
    is_measured = False
    ordered = sorted(types.items(), key=lambda each: -sum(each[1].starts))
    share = max(_EXAMPLES, _MOST_EXAMPLES // max(1, len(ordered)))
    examples = [key for _, found in ordered[:_MEASURED] for key in found.examples[:share]]
    measured = durations(examples) if examples else {}
    for type_, found in ordered:
        starts = [one + other for one, other in zip(starts, found.starts, strict=True)]
        taken = [seconds for key in found.examples for seconds in measured.get(key, ())]
        if taken:
            is_measured = True
            busy = [one + other for one, other in zip(busy, _busy(found.starts, sum(taken) / len(taken)), strict=True)]
        elif type_ is not None and any(found.starts):
            unmeasured.append(type_)
    rows = [
        HourForecast(begin + hour * HOUR, starts[hour], busy[hour] if is_measured else None) for hour in range(hours)
    ]
    return Forecast(rows, schedules, sorted(unmeasured), unusable)


def _busy(starts: Sequence[int], seconds: float) -> list[float]:
    """Return the mean number of busy workers in each hour, if each run takes `seconds`.

    `starts`: the number of runs that start in each hour. All are assumed to start at the beginning of the hour.
    """
    busy = [0.0] * len(starts)
    for hour, count in enumerate(starts):
        left, later = count and seconds, hour
        while left > 0 and later < len(starts):
            busy[later] += count * min(left, HOUR) / HOUR
            left, later = left - HOUR, later + 1
    return busy
