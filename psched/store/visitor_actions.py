"""The contract of `psched_actions`: what visitors of the web pages did to schedules and tasks, and when."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

KEPT_ACTIONS = 10_000
"""How many actions Redis keeps for each table."""


class VisitorAction(NamedTuple):
    """An action that a visitor requested. The record is written before the action is done.

    `at`: unix seconds by the database's clock. `key`: the schedule or task; empty for an action on many tasks.
    `detail`: which tasks these are, or the changes.
    """

    at: float
    user: str
    action: str
    key: str
    detail: str | None = None


class VisitorActions(Protocol):
    """The actions on one table. Methods may be called from any thread and raise the driver's errors."""

    def record(self, user: str, action: str, key: str, detail: str | None, retention: float) -> None:
        """Record an action. The action is recorded once even if the answer is lost.

        Also delete actions older than `retention` seconds; on Redis, delete all but the last `KEPT_ACTIONS`.
        """

    def last(self, limit: int, key: str | None = None) -> Sequence[VisitorAction]:
        """Return the last `limit` actions, the latest first. With `key`, return only actions on this key.

        On Redis, `key` is only searched for in the last 1,000 actions.
        """
