"""How many rows to take at a time: as many as are likely done within a moment. In children, one per lane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

_MOMENT = 0.2
"""A batch is made so large that its last task waits for about so many seconds,"""
_LONGER_MOMENT = 0.4
"""or for so many while batches are full: what is due then waits anyway, and each batch costs a transaction or two."""
TOO_LONG = 0.5
"""What would wait for longer than so many seconds, now that its types are known, is given back for others to run."""
_LARGEST = 500
_FIRST = 32
"""As many at the most after a rest: what is due all at once is for all children, and is to begin at once."""
_GROWTH = 4
_NEWS = 0.3
"""The weight of one new duration against what is known. One run of seconds outweighs any number of quick ones."""
_MOST_TYPES = 1000
"""How many types are remembered, those that ran last."""


class BatchSizer(Protocol):
    """Decides from how long the handlers of each type have been taking how many rows to take, and to keep."""

    def limit(self) -> int:
        """Return how many rows to acquire at the most, 1 or more."""
        ...

    def keep(self, types: Sequence[str]) -> int:
        """Return how many of the tasks that were taken, of these types and in this order, are to be run here."""
        ...

    def observe_run(self, type: str, seconds: float) -> None:
        """Learn how long one run of this type took."""
        ...

    def observe_poll(self, seconds: float) -> None:
        """Learn how long it took to acquire a batch."""
        ...

    def expected(self, type: str) -> float | None:
        """Return how many seconds the next run of this type may take; None: there was none yet."""
        ...


class Durations:
    """How long the runs of each type have been taking lately."""

    def __init__(self) -> None:
        self._typical: dict[str, float] = {}
        self.expected: Callable[[str], float | None] = self._typical.get
        """Returns the seconds, None when there was no run of this type."""

    def learn(self, type: str, seconds: float) -> bool:
        """Learn from one run; True when it was the first of its type that is remembered."""
        typical = self._typical
        known = typical.pop(type, None)
        if known is not None:
            typical[type] = known + _NEWS * (seconds - known)
            return False
        typical[type] = seconds
        if len(typical) > _MOST_TYPES:
            del typical[next(iter(typical))]
        return True


class FixedBatchSize:
    """`task_prefetch: N`: always the same number."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._durations = Durations()
        self.expected = self._durations.expected

    def limit(self) -> int:
        """Return the configured number."""
        return self._number

    def keep(self, types: Sequence[str]) -> int:
        """Keep all of them."""
        return len(types)

    def observe_run(self, type: str, seconds: float) -> None:
        """Learn what `expected` tells; the number stays."""
        self._durations.learn(type, seconds)

    def observe_poll(self, seconds: float) -> None:
        """The number stays."""


class AdaptiveBatchSize:
    """`task_prefetch: auto`: one at a time while handlers are slow or unknown, large batches while they are quick.

    What will be taken is not known, so the size is tried: it grows by a factor while nothing slow turns up, and falls
    back to as many as were run before that; after a rest it is small. What the types of a batch say is heeded before
    any of it begins: whatever is behind a slow one is given back. A type that is new is expected to be like other types
    when they were new.
    """

    def __init__(self) -> None:
        self._durations = Durations()
        self.expected = self._durations.expected
        self._new: float | None = None
        self._pace: float | None = None
        self._budget = BatchBudget()
        self._longest = _LONGER_MOMENT
        self._size = 1
        self._ran = 0
        self._stumbled = False

    def limit(self) -> int:
        """Return how many quick runs fit into a moment, at most a few times as many as went well before."""
        grown = self._size if self._stumbled else self._size * _GROWTH
        most = grown if self._ran else min(self._size, _FIRST)
        self._longest = self._budget.seconds(_LONGER_MOMENT)
        moment = _MOMENT if self._ran < self._size else self._longest
        fit = _LARGEST if self._pace is None else int(moment / max(self._pace, 1e-6))
        self._size = max(1, min(_LARGEST, most, fit))
        self._ran = 0
        self._stumbled = False
        return self._size

    def keep(self, types: Sequence[str]) -> int:
        """Keep those that need not wait too long for the ones before them; the first always."""
        wait, slowest, too_long = 0.0, 0.0, TOO_LONG * self._longest / _LONGER_MOMENT
        for number, type_ in enumerate(types):
            if wait > too_long or slowest > TOO_LONG:
                self._size = min(self._size, number)
                self._stumbled = True
                return number
            wait += self._expected(type_)
            slowest = max(slowest, self._expected(type_))
        return len(types)

    def observe_run(self, type: str, seconds: float) -> None:
        """Learn how long one run of this type took. One that is slow by surprise makes the next batch small."""
        if seconds > TOO_LONG:
            self._stumbled = True
            self._size = self._size if self._expected(type) > TOO_LONG else 1
        else:
            self._pace = _learnt(self._pace, seconds)
        if self._durations.learn(type, seconds):
            self._new = _learnt(self._new, seconds)
        self._ran += 1

    def observe_poll(self, seconds: float) -> None:
        """Learn how long it took to acquire a batch."""
        self._budget.learn(seconds)

    def _expected(self, type_: str) -> float:
        known = self._durations.expected(type_)
        if known is None:
            known = self._new
        return _MOMENT if known is None else known


def _learnt(known: float | None, seconds: float) -> float:
    return seconds if known is None else known + _NEWS * (seconds - known)


def batch_sizer_for(setting: int | str) -> Callable[[], BatchSizer]:
    """Return what makes a lane's prefetch for the setting `task_prefetch`."""
    if isinstance(setting, int):
        return lambda: FixedBatchSize(setting)
    return AdaptiveBatchSize


_SHARE = 0.025
"""A transaction is to take this share of the time of the work that it is for,"""
_MOST = 1.0
"""which is so many seconds at the most: so much is done twice when a worker is killed, or waits for its turn."""
"""The weight of one new transaction against what is known."""


class BatchBudget:
    """For how many seconds of work one transaction of a kind is to be."""

    def __init__(self) -> None:
        self._typical = 0.0

    def learn(self, seconds: float) -> None:
        """Learn that a transaction took so long, its waiting included."""
        self._typical += _NEWS * (seconds - self._typical)

    def seconds(self, least: float) -> float:
        """Return the seconds of work it is to be for: these, or more when transactions are slow."""
        return max(least, min(_MOST, self._typical / _SHARE))
