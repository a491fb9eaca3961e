"""The contract between the engine and a database: the methods of every store.

A store holds rows that are due at a time. Holding a row means having written a due time in the future together with a
fence. Only the database's clock decides what is due and when a lease ends, and each statement reads the clock itself.
Every write under a lease compares the fence and checks the row count. No method waits for work.

Errors: a method raises the exceptions that its docstring names, or the driver's own error (wrapped by SQLAlchemy, or
redis-py's). Transient faults raise only after a bounded number of retries; the store's `is_unavailable` tells whether
an error is transient.

Writes under a lease take `until`, a deadline on `psched.clock.boottime`. Until then, lost connections and deadlocks are
retried. If the answer to a commit was lost, the retry recognises the commit by its fence and does not settle twice.

Methods may be called from any thread of the process that opened the store; a store must not cross a fork.
"""

from __future__ import annotations

import builtins
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, NamedTuple, Protocol, TypeVar

from psched.errors import AlreadyExistsError, NotSupportedError, ScheduleError
from psched.model import (
    WORKER_DIED,
    Claim,
    Lease,
    NewTask,
    Policy,
    Retry,
    Rule,
    ScheduleFilter,
    ScheduleRow,
    TaskFilter,
    TaskOutcome,
    TaskRow,
    TaskStatus,
)
from psched.payload import MAX_DATA_SIZE
from psched.store.calendars import Calendars
from psched.store.counts import ScheduleReads, TaskReads
from psched.store.delivery_watermarks import Watermarks
from psched.store.ledger import MODIFY, Entry, Ledger, OnCommit, Step
from psched.store.node_registry import Nodes
from psched.store.outbox import EventOutbox
from psched.store.overdue_and_failures import OverdueAlerts, UnreportedFailures
from psched.store.run_stats import RunStats
from psched.store.visitor_actions import VisitorActions


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """The parameters of a backend's `open_stores(settings) -> Stores`. A table that is None is not opened.

    `holder` names one incarnation of one process (`host/pid/random`, at most 255 characters) and is written with each
    lease, so that a successor can release the leases of a dead process. `tls` has the keys ca, cert, key and verify.
    `max_data_size`: the most bytes of JSON in a row. More is a problem when read, and raises ValueError when written.
    `connections`: the most idle connections that a store keeps open, one for each thread of its process. `reckoning`:
    the cron dialect and tz database of this process, for the ledger. `ledger`: the ledger's table where a store keeps
    one only on request. `problem` returns the error of a schedule that psched cannot run, or None: a store whose table
    is shared with other programs (`rdb_compat`) acquires no such row. `pooler`: what a connection pooler before the
    database gives a client: `session` (its own), `transaction` (any, for each transaction), or `auto` to find out
    whether there is a pooler (PostgreSQL), and then assume `transaction`.
    `disable_resource_limit` and `use_connection_pooling` are PerfectQueue's, for a queue that is shared with it.
    `keeps_failures`: runs that fail for good are kept until they were reported. `keeps_endings`: the end of each queue
    task is put into the outbox.
    `database`: makes the object by which a store on SQL reaches its database, of its dialect (None: a `Database` with
    connections of its own).
    `read_only`: for `psched.insight`: the store never writes, its sessions refuse writes, and no statement takes longer
    than 2 s. `long_reads`: such a store may take as long for a statement as one that writes.
    """

    url: str
    holder: str
    schedules: str | None = None
    queue: str | None = None
    tls: Mapping[str, Any] = field(default_factory=dict)
    reckoning: str = ""
    connections: int = 1
    max_data_size: int = MAX_DATA_SIZE
    ledger: str | None = None
    pooler: str = "auto"
    problem: Callable[[Any], str | None] | None = None
    disable_resource_limit: bool = False
    use_connection_pooling: bool = False
    keeps_failures: bool = False
    keeps_endings: bool = False
    database: Callable[[Any], Any] | None = None
    read_only: bool = False
    long_reads: bool = False


Accepts = Callable[[str], bool]
"""Returns whether rows of a type are wanted."""


FindingLevel = Literal["ok", "warning", "failed"]


