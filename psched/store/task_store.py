"""The contract of a queue: a table of tasks. Promises of every method: see `psched.store`."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from psched.errors import NotSupportedError, ScheduleError
from psched.model import (
    Claim,
    NewTask,
    TaskFilter,
    TaskOutcome,
    TaskRow,
    TaskStatus,
)
from psched.store.counts import TaskCounts
from psched.store.lease_store import LeaseStore, only

NO_TRANSACTION = (
    "connection: a queue on Redis cannot join a database transaction; submit without `connection`, once it is committed"
)
NO_RESULTS = "rdb_compat keeps neither results nor progress; use `type: rdb`"
_LONG_DUE = 1000
"""Tasks among which a store without an index of due times looks for those due longest."""


class TaskStore(LeaseStore):
    """Rows that are run once: created by `submit`, finished by `retire`, their keys kept for a while afterwards."""

    keeps_headers = True
    """Whether it keeps headers of tasks. Else tasks that have some are refused."""
    keeps_results = True
    """Whether it keeps results, progress and failed tasks. Else `update_progress` and `outcomes` are not supported."""

    @property
    @abstractmethod
    def reads(self) -> TaskCounts:
        """The numbers of this queue, for `psched.insight`."""

    @abstractmethod
    def submit(self, tasks: Sequence[NewTask], connection: Any = None) -> list[str]:
        """Create tasks in one transaction, and return the keys that existed before. Their rows are not changed.

        `connection`: a caller's connection to the same database, in whose transaction the rows are written; see
        `Queue.submit`. The transaction is not committed, and stays usable if keys exist. Or the argument of `on_commit`
        of `advance`, of the same kind of store. Without `connection` the call is idempotent if the answer of its commit
        was lost. Raises NotSupportedError, ValueError.
        """

    async def submit_async(self, tasks: Sequence[NewTask], connection: Any) -> list[str]:
        """As `submit`, in the transaction of a connection whose statements are awaited, such as an AsyncSession."""
        raise NotSupportedError(NO_TRANSACTION)

    def submit_sql(self, task: NewTask, paramstyle: str | None = None) -> tuple[str, Any]:
        """Return one statement that creates a task if its key is new, and its parameters.

        `paramstyle`: as in PEP 249, or `numeric_dollar`; default: that of our own driver. Raises NotSupportedError,
        ValueError.
        """
        raise NotSupportedError("submit_sql: a queue on Redis has no SQL; call `submit`")

    @abstractmethod
    def get(self, key: str) -> TaskRow | None:
        """Return the task, retired or not, or None."""

    @abstractmethod
    def list(self, wanted: TaskFilter) -> Iterator[TaskRow]:
        """Yield the tasks that pass the filter, ordered by key, a page at a time."""

    def long_due(self, age: float, limit: int, type: str | None = None) -> builtins.list[TaskRow]:
        """Return up to `limit` waiting tasks that have been due for `age` seconds, those due longest first.

        A store without an index of due times chooses among some of them only.
        """
        some = islice(self.list(TaskFilter(type=type, late=age, page=_LONG_DUE)), _LONG_DUE)
        return sorted(some, key=lambda row: (row.due is None, row.due, row.key))[:limit]

    def retire(
        self, claim: Claim, status: TaskStatus, error: str | None, retention: float | None, until: float
    ) -> None:
        """End the claimed run for good as `status` (finished, failed or cancelled), and keep `error` if any.

        The row keeps the attempts of `claim.row`, and by the same statement the result and progress in `claim.result`.
        The key is kept for `retention` seconds, None: for ever. Raises PreemptedError, NotFoundError, and
        IdempotentAlreadyFinishedError if an earlier call under this lease has settled the run.
        """
        only(self.retire_many([claim], status, retention, until, error))

    @abstractmethod
    def retire_many(
        self,
        claims: Sequence[Claim],
        status: TaskStatus,
        retention: float | None,
        until: float,
        error: str | None = None,
    ) -> builtins.list[ScheduleError | None]:
        """Retire each as `retire` does."""

    @abstractmethod
    def update_data(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Write the whole data of a claimed row. Raises PreemptedError, NotFoundError."""

    @abstractmethod
    def update_progress(self, claim: Claim, progress: str, until: float) -> None:
        """Write the progress of a claimed row, which is JSON. Raises PreemptedError, NotFoundError."""

    @abstractmethod
    def outcomes(self, keys: Sequence[str]) -> Mapping[str, TaskOutcome]:
        """Return what became of those tasks among `keys` that exist. One statement for some hundreds of keys."""

    @abstractmethod
    def cancel_request(self, key: str, retention: float) -> None:
        """Retire a waiting task as cancelled. Flag a running task, so that the next `extend` returns the flag.

        Raises NotFoundError, AlreadyFinishedError.
        """

    @abstractmethod
    def force_finish(self, key: str, retention: float) -> None:
        """Retire the task as finished, leased or not. Raises NotFoundError, AlreadyFinishedError."""

    @abstractmethod
    def preempt(self, key: str, alive_time: float) -> Claim:
        """Lease the task, held or not, due or not, regardless of `max_running`. Raises like `force_finish`."""

    @abstractmethod
    def retry_failed(self, key: str) -> None:
        """Make a failed or cancelled task due now, with its attempts at 0.

        Raises NotFoundError, AlreadyFinishedError for a finished one, ScheduleError for one that is not retired, and
        NotSupportedError where such tasks are not kept.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete the task, leased or not. Raises NotFoundError."""

    @abstractmethod
    def purge(self, limit: int) -> int:
        """Delete up to `limit` tasks whose retention is over, and return their number. Safe to call concurrently."""
