"""How many runs have ended, how long they took, and with which outcomes.

Reads the statistics that workers write once a minute.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from psched.errors import NotSupportedError
from psched.store import LeaseStore
from psched.store.run_stats import HOUR, MINUTE, RunStats, RunSums, StatsWindow

_BY_MINUTE = 3 * 3600.0
"""The longest window, in seconds, that is read by minute. Longer windows are read by hour, and start with a full hour.
"""
SHARES = (0.5, 0.95, 0.99)
"""The percentiles that are computed."""


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The seconds that half, 95 % and 99 % of the runs did not exceed, and the mean. Estimated from a histogram."""

    mean: float | None
    p50: float | None
    p95: float | None
    p99: float | None


_UNKNOWN = Percentiles(None, None, None, None)


@dataclass(frozen=True, slots=True)
class RunRates:
    """The runs of one type that ended in a window.

    `outcomes`: the number of runs by outcome: finished, retried, released, failed, cancelled, lost. `duration`: the
    seconds that the runs took. `wait`: the seconds that first attempts waited, from the time when the task or
    occurrence should run to the start of the attempt.
    """

    type: str
    runs: int
    per_minute: float
    outcomes: Mapping[str, int]
    duration: Percentiles
    wait: Percentiles


@dataclass(frozen=True, slots=True)
class RunReport:
    """The types with runs that ended between `begin` and `end` (unix seconds), the type with most runs first."""

    begin: float
    end: float
    types: Sequence[RunRates]


@dataclass(frozen=True, slots=True)
class RunsAt:
    """The runs that ended in the minute or hour from `time` (unix seconds)."""

    time: int
    runs: int
    outcomes: Mapping[str, int]
    duration: Percentiles
    wait: Percentiles


def run_report(store: LeaseStore, seconds: float) -> RunReport:
    """Return the runs that ended in the last `seconds`, by type.

    Raises NotSupportedError if the store counts no runs.
    """
    stats, now = _stats(store), store.now()
    window = _window(now, seconds)
    types: dict[str, dict[str, RunSums]] = defaultdict(dict)
    for each in stats.totals(window):
        assert each.type is not None
        types[each.type][each.outcome] = each.sums
    minutes = (now - window.begin) / MINUTE
    rates = [_rates(type_, outcomes, minutes) for type_, outcomes in types.items()]
    return RunReport(window.begin, now, sorted(rates, key=lambda each: (-each.runs, each.type)))


def runs_by_time(store: LeaseStore, seconds: float, type: str | None = None, durations: bool = True) -> list[RunsAt]:
    """Return the runs that ended in the last `seconds`, by minute, or by hour for windows longer than three hours.

    Leaves out minutes and hours without runs. `durations`: whether to read how long runs took; if not, their durations
    are unknown. Raises NotSupportedError if the store counts no runs.
    """
    stats = _stats(store)
    times: dict[int, dict[str, RunSums]] = defaultdict(lambda: defaultdict(RunSums))
    for each in stats.totals(_window(store.now(), seconds, type), by_time=True, durations=durations):
        assert each.time is not None
        times[each.time][each.outcome].add(each.sums)
    found = [RunsAt(time, *_summary(outcomes)) for time, outcomes in sorted(times.items())]
    return found if durations else [replace(each, duration=_UNKNOWN) for each in found]


def _stats(store: LeaseStore) -> RunStats:
    if store.stats is None:
        raise NotSupportedError(
            "rdb_compat keeps no statistics of runs, because its tables are those of PerfectSched and PerfectQueue; "
            "use `type: rdb` or `type: redis`"
        )
    return store.stats


def _window(now: float, seconds: float, type: str | None = None) -> StatsWindow:
    """Return the window that ends with the current minute or hour."""
    span = MINUTE if seconds <= _BY_MINUTE else HOUR
    begin = int(now) // span * span - math.ceil(seconds / span) * span
    return StatsWindow(begin, int(now) // span * span + span, span, type)


def _rates(type_: str, outcomes: Mapping[str, RunSums], minutes: float) -> RunRates:
    runs, by_outcome, duration, wait = _summary(outcomes)
    return RunRates(type_, runs, runs / minutes, by_outcome, duration, wait)


def _summary(outcomes: Mapping[str, RunSums]) -> tuple[int, Mapping[str, int], Percentiles, Percentiles]:
    everything = RunSums()
    for sums in outcomes.values():
        everything.add(sums)
    duration = Percentiles(everything.mean_duration, *(everything.duration(share) for share in SHARES))
    wait = Percentiles(everything.mean_wait, *(everything.wait(share) for share in SHARES))
    return everything.runs, {name: sums.runs for name, sums in outcomes.items()}, duration, wait
