"""How much work one transaction is to be for: the longer those before it took, the more. In children.

Many children on one database, or on few processors, make each other's transactions slow. If each did as many as ever
they would only become slower; so whoever finds them slow does fewer, each for more.
"""

from __future__ import annotations

_SHARE = 0.025
"""A transaction is to take this share of the time of the work that it is for,"""
_MOST = 1.0
"""which is so many seconds at the most: so much is done twice when a worker is killed, or waits for its turn."""
_NEWS = 0.3
"""The weight of one new transaction against what is known."""


class Worth:
    """For how many seconds of work one transaction of a kind is to be."""

    def __init__(self) -> None:
        self._typical = 0.0

    def learn(self, seconds: float) -> None:
        """Learn that a transaction took so long, its waiting included."""
        self._typical += _NEWS * (seconds - self._typical)

    def at_least(self, seconds: float) -> float:
        """Return the seconds of work it is to be for: these, or more when transactions are slow."""
        return max(seconds, min(_MOST, self._typical / _SHARE))
