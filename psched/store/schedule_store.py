"""The contract of a table of schedules. `psched.store` has the common promises of all methods."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from psched.errors import AlreadyExistsError, NotSupportedError, ScheduleError
from psched.keys import is_backfill_key
from psched.model import (
    Claim,
    Lease,
    Policy,
    Rule,
    ScheduleFilter,
    ScheduleRow,
)
from psched.store.alert_store import OverdueAlerts
from psched.store.calendars import Calendars
from psched.store.counts import ScheduleCounts
from psched.store.lease_store import LeaseStore, only
from psched.store.ledger import MODIFY, Entry, Ledger, OnCommit, Step


class UnreadRow(NamedTuple):
    """The expected version of a row that the caller of `ScheduleStore.apply` has not read."""

    key: str
    version: int | None


class RowChange(NamedTuple):
    """One change of a schedule by `ScheduleStore.apply`.

    - `seen`: the row before the change, None for a new schedule. An `UnreadRow` needs `redefine`, or a `wanted` of
      None.
    - `wanted`: the row after the change, None to delete the schedule.
    - `redefine(row, time)`: returns the row after the change, given the stored row and the time of the write (unix
      seconds). So workers may run the schedule between the read of `seen` and the write. With `redefine`, only the data
      of `wanted` is used. `redefine` is a pure function, and may be called several times. It changes only the
      definition, and the times of a row that is not leased.
    """

    seen: ScheduleRow | UnreadRow | None
    wanted: ScheduleRow | None
    redefine: Callable[[ScheduleRow, float], ScheduleRow] | None = None

    @property
    def key(self) -> str:
        """The key of the schedule."""
        row = self.wanted if self.seen is None else self.seen
        assert row is not None
        return row.key


class ScheduleStore(LeaseStore):
    """Rows that recur: `add` creates a row, and `advance` moves it to its next occurrence."""

    ledger: Ledger | None = None
    """The ledger of the runs; None if the store keeps none."""
    keeps_policies = True
    """Whether the store supports extra runs, policies and pauses. Policies and pauses need a ledger."""
    advances_together = True
    """Whether `advance_many` advances many schedules by one statement."""
    calendars: Calendars | None = None
    """The named calendars; None if the store does not support them."""
    alerts: OverdueAlerts | None = None
    """The overdue alerts; None if the store does not support them."""

    def is_backfill(self, key: str) -> bool:
        """Return whether `key` belongs to a row of a backfill. `rdb_compat` has no backfills."""
        return self.keeps_policies and is_backfill_key(key)

    @property
    @abstractmethod
    def reads(self) -> ScheduleCounts:
        """The queries that count the rows of this table, for `psched.insight`."""

    @abstractmethod
    def shares_database(self, queue: object) -> bool:
        """Return whether this table and `queue` are in one database.

        If so, `on_commit` of `advance` may submit to `queue`.
        """

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
        """Create a schedule. Idempotent: a repeated call recognises its own commit if the answer was lost.

        Raises AlreadyExistsError, and ValueError for values that do not fit into the table.
        """
        row = ScheduleRow(
            key, type, dict(data), "waiting", rule=rule, next_time=next_time, next_run_time=next_run_time, policy=policy
        )
        if self.add_many([row]):
            raise AlreadyExistsError(f"a schedule has the key {key!r} already; modify it, or choose another key")

    @abstractmethod
    def add_many(self, schedules: Sequence[ScheduleRow]) -> builtins.list[str]:
        """Create schedules. Return the keys that existed before; their rows are not changed.

        Creates all schedules in one transaction; on Redis, only a few hundred in each transaction. If a call failed
        halfway, repeat it. Only the fields that `add` takes are used. Idempotent like `add`. Raises ValueError and
        NotSupportedError before anything is written.
        """

    @abstractmethod
    def get(self, key: str) -> ScheduleRow | None:
        """Return the schedule, or None."""

    def get_many(self, keys: Sequence[str]) -> builtins.list[ScheduleRow]:
        """Return the schedules that exist, in any order. A few hundred are read at a time."""
        return [row for key in keys if (row := self.get(key)) is not None]

    @abstractmethod
    def list(self, wanted: ScheduleFilter = ScheduleFilter()) -> Iterator[ScheduleRow]:  # noqa: B008 - frozen
        """Yield the schedules that match the filter, ordered by due time and key. Rows are read a page at a time."""

    @abstractmethod
    def long_due(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        """Return up to `limit` schedules that have been due for at least `age` seconds.

        The schedules that have been due longest come first. A leased schedule is due when its lease ends. Rows of
        backfills are left out. In the returned rows `data` is {}, and `problem` does not consider the data.
        """

    @abstractmethod
    def failing(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        """Return up to `limit` schedules whose occurrence was due at least `age` seconds ago and has a failed attempt.

        The schedule with the oldest occurrence comes first. A returned schedule may be running again. Paused schedules
        and rows of backfills are left out. `rdb_compat` does not count attempts, so there the result is empty. `data`
        is as for `long_due`.
        """

    @abstractmethod
    def modify(self, seen: ScheduleRow, wanted: ScheduleRow, action: str = MODIFY, entry: Entry | None = None) -> bool:
        """Write the differences between `seen` and `wanted`, except leases, attempts and errors.

        The ledger records the change as `action`. `entry`: the ledger entry of the occurrence in `seen`, if the change
        skips this occurrence. Return False, and write nothing, if the row no longer has the definition, times and lease
        of `seen`. The definition is compared by its `version`. `rdb_compat` keeps no version, and compares every
        column.
        """

    def apply(self, changes: Sequence[RowChange]) -> builtins.list[str]:
        """Make all these changes of different schedules, or none of them, in one transaction.

        On Redis the transaction is one script. If rows are not as expected, write nothing and return their keys. The
        row of a new schedule must not exist. A row to modify or delete must have the version of `seen`; without
        `redefine`, a row to modify must also have the times and lease of `seen`, as for `modify`. The ledger records
        each change as `add`, `modify` or `delete`. Idempotent: a repeated call recognises its own commit if the answer
        was lost. Raises ValueError before anything is written. Raises NotSupportedError if the store keeps no owners.
        """
        raise NotSupportedError("this store keeps no owner of a schedule; use `type: rdb` or `type: redis`")

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete the schedule, even if it is leased. Raises NotFoundError."""

    def advance(
        self,
        claim: Claim,
        next_time: int,
        next_run_time: float,
        until: float,
        on_commit: OnCommit | None = None,
        entry: Entry = Entry(),  # noqa: B008 – frozen
    ) -> ScheduleRow | None:
        """Settle the claimed occurrence: store the next occurrence, computed from `claim.row`, and end the lease.

        `entry` is written to the ledger in the same transaction. `on_commit` is called with a `connection` for
        `submit`; tasks submitted through it are committed with this call. `on_commit` may be called several times, even
        for attempts that are rolled back.

        Return None if the occurrence is settled. If the schedule was changed since the acquire, write nothing and
        return the stored row, perhaps without its data. A schedule counts as changed if its version or rule differs
        from `claim.row`. On `rdb_compat`, only the rule is compared.

        Raises PreemptedError and NotFoundError. Raises IdempotentAlreadyFinishedError if an earlier call under this
        lease has settled the occurrence.
        """
        return only(self.advance_many([Step(claim, next_time, next_run_time, entry, on_commit)], until))

    @abstractmethod
    def advance_many(self, steps: Sequence[Step], until: float) -> builtins.list[ScheduleRow | ScheduleError | None]:
        """Settle each occurrence like `advance`. Return, for each occurrence, the result or the error."""

    @abstractmethod
    def park(self, lease: Lease, due: float, until: float) -> None:
        """Release a paused row. The row is due at `due` (unix seconds), or now if the pause has ended.

        Raises like `release`.
        """