class Finding(NamedTuple):
    """What one check of `psched doctor` has found.

    `ok`: whether the subject is in order. `warning`: it is, but an operator should look at it. `message`: a sentence.
    `remedy`: what to do; None if there is nothing to do, or if the message says it.
    """

    subject: str
    ok: bool
    message: str
    warning: bool = False
    remedy: str | None = None

    @property
    def level(self) -> FindingLevel:
        """How bad it is."""
        return "failed" if not self.ok else "warning" if self.warning else "ok"

    @property
    def text(self) -> str:
        """The message with the remedy."""
        return self.message if self.remedy is None else f"{self.message}; {self.remedy}"


class Wakeup(Protocol):
    """Notifies one waiting thread that rows may have become due. A notification may be lost, or be in vain.

    A Wakeup has a connection of its own. `listen` and `is_notified` raise the driver's errors of this connection; the
    waiting thread then polls as without notifications, and may listen again later.
    """

    @property
    def proven(self) -> bool:
        """Whether notifications are known to arrive, so that polls may be rare. A pooler can suppress them."""

    @property
    def covers_all_hosts(self) -> bool:
        """Whether it is notified of each row, whichever host makes it due, and not before the row can be read."""

    def listen(self, seconds: float) -> None:
        """Listen for at most about `seconds`; earlier notifications may be dropped. Waits for the server."""

    def fileno(self) -> int:
        """Return the descriptor that is readable after a notification. Call it only while listening."""

    def is_notified(self) -> bool:
        """Return whether a notification came since the last call, or since `listen`. Never waits.

        After a notification, `listen` may have to be called again.
        """

    def stop_listening(self) -> None:
        """Stop listening, so that a notification goes to an idle worker instead. Never waits or raises."""

    def close(self) -> None:
        """Close its connection; idempotent."""


class RowChange(NamedTuple):
    """One change of a schedule by `ScheduleStore.apply`.

    `seen`: the row before, None for a new schedule. `wanted`: the row after, None for a schedule to be deleted.
    """

    seen: ScheduleRow | None
    wanted: ScheduleRow | None

    @property
    def key(self) -> str:
        """The key of the schedule."""
        row = self.seen or self.wanted
        assert row is not None
        return row.key


class AcquireOptions(NamedTuple):
    """The arguments of `LeaseStore.acquire`, with distinct, sorted types."""

    alive_time: float
    types: tuple[str, ...] | None
    accepts: Accepts | None
    ahead: bool


Answer = TypeVar("Answer")

_LONG_DUE = 1000
"""Tasks among which a store without an index of due times looks for those due longest."""


def only(answers: Sequence[Answer | ScheduleError]) -> Answer:
    """Return the answer of a batch of one, or raise an answer that is an error."""
    (answer,) = answers
    if isinstance(answer, ScheduleError):
        raise answer
    return answer


