"""The end of a queue task's run: it is retired, its key kept for a while. Used in children and in clients that poll."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

from psched.errors import NotSupportedError, ScheduleError
from psched.model import Claim, NewTask, Row, TaskRow
from psched.store import TaskStore

FINISHED = "finished"
FAILED = "failed"
CANCELLED = "cancelled"

_BATCH = 500
"""Rows purged by one statement: few enough for it to take a moment only."""

_TIDYING = (1.0, 60.0)
"""How many seconds, at the least and at the most, lie between two looks for what to purge in an idle queue."""


def retained(store: TaskStore, retention: float) -> float:
    """Return for how many seconds the key of a retired task is kept: as long as its submit may be sent again, at least.

    A submit whose answer was lost knows its own row. Without the row it would create the task a second time.
    """
    return max(retention, store.sent_within)


class Retire:
    """Ending a queue task: finished and cancelled ones go after `retention` seconds, failed ones stay for somebody.

    Unless it is said for how long they do.
    """

    keeps_data = True

    def __init__(
        self, store: TaskStore, retention: float, max_attempts: int | None, failed_retention: float | None = None
    ) -> None:
        """`max_attempts`: for tasks that say nothing themselves, and whose type does not either.

        `failed_retention`: seconds for which failed ones are kept; None: until somebody deletes or retries them.
        """
        self._store = store
        self._retention = retained(store, retention)
        self._max_attempts = max_attempts
        self._failed_retention = None if failed_retention is None else retained(store, failed_retention)

    @property
    def maintenance(self) -> float:
        """A tenth of what is retained the shortest: for so much longer it stays in an idle queue."""
        shortest = min(self._retention, math.inf if self._failed_retention is None else self._failed_retention)
        least, most = _TIDYING
        return max(least, min(shortest / 10, most))

    def finish(self, claim: Claim, until: float) -> None:
        """Retire the task as finished."""
        self._store.retire(claim, FINISHED, None, self._retention, until)

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        """Retire tasks as finished, together."""
        return self._store.retire_many(claims, FINISHED, self._retention, until)

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> None:
        """Only a schedule feeds the queue; a task may submit others, and finish then."""
        raise NotSupportedError(
            f"{claim.row.key!r} is a queue task; only a schedule finishes by submitting another one"
        )

    def fail(self, claim: Claim, error: str | None, until: float) -> Row | None:
        """Retire the task as failed, to be looked at, retried or deleted by somebody."""
        self._store.retire(claim, FAILED, error, self._failed_retention, until)
        return None

    def cancel(self, claim: Claim, until: float) -> None:
        """Retire the task as cancelled."""
        self._store.retire(claim, CANCELLED, None, self._retention, until)

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Write the task's data."""
        self._store.update_data(claim, data, until)

    def problem(self, row: Row) -> str | None:
        """Nothing but what the store found."""
        return None

    def pass_over(self, claim: Claim, now: float, until: float) -> bool:
        """A task is run however late."""
        return False

    def is_paused(self, row: Row) -> bool:
        """A task is never paused."""
        return False

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """Return what the task says, else its type, else the configuration."""
        own = cast("TaskRow", row).max_attempts
        of_type = self._max_attempts if max_attempts is None else max_attempts
        return of_type if own is None else own

    def maintain(self) -> bool:
        """Delete a batch of tasks whose retention is over."""
        return self._store.purge(_BATCH) == _BATCH
