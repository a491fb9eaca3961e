"""Tasks without a database: what is done with them stands in a ledger."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from psched.errors import PreemptedError
from psched.model import Claim, Lease, NewTask, Row, Rule, ScheduleRow
from psched.task import Task


class Ledger:
    """Where the tasks it hands out are settled. `entries` holds a tuple for each settling, in order."""

    shows_fence = True
    max_data_size = 16_000_000
    knows_holders = True
    keeps_data = True

    def __init__(self) -> None:
        self.entries: list[tuple[Any, ...]] = []
        self.preempted = False

    def task(self, type: str = "type1", data: dict[str, Any] | None = None, key: str = "key1") -> Task:
        """Return a task whose lease does not end."""
        row: Row = ScheduleRow(
            key,
            type,
            {} if data is None else data,
            "due",
            2,
            rule=Rule("* * * * *", "UTC"),
            next_time=60,
            next_run_time=60,
        )
        return Task(Claim(row, Lease(key, 7, 1e12)), self, deadline=1e12)

    def finish(self, claim: Claim, until: float) -> str:
        """Enter ("finished",)."""
        return self._enter("finished")

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> str:
        """Enter ("submitted", task)."""
        self._enter("submitted", task)
        return "finished"

    def retry(
        self, claim: Claim, wait: float | None, error: str | None, until: float, max_attempts: int | None = None
    ) -> str:
        """Enter ("retried", wait, the first line of error)."""
        return self._enter("retried", wait, None if error is None else error.partition("\n")[0])

    def defer(self, claim: Claim, error: str, until: float) -> str:
        """Enter ("put off", error)."""
        self._enter("put off", error)
        return "retried"

    def release(self, claim: Claim, until: float) -> str:
        """Enter ("released",)."""
        return self._enter("released")

    def cancel(self, claim: Claim, until: float) -> str:
        """Enter ("cancelled",)."""
        return self._enter("cancelled")

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Enter ("saved", data)."""
        self._enter("saved", data)

    def retry_seconds(self, attempts: int) -> None:
        """Leave that to `retry`."""

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """As many as the type says."""
        return max_attempts

    def extend(self, tasks: list[Task]) -> list[Task]:
        """Lose every lease once `preempted`."""
        return tasks if self.preempted else []

    def forget(self, task: Task) -> None:
        """Nothing is counted here."""

    def _enter(self, *entry: Any) -> str:
        if self.preempted:
            raise PreemptedError("the lease is lost")
        self.entries.append(entry)
        return str(entry[0])