class LeaseStore(ABC):
    """Due rows with leases: all that schedules and queue tasks have in common.

    Methods named `…_many` settle a batch, some hundreds of rows in one transaction. For each row they return None, or
    the error that the method for one row raises. A method for one row is a batch of one.
    """

    max_data_size: int
    """Bytes of JSON that the data of a row may have."""
    shows_fence = True
    """Whether a lease's fence is a growing number, shown to handlers as `task.fence`."""
    failures: UnreportedFailures | None = None
    """The runs that failed for good and are not reported yet; None where no run can fail for good."""
    knows_holders = True
    """Whether another process can find and release the leases of a dead process by its holder name."""
    keeps_types = True
    """Whether the type of a row is a column, so that `types` limits what is acquired.

    Where types are in the data (`rdb_compat`), `types` is refused, and `accepts` selects the types.
    """
    nodes: Nodes | None = None
    """The workers that are alive; None where that is not recorded (`rdb_compat`)."""
    watermarks: Watermarks | None = None
    """How far events were reported to the outside; None where that is not supported."""
    outbox: EventOutbox | None = None
    """Events to be sent; None where they are not kept."""
    stats: RunStats | None = None
    """Statistics of the runs; None where none are kept (`rdb_compat`, whose tables are the original's)."""
    actions: VisitorActions | None = None
    """What visitors of the web pages did; None where that is not recorded (`rdb_compat`)."""

    sent_within: float
    """Seconds after its begin for which a call without a deadline may still be sent again."""

    @abstractmethod
    def create_tables(self) -> None:
        """Create the tables and indexes, and upgrade those of earlier layouts while workers go on; idempotent.

        May be killed and called again, and called by several processes at once. Raises ConfigError for tables of a
        version that it cannot upgrade.
        """

    @abstractmethod
    def check_tables(self) -> None:
        """Raise ConfigError naming `psched init` when a table is missing, or was made by another version."""

    def pending_statements(self) -> list[str]:
        """Return the statements by which `create_tables` would change tables that exist; none for up-to-date tables.

        Raises ConfigError as `check_tables` does, but not for tables that can be upgraded.
        """
        self.check_tables()
        return []

    @abstractmethod
    def prepare(self, types: Collection[str] | None = None) -> None:
        """Prepare what would delay the first acquire (of `types`) and settlement. Changes no data."""

    @abstractmethod
    def diagnose(self, writing: bool = True) -> Iterator[Finding]:
        """Yield the findings of `psched doctor`: tables, indexes, collations, server version and clock.

        `writing`: also test whether the table can be written. A store opened with `read_only` cannot test that.
        """

    @abstractmethod
    def now(self) -> float:
        """Return the database's clock in unix seconds, with its fraction."""

    @abstractmethod
    def is_refused(self, error: Exception) -> bool:
        """Return whether `error` means that the database refuses our user, by login or for lack of a privilege."""

    @abstractmethod
    def is_unavailable(self, error: Exception) -> bool:
        """Return whether `error` is temporary: the database is away, overloaded or read-only."""

    def acquire(
        self,
        limit: int,
        alive_time: float,
        types: Collection[str] | None = None,
        accepts: Accepts | None = None,
        ahead: bool = False,
    ) -> list[Claim]:
        """Lease up to `limit` due rows for `alive_time` seconds, earliest first, and return those that are ours alone.

        Rows whose lease has ended are due again. `types`: rows of these types only; raises NotSupportedError unless the
        store `keeps_types`. Other stores take only rows whose type `accepts` accepts. Nothing is written to other rows,
        and rows of other types that have been due longer delay no row of these. The leases are committed on return and
        last at least `alive_time` from this call. If the answer was lost, they end with the holder's next acquire (in
        `rdb_compat`, which knows no holders, by themselves).

        An acquire counts as an attempt of the row. `ahead`: the runs begin later, which `extend` records. A lease that
        ends by itself before that is no attempt. The claim on a row whose last lease ended by itself then has
        `records_begin`.
        """
        if limit < 1 or (types is not None and not types):
            return []
        wanted = None if types is None else tuple(sorted(set(types)))
        return self._acquire(limit, AcquireOptions(alive_time, wanted, accepts, ahead))

    @abstractmethod
    def _acquire(self, limit: int, options: AcquireOptions) -> list[Claim]:
        """Acquire up to `limit` rows, at least 1, as `acquire` says; `options.types` is not empty."""

    @abstractmethod
    def next_due(self, types: Collection[str] | None = None, accepts: Accepts | None = None) -> float | None:
        """Return the seconds until a row is due by the database's clock, 0.0 if one is due now, None without a row.

        The end of a lease counts, too: the row is due then unless it is settled before. `types` and `accepts` as for
        `acquire`. A due row may not be acquirable: another worker may be faster, or its user at the limit of
        `max_running`. The cost grows with the number of `types`, not with the number of other types. A store may use
        this result when it next acquires rows of some types.
        """

    @abstractmethod
    def due_by_type(self) -> Mapping[str, float]:
        """Return the result of `next_due` for each type that has rows which are not retired.

        One statement, which reads a few rows of each type, however many there are. A store may use this result
        when it next acquires rows of some types. Raises NotSupportedError unless the store `keeps_types`.
        """

    @abstractmethod
    def open_wakeup(self, accepts: Accepts | None = None) -> Wakeup | None:
        """Return a new Wakeup of one thread for types that `accepts` accepts; None where the store cannot notify."""

    @abstractmethod
    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool = True) -> list[Lease | None]:
        """Make each lease end `alive_time` seconds from now. Return the new leases in order, None for a lost lease.

        `begun`: record that their runs have begun, so that these attempts count however the leases end.
        """

    def release(self, lease: Lease, until: float) -> None:
        """Make the row due now, without counting the attempt.

        Raises PreemptedError, NotFoundError, and IdempotentAlreadyFinishedError if an earlier call under this lease has
        released the row.
        """
        only(self.release_many([lease], until))

    @abstractmethod
    def release_many(self, leases: Sequence[Lease], until: float) -> list[ScheduleError | None]:
        """Release each as `release` does."""

    def retry(
        self,
        lease: Lease,
        wait: float,
        error: str | None,
        until: float,
        counted: bool = True,
        version: int | None = None,
    ) -> None:
        """Make the row due `wait` seconds from now, keep `error`, and count the attempt if `counted`. As `release`.

        `version`: of the definition that makes the row wait. If the row has another version by then, it is due now (not
        on `rdb_compat`, which keeps no versions).
        """
        only(self.retry_many([Retry(lease, wait, error, version, counted)], until))

    @abstractmethod
    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        """Retry several rows like `retry`. Return for each None, or the error that `retry` raises."""

    @abstractmethod
    def held_claims(self, holder: str) -> dict[str, int]:
        """Return the keys of the rows that `holder` leases, with `Lease.claim`; none where a store knows no holders."""

    @abstractmethod
    def give_back(
        self,
        holder: str,
        suspects: Collection[str],
        longest_wait: float,
        error: str = WORKER_DIED,
        keys: Collection[str] | None = None,
    ) -> int:
        """Release all rows that a dead `holder` still leases, or those of `keys` only, and return their number.

        Rows in `suspects` (the keys of its runs) get `error` as last error, and are due after 1 s, doubled with each
        further crash up to `longest_wait` seconds. All others are due at once, without counting the attempt. Where a
        store knows no holders (`rdb_compat`), nothing is released and the leases end by themselves.
        """

    def notify(self, channel: str, text: str) -> None:
        """Send text of less than 8,000 bytes to the programs that listen to a channel. Raises NotSupportedError."""
        raise NotSupportedError("only PostgreSQL has channels")

    @abstractmethod
    def close(self) -> None:
        """Close every connection; idempotent."""


