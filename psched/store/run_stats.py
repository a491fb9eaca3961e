"""The contract of `psched_stats`: how many runs ended in each minute and hour, and how long they took and waited.

A row has the sums of one table, span (minute or hour), node, type and outcome. Each write adds to the row of the minute
and to that of the hour, so no later job adds up minutes: old rows are only deleted. The minute is the one in which the
run ended, by the database's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol, get_args

from psched.histogram import BUCKETS, bucket, percentile

MINUTE = 60
HOUR = 3600
SPANS = (MINUTE, HOUR)
"""Seconds that a row covers."""
MINUTES_KEPT = 2 * 86400.0
"""Seconds for which the rows of minutes are kept. Those of hours are kept for `stats_retention`."""
OTHER = "other"
"""Counts the runs of all types beyond the first `MOST_TYPES` of a node and minute."""
MOST_TYPES = 64
OUTCOMES = Literal["finished", "retried", "released", "failed", "cancelled", "lost"]
"""How runs end: as `RunOutcome`; `lost`: the run could not be settled, and its task runs again."""
ALL_OUTCOMES: tuple[OUTCOMES, ...] = get_args(OUTCOMES)

RUNS, DURATION, WAIT, DURATIONS = 0, 1, 2, 3
"""Places of numbers in `RunSums`, then the buckets of durations and of waits."""
WAITS = DURATIONS + BUCKETS
NUMBERS = WAITS + BUCKETS


class RunSums(list[int]):
    """Numbers of runs: the runs, microseconds that they took and waited, and the buckets of both.

    A schedule's run waits from when it was to run until it begins (its lateness), a task from when it was to run first.
    Later attempts have no wait. A list, because it is changed in place at each run.
    """

    __slots__ = ()

    def __init__(self, numbers: Sequence[int] = (0,) * NUMBERS) -> None:
        super().__init__(numbers)

    def add_run(self, duration: float, wait: float | None) -> None:
        """Count a run that took `duration` seconds, and waited for `wait` seconds before."""
        self[RUNS] += 1
        self[DURATION] += int(duration * 1_000_000)
        self[DURATIONS + bucket(duration)] += 1
        if wait is not None:
            self[WAIT] += int(wait * 1_000_000)
            self[WAITS + bucket(wait)] += 1

    def add(self, other: Sequence[int]) -> None:
        """Add the numbers of other runs."""
        self[:] = [mine + theirs for mine, theirs in zip(self, other, strict=True)]

    @property
    def runs(self) -> int:
        """How many runs ended."""
        return self[RUNS]

    @property
    def mean_duration(self) -> float | None:
        """The mean duration in seconds, None without a run."""
        return self[DURATION] / self[RUNS] / 1_000_000 if self[RUNS] else None

    @property
    def mean_wait(self) -> float | None:
        """The mean wait in seconds, None where none waited."""
        waited = sum(self[WAITS:])
        return self[WAIT] / waited / 1_000_000 if waited else None

    def duration(self, share: float) -> float | None:
        """Return the duration in seconds that this share of the runs does not exceed, None without a run."""
        return percentile(self[DURATIONS:WAITS], share)

    def wait(self, share: float) -> float | None:
        """Return the wait in seconds that this share of the runs does not exceed, None where none waited."""
        return percentile(self[WAITS:], share)


class RunKind(NamedTuple):
    """What the runs of one row have in common. `minute`: its begin, in unix seconds of the database's clock."""

    minute: int
    type: str
    outcome: OUTCOMES


@dataclass(frozen=True, slots=True)
class StatsWindow:
    """The times from `begin` up to, but not with, `end`, in unix seconds; both are made of whole spans.

    `type`: of this type only.
    """

    begin: int
    end: int
    span: int
    type: str | None = None


class RunTotals(NamedTuple):
    """The sums of all nodes for one outcome: of one type, or of all types in the span that begins at `time`."""

    time: int | None
    type: str | None
    outcome: str
    sums: RunSums


class RunStats(Protocol):
    """The statistics of one table. Methods may be called from any thread; they raise the driver's errors."""

    def add(self, node: str, counted: Sequence[tuple[RunKind, Sequence[int]]], retention: float) -> None:
        """Add the numbers of runs that ended on a node, each kind once, by one statement.

        A store that sends the statement again after a lost answer recognises its own call, so none counts twice.
        `retention`: seconds for which hours are kept.
        """

    def totals(self, window: StatsWindow, by_time: bool = False, durations: bool = True) -> list[RunTotals]:
        """Return the sums of all nodes by type and outcome, in this order; `by_time`: by span with runs and outcome.

        Without `durations`, the numbers about how long runs took may be 0, which is faster.
        """

    def purge(self, retention: float, limit: int) -> bool:
        """Delete about `limit` rows of each span that are kept no longer. Return whether there may be more.

        `retention`: seconds for which hours are kept.
        """


def hours_of(counted: Sequence[tuple[RunKind, Sequence[int]]]) -> list[tuple[RunKind, RunSums]]:
    """Return the numbers of minutes added up by hour; `minute` is then the begin of the hour."""
    hours: dict[RunKind, RunSums] = {}
    for kind, numbers in counted:
        hour = kind._replace(minute=kind.minute // HOUR * HOUR)
        hours.setdefault(hour, RunSums()).add(numbers)
    return list(hours.items())
