"""The contract of the outbox: events that the database keeps until a receiver has accepted them.

The event for the end of a queue task is written in the transaction that retires the task. The event for an alert is
written when the alert is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from psched.model import TaskRow, TaskStatus
from psched.stored_error_summary import shortened

_LONGEST_ERROR = 2000
"""The maximum number of characters of an error, as in the ledger."""


class PendingEvent(NamedTuple):
    """An event that waits to be sent. `at`: when it was written (unix seconds). `place`: a unique id.

    `facts`: the fields of the event; {} if the stored text is not a JSON object.
    """

    place: str
    at: float
    facts: Mapping[str, Any]


class EventOutbox(Protocol):
    """The outbox of one table. Methods may be called from any thread and raise the driver's errors."""

    def put(self, facts: Mapping[str, object]) -> None:
        """Add an event."""

    def page(self, limit: int) -> list[PendingEvent]:
        """Return up to `limit` events, the oldest first."""

    def remove(self, events: Sequence[PendingEvent]) -> None:
        """Delete events that were sent, at most a few hundred. Idempotent."""

    def trim(self, age: float, limit: int) -> int:
        """Delete up to about `limit` events that are older than `age` seconds. Return their number."""


def task_ended(row: TaskRow, status: TaskStatus, error: str | None, node: str, fence: int | None) -> dict[str, Any]:
    """Return the fields of the event that reports the end of a queue task. Names and meanings are stable.

    `fence`: None for a task that ended without a run.
    """
    return {
        "event": "task",
        "key": row.key,
        "type": row.type,
        "scheduled_time": row.scheduled_time,
        "fence": fence,
        "outcome": status,
        "attempts": row.attempts,
        "error": None if error is None else shortened(error, _LONGEST_ERROR),
        "node": node,
    }
