"""How many rows to take at a time: as many as are likely done within a moment. In children, one per lane."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

_MOMENT = 0.2
"""A batch may keep its last task waiting this many seconds."""
_LARGEST = 500
_GROWTH = 4
_OLD = 0.8
"""The weight of what is known against one new duration that is shorter."""


class Prefetch(Protocol):
    """Decides the size of the next batch from how long handlers have been taking."""

    def limit(self) -> int:
        """Return how many rows to acquire at the most, 1 or more."""
        ...

    def note(self, seconds: float) -> None:
        """Learn how long one run took."""
        ...


class FixedPrefetch:
    """`task_prefetch: N`: always the same number."""

    def __init__(self, number: int) -> None:
        self._number = number

    def limit(self) -> int:
        """Return the configured number."""
        return self._number

    def note(self, seconds: float) -> None:
        """A fixed number learns nothing."""


class AdaptivePrefetch:
    """`task_prefetch: auto`: one at a time while handlers are slow or unknown, large batches while they are quick.

    One slow run shrinks the batch at once; quick ones let it grow again by a factor at a time.
    """

    def __init__(self) -> None:
        self._typical = _MOMENT
        self._last = 1

    def limit(self) -> int:
        """Return how many runs of the typical length fit into a moment, at most a few times the last number."""
        self._last = max(1, min(_LARGEST, self._last * _GROWTH, int(_MOMENT / max(self._typical, 1e-6))))
        return self._last

    def note(self, seconds: float) -> None:
        """Take a longer duration at its word, and a shorter one as a hint."""
        self._typical = max(seconds, _OLD * self._typical + (1 - _OLD) * seconds)


def prefetch_for(setting: int | str) -> Callable[[], Prefetch]:
    """Return what makes a lane's prefetch for the setting `task_prefetch`."""
    if isinstance(setting, int):
        return lambda: FixedPrefetch(setting)
    return AdaptivePrefetch
