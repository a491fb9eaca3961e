"""The contract of `psched_actions`: what visitors of the web pages did to schedules and tasks, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

KEPT_ACTIONS = 10_000
"""Actions that Redis keeps for each table."""


class VisitorAction(NamedTuple):
    """What a visitor was about to do. `at`: unix seconds by the database's clock.

    `key`: the schedule or task, an empty text for many. `detail`: which ones in that case, or further details.
    """

    at: float
    user: str
    action: str
    key: str
    detail: str | None = None


class VisitorActions(Protocol):
    """The actions on one table. Methods may be called from any thread; they raise the driver's errors."""

    def record(self, user: str, action: str, key: str, detail: str | None, retention: float) -> None:
        """Record an action once, also if the answer is lost, and delete some older than `retention` seconds."""

    def last(self, limit: int, key: str | None = None) -> Sequence[VisitorAction]:
        """Return the last actions, or those on one key, the last first. Reads at most 1,000 of all."""
