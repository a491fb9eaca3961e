"""Chooses how many rows one poll acquires, and how many seconds of finished runs one transaction settles."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_MOMENT = 0.02
"""How many seconds the last task of a batch may wait for the tasks before it."""
_LONGER_MOMENT = 0.4
"""The value of `_MOMENT` while batches are full. It is longer, because each batch costs one or two transactions."""
_UNKNOWN = 0.2
"""How many seconds the very first run is expected to take."""
TOO_LONG = 0.5
"""Seconds. If a task would wait longer than this for the tasks before it, the task is released."""
_LARGEST = 500
_FIRST = 32
"""The maximum number of rows in the first batch after a pause. So all children share rows that become due together."""
_GROWTH = 4
"""The largest growth: a batch is at most this many times as large as the batch before."""
_SLOW = 0.005
"""Seconds. If runs take longer than this, the next batch is at most twice as large as the last batch."""
_WEIGHT = 0.3
"""The weight of a new duration in the average duration of its type. It is so large that one run of several seconds
outweighs any number of quick runs before it."""
MOST_TYPES = 1000
"""The maximum number of types whose average durations are remembered. The types that ran last are kept."""


class BatchSizer:
    """Limits each poll to the same number of rows. Averages the recent durations of the runs of each type."""

    def __init__(self, number: int) -> None:
        self._size = number
        self._durations: dict[str, float] = {}
        self.expected: Callable[[str], float | None] = self._durations.get
        """Returns how many seconds a run of a type is expected to take; None before the first run of the type."""

    def limit(self) -> int:
        return self._size

    def keep(self, types: Sequence[str]) -> int:
        """Return how many of the acquired tasks to run here; the caller releases the others.

        `types`: the types of the tasks, in order.
        """
        return len(types)

    def observe_run(self, type: str, seconds: float, count: int = 1) -> None:
        """Update the expected duration of this type: `count` runs took `seconds` each."""
        known = self._durations.pop(type, None)
        self._durations[type] = _averaged(known, seconds, count)
        if known is None and len(self._durations) > MOST_TYPES:
            del self._durations[next(iter(self._durations))]

    def observe_poll(self, seconds: float) -> None:
        """Update the expected latency: one acquire took `seconds`."""


class AdaptiveBatchSizer(BatchSizer):
    """Chooses batch sizes for `task_prefetch: auto`: one task while handlers are slow or unknown, otherwise many tasks.

    The batch size grows from batch to batch. After a slow run or a pause the next batch is small. Before a batch
    begins, the tasks that would wait behind a slow type are released. A new type is expected to take as long as the
    first runs of other types.
    """

    def __init__(self) -> None:
        super().__init__(1)
        self._first_run: float | None = None
        self._quick: float | None = None
        self._budget = BatchBudget()
        self._longest = _LONGER_MOMENT
        self._ran = 0
        self._was_slow = False

    def limit(self) -> int:
        """Return how many quick runs the next batch may contain: at most `_GROWTH` times the size of the last batch."""
        quick = 0.0 if self._quick is None else self._quick
        growth = 1 if self._was_slow else 2 if quick > _SLOW else _GROWTH
        most = self._size * growth if self._ran else min(self._size, _FIRST)
        self._longest = self._budget.seconds(_LONGER_MOMENT)
        moment = _MOMENT if self._ran < self._size else self._longest
        fit = int(moment / max(quick, 1e-6))
        self._size = max(1, min(_LARGEST, most, fit))
        self._ran = 0
        self._was_slow = False
        return self._size

    def keep(self, types: Sequence[str]) -> int:
        """Return how many of the first tasks to run here. The other tasks would wait too long."""
        wait, slowest = 0.0, 0.0
        too_long = TOO_LONG * self._longest / _LONGER_MOMENT
        for number, type_ in enumerate(types):
            if wait > too_long or slowest > TOO_LONG:
                self._size = min(self._size, number)
                self._was_slow = True
                return number
            wait += self._expected(type_)
            slowest = max(slowest, self._expected(type_))
        return len(types)

    def observe_run(self, type: str, seconds: float, count: int = 1) -> None:
        """If the runs were unexpectedly slow, make the next batch small."""
        if seconds > TOO_LONG:
            self._was_slow = True
            self._size = self._size if self._expected(type) > TOO_LONG else 1
        else:
            self._quick = _averaged(self._quick, seconds)
        if type not in self._durations:
            self._first_run = _averaged(self._first_run, seconds)
        self._ran += count
        super().observe_run(type, seconds, count)

    def observe_poll(self, seconds: float) -> None:
        self._budget.learn(seconds)

    def _expected(self, type_: str) -> float:
        known = self.expected(type_)
        if known is None:
            known = self._first_run
        return _UNKNOWN if known is None else known


def _averaged(known: float | None, seconds: float, count: int = 1) -> float:
    return seconds if known is None else seconds + (1 - _WEIGHT) ** count * (known - seconds)


def batch_sizer_for(setting: int | str) -> BatchSizer:
    """Return the batch sizer for `setting`: `auto`, or how many tasks are acquired in addition to the running task."""
    return BatchSizer(1 + setting) if isinstance(setting, int) else AdaptiveBatchSizer()


_SHARE = 0.025
"""A transaction should take at most this share of the time of the runs that it settles."""
_MOST = 1.0
"""The maximum number of seconds of runs per transaction. If the worker is killed before the transaction,
these runs repeat."""


class BatchBudget:
    """Chooses how many seconds of runs one transaction settles, from recent transaction latency."""

    def __init__(self) -> None:
        self._typical = 0.0

    def learn(self, seconds: float) -> None:
        self._typical += _WEIGHT * (seconds - self._typical)

    def seconds(self, least: float) -> float:
        """Return how many seconds of runs to settle in one transaction: `least`, or more if transactions are slow."""
        return max(least, min(_MOST, self._typical / _SHARE))
