"""Fake tasks without a database. A ledger records how they are settled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from psched.errors import PreemptedError, ScheduleError
from psched.model import Claim, Lease, LeaseTimes, NewTask, Row, Rule, ScheduleRow
from psched.settlement_base import Settlement
from psched.store import LeaseStore
from psched.store.ledger import Output
from psched.task import Task

_RETRY_WAIT = 300.0


class Store:
    """The methods of a store that tasks call, besides settling."""

    shows_fence = True
    max_data_size = 16_000_000

    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool) -> list[Lease]:
        """Return all leases: none is lost."""
        return list(leases)


class Ledger(Settlement):
    """Settles the tasks that it has made. `entries`: a tuple for each settlement, in order."""

    keeps_data = True
    output_problem: str | None = None

    def __init__(self) -> None:
        super().__init__(cast("LeaseStore", Store()), None)
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
        return Task(Claim(row, Lease(key, 7, 1e12)), self, LeaseTimes(300, _RETRY_WAIT, 30), deadline=1e12)

    def finish(self, claim: Claim, until: float) -> None:
        """Record ("finished",)."""
        self._enter("finished")

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        """Record ("finished",) for each claim."""
        for claim in claims:
            self.finish(claim, until)
        return [None] * len(claims)

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> None:
        """Record ("submitted", task)."""
        self._enter("submitted", task)

    def fail(self, claim: Claim, error: str | None, until: float) -> Row | None:
        """Record ("failed", error)."""
        self._enter("failed", error)
        return None

    def purge(self) -> bool:
        """Delete nothing."""
        return False

    def retry(self, claim: Claim, wait: float, error: str | None, max_attempts: int | None, until: float) -> str:
        """Record ("retried", wait, error). `wait`: None for the configured one; `error`: its first line."""
        seconds = None if wait == _RETRY_WAIT else wait
        return self._enter("retried", seconds, None if error is None else error.partition("\n")[0])

    def defer(self, claim: Claim, wait: float, error: str, until: float) -> str:
        """Record ("put off", error)."""
        self._enter("put off", error)
        return "retried"

    def release(self, claim: Claim, begun: bool, until: float) -> str:
        """Record ("released",), or ("released", "unstarted")."""
        return self._enter("released", *([] if begun else ["unstarted"]))

    def cancel(self, claim: Claim, until: float) -> None:
        """Record ("cancelled",)."""
        self._enter("cancelled")

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Record ("saved", data)."""
        self._enter("saved", data)

    def keep_output(self, claim: Claim, output: Output) -> None:
        """Record ("kept", output)."""
        self._enter("kept", output)

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """Return the maximum of the task's type."""
        return max_attempts

    def _enter(self, *entry: Any) -> str:
        if self.preempted:
            raise PreemptedError("the lease is lost")
        self.entries.append(entry)
        return str(entry[0])
