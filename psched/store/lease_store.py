"""The contract of stores for schedules and for queue tasks: due rows with leases.

`psched.store` has the common promises.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from psched.errors import NotSupportedError, ScheduleError
from psched.model import (
    WORKER_DIED,
    Claim,
    Lease,
    Retry,
)
from psched.store.alert_store import UnreportedFailures
from psched.store.delivery_watermarks import Watermarks
from psched.store.doctor_finding import Finding
from psched.store.node_registry import Nodes
from psched.store.outbox import EventOutbox
from psched.store.run_stats import RunStats
from psched.store.visitor_actions import VisitorActions
from psched.store.wakeup import Wakeup

Accepts = Callable[[str], bool]
"""Returns whether rows of this type are wanted."""


class AcquireOptions(NamedTuple):
    """The arguments of `LeaseStore.acquire`, with distinct, sorted types."""

    alive_time: float
    types: tuple[str, ...] | None
    accepts: Accepts | None
    ahead: bool


Answer = TypeVar("Answer")


def only(answers: Sequence[Answer | ScheduleError]) -> Answer:
    """Return the single element of `answers`. If this element is an error, raise it."""
    (answer,) = answers
    if isinstance(answer, ScheduleError):
        raise answer
    return answer


class LeaseStore(ABC):
    """Due rows with leases: the common part of the stores for schedules and for queue tasks.

    Methods named `…_many` settle a batch of up to a few hundred rows in one transaction. For each row they return None,
    or the error that the method for one row would raise. The method for one row, such as `release`, settles a batch
    with one row.
    """

    max_data_size: int
    """The maximum number of bytes of JSON in the data of a row."""
    shows_fence = True
    """Whether the fence of a lease is a growing number. Handlers see this number as `task.fence`."""
    failures: UnreportedFailures | None = None
    """The runs that failed for good and are not reported yet; None if the store keeps none (`rdb_compat`)."""
    knows_holders = True
    """Whether a process can find and release the leases of a dead process by the holder name of that process."""
    keeps_types = True
    """Whether the type of a row is a column of the table, so that `types` can restrict an acquire.

    On `rdb_compat` the type is in the data. So `types` is refused, and `accepts` chooses the types.
    """
    nodes: Nodes | None = None
    """The registry of the nodes; None if the store does not record nodes (`rdb_compat`)."""
    watermarks: Watermarks | None = None
    """The positions up to which events were reported to other programs; None if the store does not support watermarks.
    """
    outbox: EventOutbox | None = None
    """Events to send; None if the store does not keep them."""
    stats: RunStats | None = None
    """Statistics of the runs; None if the store keeps none (`rdb_compat`, whose tables belong to the Ruby programs)."""
    actions: VisitorActions | None = None
    """The actions of visitors of the web pages; None if the store does not record them (`rdb_compat`)."""

    sent_within: float
    """For how many seconds after its start a call without a deadline may still reach the database."""

    @abstractmethod
    def create_tables(self) -> None:
        """Create the tables and indexes, and upgrade those of earlier layouts while workers continue. Idempotent.

        May be killed and called again, and may be called by several processes at the same time. Raises ConfigError for
        tables of a version that this version of psched cannot upgrade.
        """

    @abstractmethod
    def check_tables(self) -> None:
        """Raise ConfigError if a table is missing or was created by another version. The error names `psched init`."""

    def pending_statements(self) -> list[str]:
        """Return the statements by which `create_tables` would change existing tables; [] if they are up to date.

        Raises ConfigError like `check_tables`, but not for tables that can be upgraded.
        """
        self.check_tables()
        return []

    @abstractmethod
    def prepare(self, types: Collection[str] | None = None) -> None:
        """Do in advance the work that would delay the first acquire and the first settlement. Changes no data.

        `types`: the types of the first acquire; None: all types.
        """

    @abstractmethod
    def diagnose(self, writing: bool = True) -> Iterator[Finding]:
        """Yield the findings of `psched doctor` about tables, indexes, collations, server version and clock.

        `writing`: whether to test a write to the table. A store opened with `read_only` cannot test this.
        """

    @abstractmethod
    def now(self) -> float:
        """Return the database's time in unix seconds, with fractions."""

    @abstractmethod
    def is_refused(self, error: Exception) -> bool:
        """Return whether `error` means that the database refuses our user: at login, or for lack of a privilege."""

    @abstractmethod
    def is_unavailable(self, error: Exception) -> bool:
        """Return whether `error` is temporary: the database is unreachable, overloaded or read-only."""

    def acquire(
        self,
        limit: int,
        alive_time: float,
        types: Collection[str] | None = None,
        accepts: Accepts | None = None,
        ahead: bool = False,
    ) -> list[Claim]:
        """Lease up to `limit` due rows for `alive_time` seconds, earliest first.

        Return the rows that this call has leased. Rows whose lease has ended are due again. The leases are committed
        when the call returns, and last at least `alive_time` from the start of this call. If the answer was lost, the
        leases end with the holder's next acquire. `rdb_compat` does not record holders, so there the leases expire.

        - `types`: only acquire rows of these types. Raises NotSupportedError if `keeps_types` is False.
        - `accepts`: returns whether a row of a type may be acquired. Only a store whose `keeps_types` is False calls
          this function.
        - `ahead`: whether this is a prefetch: the runs begin later, and `extend` records that they have begun. A lease
          that expires without this record does not count as an attempt.

        Nothing is written to other rows. Rows of other types do not delay rows of `types`, even if they have been due
        longer.

        An acquire counts as an attempt of the row. With `ahead`, the claim has `records_begin` if the row's last lease
        expired.
        """
        if limit < 1 or (types is not None and not types):
            return []
        wanted = None if types is None else tuple(sorted(set(types)))
        return self._acquire(limit, AcquireOptions(alive_time, wanted, accepts, ahead))

    @abstractmethod
    def _acquire(self, limit: int, options: AcquireOptions) -> list[Claim]:
        """Do what `acquire` does. `limit` is at least 1, and `options.types` is None or not empty."""

    @abstractmethod
    def next_due(self, types: Collection[str] | None = None, accepts: Accepts | None = None) -> float | None:
        """Return the seconds until a row is due by the database's clock: 0.0 if a row is due now, None without rows.

        A leased row counts as due at the end of its lease. `types` and `accepts` are as for `acquire`. It is not
        certain that a due row can be acquired: another worker may be faster, or the user of the row may be at the limit
        of `max_running`. The cost grows with the number of `types`, not with the number of other types. A store may use
        this result when it next acquires rows of some types.
        """

    @abstractmethod
    def due_by_type(self) -> Mapping[str, float]:
        """Return the result of `next_due` for each type of schedules, or of tasks that have not ended.

        One statement reads a few rows of each type, however many rows there are. A store may use this result when it
        next acquires rows of some types. Raises NotSupportedError if `keeps_types` is False.
        """

    @abstractmethod
    def open_wakeup(self, accepts: Accepts | None = None) -> Wakeup | None:
        """Return a new Wakeup for one thread and the types that `accepts` accepts; None if the store cannot notify."""

    @abstractmethod
    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool = True) -> list[Lease | None]:
        """Make each lease end `alive_time` seconds from now.

        Return the new leases in the order of `leases`, with None for a lost lease. `begun`: whether to record that the
        runs have begun, so that these attempts count no matter how the leases end.
        """

    def release(self, lease: Lease, until: float, begun: bool = True) -> None:
        """End the lease without counting the attempt.

        `begun`: whether the run has begun. If so, the row is due now. If not, the row gets back the due time from
        before this lease, and so keeps its place before rows that were due later. `rdb_compat` does not keep that time,
        so there the row is always due now.

        Raises PreemptedError and NotFoundError. Raises IdempotentAlreadyFinishedError if an earlier call under this
        lease has released the row.
        """
        only(self.release_many([lease], until, begun))

    @abstractmethod
    def release_many(self, leases: Sequence[Lease], until: float, begun: bool = True) -> list[ScheduleError | None]:
        """Release each row like `release`."""

    def retry(
        self,
        lease: Lease,
        wait: float,
        error: str | None,
        until: float,
        counted: bool = True,
        version: int | None = None,
    ) -> None:
        """Make the row due `wait` seconds from now, store `error`, and count the attempt if `counted`.

        `version`: the version of the definition that could not be run. If the definition has been changed since, the
        row is due now instead. `rdb_compat` keeps no versions, and ignores this argument.

        Raises like `release`.
        """
        only(self.retry_many([Retry(lease, wait, error, version, counted)], until))

    @abstractmethod
    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        """Retry several rows like `retry`. For each row, return None or the error that `retry` would raise."""

    @abstractmethod
    def held_claims(self, holder: str) -> dict[str, int]:
        """Return `Lease.claim` of each row that `holder` leases, by key; {} if the store does not record holders."""

    @abstractmethod
    def give_back(
        self,
        holder: str,
        suspects: Collection[str],
        longest_wait: float,
        error: str = WORKER_DIED,
        claims: Mapping[str, int] | None = None,
    ) -> int:
        """Release all rows that a dead `holder` still leases, or only the leases in `claims`. Return their number.

        `claims`: `Lease.claim` by key. These numbers distinguish the leases from later leases, if a process with the
        same holder has acquired a key again. `suspects`: the keys that were running.

        The rows of `suspects` get `error` as their last error. They are due after 1 s, doubled with each further crash,
        up to `longest_wait` seconds. All other rows get back their due times from before the lease, and their attempts
        do not count. `rdb_compat` does not record holders, so there nothing is released, and the leases expire.
        """

    def notify(self, channel: str, text: str) -> None:
        """Send a text of less than 8,000 bytes to the programs that listen to a channel.

        Only PostgreSQL can do this; other stores raise NotSupportedError.
        """
        raise NotSupportedError("this store cannot send notifications; use a table on PostgreSQL")

    @abstractmethod
    def close(self) -> None:
        """Close every connection. May be called repeatedly."""
