"""Fake tasks without a database; a ledger records what is done with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from psched.base_settlement import Settlement
from psched.errors import PreemptedError, ScheduleError
from psched.model import Claim, Lease, LeaseTimes, NewTask, Row, Rule, ScheduleRow
from psched.store import LeaseStore
from psched.store.ledger import Output
from psched.task import Task

_RETRY_WAIT = 300.0


class Store:
    """What tasks ask of a store besides settling."""

    shows_fence = True
    max_data_size = 16_000_000

    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool) -> list[Lease]:
        """Lose no lease."""
        return list(leases)


class Ledger(Settlement):
    """Where the tasks it hands out are settled. `entries` holds a tuple for each settling, in order."""

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
        """Enter ("finished",)."""
        self._enter("finished")

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        """Enter ("finished",) for each."""
        for claim in claims:
            self.finish(claim, until)
        return [None] * len(claims)

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> None:
        """Enter ("submitted", task)."""
        self._enter("submitted", task)

    def fail(self, claim: Claim, error: str | None, until: float) -> Row | None:
        """Enter ("failed", error)."""
        self._enter("failed", error)
        return None

    def purge(self) -> bool:
        """Nothing is old here."""
        return False

    def retry(self, claim: Claim, wait: float, error: str | None, max_attempts: int | None, until: float) -> str:
        """Enter ("retried", wait or None for the configured one, the first line of error)."""
        seconds = None if wait == _RETRY_WAIT else wait
        return self._enter("retried", seconds, None if error is None else error.partition("\n")[0])

    def defer(self, claim: Claim, wait: float, error: str, until: float) -> str:
        """Enter ("put off", error)."""
        self._enter("put off", error)
        return "retried"

    def release(self, claim: Claim, begun: bool, until: float) -> str:
        """Enter ("released",), or ("released", "unstarted")."""
        return self._enter("released", *([] if begun else ["unstarted"]))

    def cancel(self, claim: Claim, until: float) -> None:
        """Enter ("cancelled",)."""
        self._enter("cancelled")

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Enter ("saved", data)."""
        self._enter("saved", data)

    def keep_output(self, claim: Claim, output: Output) -> None:
        """Enter ("kept", output)."""
        self._enter("kept", output)

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """As many as the type says."""
        return max_attempts

    def _enter(self, *entry: Any) -> str:
        if self.preempted:
            raise PreemptedError("the lease is lost")
        self.entries.append(entry)
        return str(entry[0])
