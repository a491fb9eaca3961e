"""The contract of a table of schedules. Promises of every method: see `psched.store`."""

from __future__ import annotations

import builtins
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from psched.errors import AlreadyExistsError, NotSupportedError, ScheduleError
from psched.model import (
    Claim,
    Lease,
    Policy,
    Rule,
    ScheduleFilter,
    ScheduleRow,
)
from psched.store.calendars import Calendars
from psched.store.counts import ScheduleCounts
from psched.store.lease_store import LeaseStore, only
from psched.store.ledger import MODIFY, Entry, Ledger, OnCommit, Step
from psched.store.overdue_and_failures import OverdueAlerts


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
    def reads(self) -> ScheduleCounts:
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
        raise NotSupportedError("this store keeps no owner of a schedule; use `type: rdb` or `type: redis`")

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
