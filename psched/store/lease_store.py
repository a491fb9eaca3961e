"""The contract of both stores: due rows with leases. Promises of every method: see `psched.store`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Literal, NamedTuple, Protocol, TypeVar

from psched.errors import NotSupportedError, ScheduleError
from psched.model import (
    WORKER_DIED,
    Claim,
    Lease,
    Retry,
)
from psched.store.delivery_watermarks import Watermarks
from psched.store.node_registry import Nodes
from psched.store.outbox import EventOutbox
from psched.store.overdue_and_failures import UnreportedFailures
from psched.store.run_stats import RunStats
from psched.store.visitor_actions import VisitorActions

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


class AcquireOptions(NamedTuple):
    """The arguments of `LeaseStore.acquire`, with distinct, sorted types."""

    alive_time: float
    types: tuple[str, ...] | None
    accepts: Accepts | None
    ahead: bool


Answer = TypeVar("Answer")


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