class ScheduleStore(LeaseStore):
    """Rows that recur: created by `add`, finished by `advance` to the next occurrence."""

    ledger: Ledger | None = None
    """The ledger of their runs; None where none is kept."""
    keeps_policies = True
    """Whether it has policies and pauses, which need a ledger, and extra runs."""
    calendars: Calendars | None = None
    """The named calendars; None where they are not supported."""
    alerts: OverdueAlerts | None = None
    """The overdue alerts; None where they are not supported."""

    @property
    @abstractmethod
    def reads(self) -> ScheduleReads:
        """The numbers of this table, for `psched.insight`."""

    @abstractmethod
    def shares_database(self, queue: object) -> bool:
        """Return whether both are in one database, so that `on_commit` of `advance` may submit to `queue`."""

    def add(
        self,
        key: str,
        type: str,
        rule: Rule,
        next_time: int,
        next_run_time: float,
        data: Mapping[str, Any],
        policy: Policy = Policy(),  # noqa: B008 – frozen
    ) -> None:
        """Create a schedule. Idempotent if the answer of its own commit was lost.

        Raises AlreadyExistsError, and ValueError for values that do not fit into the table.
        """
        row = ScheduleRow(
            key, type, dict(data), "waiting", rule=rule, next_time=next_time, next_run_time=next_run_time, policy=policy
        )
        if self.add_many([row]):
            raise AlreadyExistsError(f"a schedule has the key {key!r} already; modify it, or choose another key")

    @abstractmethod
    def add_many(self, schedules: Sequence[ScheduleRow]) -> builtins.list[str]:
        """Create schedules in one transaction, and return the keys that existed before. Their rows are not changed.

        On Redis some hundreds are one transaction; repeat a call that failed midway. Only the fields that `add` takes
        are used. Idempotent like `add`. Raises ValueError and NotSupportedError before anything is written.
        """

    @abstractmethod
    def get(self, key: str) -> ScheduleRow | None:
        """Return the schedule, or None."""

    def get_many(self, keys: Sequence[str]) -> builtins.list[ScheduleRow]:
        """Return those of the schedules that exist, some hundreds read at a time, in any order."""
        return [row for key in keys if (row := self.get(key)) is not None]

    @abstractmethod
    def list(self, wanted: ScheduleFilter = ScheduleFilter()) -> Iterator[ScheduleRow]:  # noqa: B008 - frozen
        """Yield the schedules that pass the filter, ordered by due time and key, a page at a time."""

    @abstractmethod
    def long_due(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        """Return up to `limit` schedules that have been due for `age` seconds, those due longest first.

        A leased schedule is due when its lease ends. Rows of backfills are left out. In these rows `data` is {}, and
        `problem` does not cover it.
        """

    @abstractmethod
    def failing(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        """Return up to `limit` schedules with a failed attempt, whose occurrence was to run `age` seconds ago.

        The oldest first. A schedule may be running again. Paused schedules and rows of backfills are left out, and so
        are all where attempts are not counted (`rdb_compat`). `data` as for `long_due`.
        """

    @abstractmethod
    def modify(self, seen: ScheduleRow, wanted: ScheduleRow, action: str = MODIFY, entry: Entry | None = None) -> bool:
        """Write the differences between `seen` and `wanted`, except leases, attempts and errors.

        The ledger records the change as `action`. `entry`: of the occurrence in `seen`, if the change skips it. Return
        False, and write nothing, if the row no longer has the definition, times and lease of `seen`. The `version` is
        compared, or every column where no version is kept (`rdb_compat`).
        """

    def apply(self, changes: Sequence[RowChange]) -> builtins.list[str]:
        """Make all these changes, of different schedules, in one transaction (on Redis in one script), or none of them.

        Return the keys of rows that are not as expected; nothing is written then. The row of a new schedule must not
        exist, a row to be modified must have the definition, times and lease of `seen` (as for `modify`), a row to be
        deleted its version. The ledger records each change as `add`, `modify` or `delete`. Idempotent if the answer of
        its own commit was lost. Raises ValueError before anything is written, and NotSupportedError where the store
        keeps no owners.
        """
        raise NotSupportedError("this store keeps no owner of a schedule; type: rdb and redis do")

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete the schedule, leased or not. Raises NotFoundError."""

    def advance(
        self,
        claim: Claim,
        next_time: int,
        next_run_time: float,
        until: float,
        on_commit: OnCommit | None = None,
        entry: Entry = Entry(),  # noqa: B008 – frozen
    ) -> ScheduleRow | None:
        """Settle the claimed occurrence: store the next one, computed from what `claim.row` says, and end the lease.

        `entry` is written to the ledger in the same transaction. `on_commit` is called with a `connection` for
        `submit`, and what it submits is committed with this call. `on_commit` may be called several times, and for
        attempts that are rolled back.

        Return None if the occurrence is settled. If the schedule was changed since the acquire (`rdb`, `redis`: its
        version or rule is not that of `claim.row`; `rdb_compat`: its rule), nothing is written and the stored row,
        perhaps without its data, is returned. Raises PreemptedError, NotFoundError, and IdempotentAlreadyFinishedError
        if an earlier call under this lease has settled the occurrence.
        """
        return only(self.advance_many([Step(claim, next_time, next_run_time, entry, on_commit)], until))

    @abstractmethod
    def advance_many(self, steps: Sequence[Step], until: float) -> builtins.list[ScheduleRow | ScheduleError | None]:
        """Advance each as `advance` does; return its results or errors."""

    @abstractmethod
    def park(self, lease: Lease, due: float, until: float) -> None:
        """Release a paused row: due at `due` (unix seconds), or now if it is not paused any more. As `release`."""


NO_TRANSACTION = (
    "connection: a queue on Redis cannot join a database transaction; submit without `connection`, once it is committed"
)
NO_RESULTS = "rdb_compat keeps neither results nor progress; type: rdb does"


class TaskStore(LeaseStore):
    """Rows that are run once: created by `submit`, finished by `retire`, their keys kept for a while afterwards."""

    keeps_headers = True
    """Whether it keeps headers of tasks. Else tasks that have some are refused."""
    keeps_results = True
    """Whether it keeps results, progress and failed tasks. Else `update_progress` and `outcomes` are not supported."""

    @property
    @abstractmethod
    def reads(self) -> TaskReads:
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


class Stores(NamedTuple):
    """The result of `open_stores`: a store for each table that was named."""

    schedules: ScheduleStore | None = None
    queue: TaskStore | None = None


def holder_name(role: str) -> str:
    """Return `host/role/random`, at most 255 characters; `role` names the process on the host."""
    return f"{socket.gethostname()[:120]}/{role[:100]}/{secrets.token_hex(8)}"
