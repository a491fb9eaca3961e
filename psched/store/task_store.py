"""The contract of a queue: a table of tasks. `psched.store` has the common promises of all methods."""

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
    "connection: a queue on Redis cannot join a database transaction; submit without `connection`, after the commit"
)
NO_RESULTS = "rdb_compat keeps neither results nor progress; use `type: rdb`"
_LONG_DUE = 1000
"""How many tasks a store without an index of due times reads to find those that have been due longest."""


class TaskStore(LeaseStore):
    """Rows that run once: `submit` creates a row, and `retire` ends it. The key is kept until the retention is over."""

    keeps_headers = True
    """Whether the store keeps headers. If not, tasks with headers are refused."""
    keeps_results = True
    """Whether the store keeps results, progress and failed tasks. If not, it does not support `update_progress` and
    `outcomes`."""

    @property
    @abstractmethod
    def reads(self) -> TaskCounts:
        """The queries that count the rows of this queue, for `psched.insight`."""

    @abstractmethod
    def submit(self, tasks: Sequence[NewTask], connection: Any = None) -> list[str]:
        """Create tasks in one transaction. Return the keys that existed before; their rows are not changed.

        `connection`: a connection of the caller to the same database. The rows are written in its transaction; see
        `Queue.submit`. The call does not commit that transaction. The transaction stays usable even if keys exist.
        `connection` may also be the argument that `advance` of a store of the same kind passes to `on_commit`. Without
        `connection`, the call is idempotent: a repeated call recognises its own commit if the answer was lost. Raises
        NotSupportedError and ValueError.
        """

    async def submit_async(self, tasks: Sequence[NewTask], connection: Any) -> list[str]:
        """Create tasks like `submit`, for a connection with awaitable statements, such as an AsyncSession."""
        raise NotSupportedError(NO_TRANSACTION)

    def submit_sql(self, task: NewTask, paramstyle: str | None = None) -> tuple[str, Any]:
        """Return one statement that creates a task if the task's key is new, and the parameters of the statement.

        `paramstyle`: as in PEP 249, or `numeric_dollar`; the default is the style of our own driver. Raises
        NotSupportedError and ValueError.
        """
        raise NotSupportedError("submit_sql: a queue on Redis has no SQL; call `submit`")

    @abstractmethod
    def get(self, key: str) -> TaskRow | None:
        """Return the task, or None. A task that has ended is returned, too."""

    @abstractmethod
    def list(self, wanted: TaskFilter) -> Iterator[TaskRow]:
        """Yield the tasks that match the filter, ordered by key. Rows are read a page at a time."""

    def long_due(self, age: float, limit: int) -> builtins.list[TaskRow]:
        """Return up to `limit` waiting tasks that have been due for at least `age` seconds.

        The tasks that have been due longest come first. A store without an index of due times only looks at some of the
        tasks.
        """
        some = islice(self.list(TaskFilter(late=age, page=_LONG_DUE)), _LONG_DUE)
        return sorted(some, key=lambda row: (row.due is None, row.due, row.key))[:limit]

    def retire(
        self, claim: Claim, status: TaskStatus, error: str | None, retention: float | None, until: float
    ) -> None:
        """End the claimed run for good with `status` (finished, failed or cancelled), and store `error`, if any.

        The row keeps the attempts of `claim.row`. The same statement stores the result and progress that `claim.result`
        holds. The key is kept for `retention` seconds, or for ever if `retention` is None. Raises PreemptedError and
        NotFoundError. Raises IdempotentAlreadyFinishedError if an earlier call under this lease has settled the run.
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
        """Retire each row like `retire`."""

    @abstractmethod
    def update_data(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Write the whole data of a claimed row. Raises PreemptedError and NotFoundError."""

    @abstractmethod
    def update_progress(self, claim: Claim, progress: str, until: float) -> None:
        """Write the progress of a claimed row, as JSON. Raises PreemptedError and NotFoundError."""

    @abstractmethod
    def outcomes(self, keys: Sequence[str]) -> Mapping[str, TaskOutcome]:
        """Return the state of each existing task with one of these keys. One statement reads a few hundred keys."""

    @abstractmethod
    def cancel_request(self, key: str, retention: float, wanted: TaskFilter | None = None) -> None:
        """Retire a waiting task as cancelled, and flag a running task. `rdb_compat` flags the task in both cases.

        For a flagged task, the next `extend` returns a lease with `cancel_requested`. `wanted`: a row that does not
        have this status, type and user at the time of the write is not changed. Raises NotFoundError and
        AlreadyFinishedError, and ScheduleError for a task that is not wanted.
        """

    @abstractmethod
    def force_finish(self, key: str, retention: float) -> None:
        """Retire the task as finished, even if it is leased. Raises NotFoundError and AlreadyFinishedError."""

    @abstractmethod
    def preempt(self, key: str, alive_time: float) -> Claim:
        """Lease the task even if it is not due, another worker has a lease of it, or its user is at `max_running`.

        Raises like `force_finish`.
        """

    @abstractmethod
    def retry_failed(self, key: str, wanted: TaskFilter | None = None) -> None:
        """Make a failed or cancelled task due now, and set its attempts to 0.

        `wanted`: as for `cancel_request`. Raises NotFoundError. Raises AlreadyFinishedError for a finished task,
        ScheduleError for a task that is waiting, running or not wanted, and NotSupportedError if the store does not
        keep failed and cancelled tasks.
        """

    @abstractmethod
    def delete(self, key: str, wanted: TaskFilter | None = None) -> None:
        """Delete the task, even if it is leased.

        `wanted`: as for `cancel_request`. Raises NotFoundError, and ScheduleError for a task that is not wanted.
        """

    @abstractmethod
    def purge(self, limit: int) -> int:
        """Delete up to `limit` tasks whose retention is over. Return their number. Safe to call concurrently."""


def check_wanted(row: TaskRow, wanted: TaskFilter, status_too: bool = True) -> None:
    """Raise ScheduleError for a task that does not have the type, user and status of `wanted`.

    A store that compares the status while it writes passes False as `status_too`.
    """
    is_wanted = wanted.type in (None, row.type) and wanted.user in (None, row.user)
    if not is_wanted or (status_too and wanted.status not in (None, row.status)):
        raise not_wanted(row.key)


def not_wanted(key: str) -> ScheduleError:
    """Return the error for a task that has changed since it was selected."""
    return ScheduleError(f"{key!r} has changed since it was selected; nothing was changed")
