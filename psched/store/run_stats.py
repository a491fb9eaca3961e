"""The contract of `psched_stats`: how many runs ended in each minute and hour, and how long they took and waited.

A row has the sums for one table, span (minute or hour), node, type and outcome. Each write adds to the row of the
minute and to the row of the hour. So no job has to add up minutes later; old rows are only deleted. A run counts in the
minute in which it ended, by the database's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from psched.histogram import BUCKETS, bucket, percentile

MINUTE = 60
HOUR = 3600
SPANS = (MINUTE, HOUR)
"""The lengths of the two spans in seconds. Each row counts the runs of one span."""
MINUTES_KEPT = 2 * 86400.0
"""Seconds for which rows of minutes are kept. Rows of hours are kept for `stats_retention`."""
OTHER = "other"
"""The type under which a node counts all runs of types beyond the first `MOST_TYPES` in a minute."""
MOST_TYPES = 64
OUTCOMES = Literal["finished", "retried", "released", "failed", "cancelled", "lost"]
"""How runs end. `lost`: the run could not be settled, and its task runs again. `RunOutcome` has the other outcomes."""

RUNS, DURATION, WAIT, DURATIONS = 0, 1, 2, 3
"""Indexes in `RunSums`: of the number of runs, the sum of durations, the sum of waits, and the first bucket of
durations. The buckets of waits follow.
"""
WAITS = DURATIONS + BUCKETS
NUMBERS = WAITS + BUCKETS


class RunSums(list[int]):
    """Sums over runs: their number, the microseconds that they took and waited, and the buckets of both.

    The wait of a schedule's run is its lateness: from its due time to its start. The wait of a task begins when the
    task was first due. Attempts after the first have no wait. The class is a list, because each run changes the sums in
    place.
    """

    __slots__ = ()

    def __init__(self, numbers: Sequence[int] = (0,) * NUMBERS) -> None:
        super().__init__(numbers)

    def add_run(self, duration: float, wait: float | None) -> None:
        """Count a run that waited for `wait` seconds and took `duration` seconds."""
        self[RUNS] += 1
        self[DURATION] += int(duration * 1_000_000)
        self[DURATIONS + bucket(duration)] += 1
        if wait is not None:
            self[WAIT] += int(wait * 1_000_000)
            self[WAITS + bucket(wait)] += 1

    def add(self, other: Sequence[int]) -> None:
        """Add the sums of other runs."""
        self[:] = [mine + theirs for mine, theirs in zip(self, other, strict=True)]

    @property
    def runs(self) -> int:
        """How many runs ended."""
        return self[RUNS]

    @property
    def mean_duration(self) -> float | None:
        """The mean duration in seconds; None without a run."""
        return self[DURATION] / self[RUNS] / 1_000_000 if self[RUNS] else None

    @property
    def mean_wait(self) -> float | None:
        """The mean wait in seconds; None if no run has a wait."""
        waited = sum(self[WAITS:])
        return self[WAIT] / waited / 1_000_000 if waited else None

    def duration(self, share: float) -> float | None:
        """Return the duration in seconds that this share of the runs does not exceed; None without a run."""
        return percentile(self[DURATIONS:WAITS], share)

    def wait(self, share: float) -> float | None:
        """Return the wait in seconds that this share of the runs does not exceed; None if no run has a wait."""
        return percentile(self[WAITS:], share)


class RunKind(NamedTuple):
    """The key of the runs that one row counts.

    `minute`: the start of the minute, in unix seconds by the database's clock.
    """

    minute: int
    type: str
    outcome: OUTCOMES


@dataclass(frozen=True, slots=True)
class StatsWindow:
    """The times from `begin` (included) to `end` (not included), in unix seconds. Both are full minutes or hours.

    `type`: only runs of this type.
    """

    begin: int
    end: int
    span: int
    type: str | None = None


class RunTotals(NamedTuple):
    """The sums of all nodes for one outcome. They are for one type, or for the span that begins at `time`."""

    time: int | None
    type: str | None
    outcome: str
    sums: RunSums


class RunStats(Protocol):
    """The statistics of one table. Methods may be called from any thread and raise the driver's errors."""

    def add(self, node: str, counted: Sequence[tuple[RunKind, Sequence[int]]], retention: float) -> None:
        """Add the sums of runs that ended on a node. The call is one statement. In `counted`, each kind occurs once.

        If the answer is lost, the store repeats the statement and recognises its own call, so that nothing counts
        twice. `retention`: how many seconds rows of hours are kept.
        """

    def totals(self, window: StatsWindow, by_time: bool = False, durations: bool = True) -> list[RunTotals]:
        """Return the sums of all nodes, ordered by type and outcome.

        With `by_time`, there are sums for each minute or hour that had runs, ordered by time and outcome. Without
        `durations`, the query is faster, but the numbers about how long runs took may be 0.
        """

    def purge(self, retention: float, limit: int) -> bool:
        """Delete rows whose retention is over. Return whether there may be more.

        Deletes about `limit` of the rows that count the runs of a minute, and about `limit` of the rows that count the
        runs of an hour. `retention`: seconds for which a row of an hour is kept.
        """


def hours_of(counted: Sequence[tuple[RunKind, Sequence[int]]]) -> list[tuple[RunKind, RunSums]]:
    """Add up the sums of all minutes of each hour. In the result, `minute` is the start of the hour."""
    hours: dict[RunKind, RunSums] = {}
    for kind, numbers in counted:
        hour = kind._replace(minute=kind.minute // HOUR * HOUR)
        hours.setdefault(hour, RunSums()).add(numbers)
    return list(hours.items())
