"""The base class of both `rdb` stores: acquiring, extending, settling and giving back leases on one table.

The SQL is in lease_statements.py; claiming.py says how due rows are chosen.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, MetaData, RowMapping, Table

from psched import fork_safety
from psched.backends.common.lease_history import RELEASED, RETRIED, LostRow, finished_before, refusal
from psched.backends.common.rows import AHEAD, RUNNING, storable
from psched.backends.rdb.claiming import Claiming, WantedTypes, claiming_by
from psched.backends.rdb.lease_statements import LeaseStatements
from psched.backends.rdb.next_due import DueTimes
from psched.backends.rdb.node_registry import RdbNodes, shared_nodes_table
from psched.backends.sql.database import Database
from psched.backends.sql.schema import NAMED, HashedSchema, meta_table, unusable
from psched.backends.sql.statement import BulkUpdate, Statement, cached
from psched.backends.sql.store import SqlStore
from psched.clock import boottime
from psched.errors import (
    IdempotentAlreadyFinishedError,
    NotFoundError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
)
from psched.model import WORKER_DIED, Claim, Lease, Retry
from psched.payload import MAX_BATCH_SIZE
from psched.store import Accepts, Also, Finding, Wakeup
from psched.store.node_registry import Nodes

_BATCH = 500
"""Leases extended or settled by one statement, to keep it short."""


def _meta() -> Table:
    return meta_table(MetaData())


class RdbLeaseStore(SqlStore):
    """Due rows with leases in one table. Implements `LeaseStore`, which documents the methods."""

    shows_fence = True
    knows_holders = True
    keeps_types = True

    def __init__(
        self,
        database: Database,
        holder: str,
        claiming: Claiming | None,
        read_claim: Callable[[Sequence[Any]], Claim],
        *tables: Table,
    ) -> None:
        """`claiming`: how due rows are chosen and leased; None: the earliest first.

        `read_claim`: makes a claim of the columns `LeaseStatements.claimed`. `tables`: the table of the rows, then the
        tables that belong to it.
        """
        super().__init__(database, HashedSchema(database, cached(_meta), *tables, common=(shared_nodes_table(),)))
        dialect = type(database.dialect)
        self._rows = tables[0]
        self._holder = holder
        self.lease_statements = cached(LeaseStatements, dialect, self._rows)
        self._claiming = claiming or claiming_by(dialect, self._rows, self.lease_statements)
        self._due_times = DueTimes(database, self._rows)
        self.nodes: Nodes | None = RdbNodes(database, self._rows.name)
        self._read_claim = read_claim
        self._due_types: frozenset[Any] | None = None
        """Types of rows that the last query for due times found due, at least those of the first rows; None before."""
        self.begin_anew()
        fork_safety.register_for_fork(self)

    def begin_anew(self) -> None:
        """Forget acquires without an answer: those of a parent process are the parent's to undo."""
        self._lock = threading.Lock()
        self._unanswered: dict[int, float] = {}

    def prepare(self, types: Collection[str] | None = None) -> None:
        self._database.run(lambda connection, _: self._compile(connection, types))

    def _compile(self, connection: Connection, types: Collection[str] | None) -> None:
        if types is None or types:
            self._claiming.prepare(connection, None if types is None else WantedTypes(tuple(set(types)), apart=False))

    def create_tables(self) -> None:
        super().create_tables()
        self._database.install_wakeup(self._rows)

    def diagnose(self) -> Iterator[Finding]:
        yield from super().diagnose()
        if self._layout.problem() is None:
            name, dialect = self._rows.name, self._database.dialect
            yield unusable(self._due_times.never_due(NAMED + 1))
            problem = self._database.run(lambda connection, _: dialect.wakeup_problem(connection, name))
            if problem is not None:
                yield Finding("calls", False, problem)

    def open_wakeup(self, accepts: Accepts | None = None) -> Wakeup | None:
        return self._database.open_wakeup(self._rows.name, accepts)

    def acquire(
        self,
        limit: int,
        alive_time: float,
        types: Collection[str] | None = None,
        accepts: Accepts | None = None,
        ahead: bool = False,
    ) -> list[Claim]:
        return self._acquire(limit, alive_time, types, ahead, callers=1)

    def _acquire(
        self, limit: int, alive_time: float, types: Collection[str] | None, ahead: bool, callers: int
    ) -> list[Claim]:
        """Acquire for `callers` threads: one row for each of them in any case, and more up to `MAX_BATCH_SIZE` each.

        Each acquire writes a number of its own into its rows. When its answer is lost, the next one undoes by this
        number what it did, so that the rows are due again as they were.
        """
        if limit < 1 or (types is not None and not types):
            return []
        asked = boottime()
        self._undo(self._still_leased(asked))
        number = new_number()
        values = {
            "claim_number": number,
            "claimer": self._holder,
            "alive": math.ceil(alive_time * 1000),
            "ahead": AHEAD if ahead else 0,
            "limit": limit,
            "budget": MAX_BATCH_SIZE * callers,
            "least": callers,
        }
        wanted = None if types is None else WantedTypes(tuple(sorted(set(types))), self._others_may_be_due(types))
        begun = False

        def work(connection: Connection, uncertain: bool) -> Sequence[Sequence[Any]]:
            nonlocal begun
            if begun:  # more than one statement takes rows, and some may have been executed
                connection.execute(self.lease_statements.undo, self._undo_values([number]))
            begun = True
            return self._claiming.acquire(connection, values, wanted)

        try:
            rows = self._database.run(work)
        except BaseException:
            with self._lock:
                self._unanswered[number] = asked + alive_time
            raise
        return [self._read_claim(row) for row in rows]

    def _others_may_be_due(self, types: Collection[str]) -> bool:
        """Return whether rows of other types were due at the last query for due times, or there was none yet.

        A worker asks whenever it finds nothing more to do, and every few seconds while it is busy. Rows that are due
        and not its own are the first rows then, since it has taken those before them.
        """
        due = self._due_types
        return due is None or not due <= frozenset(types)

    def next_due(self, types: Collection[str] | None = None, accepts: Accepts | None = None) -> float | None:
        found = self._due_times.next_due(types)
        if types:
            self._due_types = found.first_types
        return found.wait

    def due_by_type(self) -> Mapping[str, float]:
        waits = self._due_times.waits()
        self._due_types = frozenset(type_ for type_, wait in waits.items() if wait == 0)
        return waits

    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool = True) -> list[Lease | None]:
        renewed: dict[tuple[str, int, int], Lease] = {}
        for start in range(0, len(leases), _BATCH):
            rows = self._extend(leases[start : start + _BATCH], math.ceil(alive_time * 1000), begun)
            renewed.update(((row["key"], row["fence"], row["claim"]), lease_of(row)) for row in rows)
        return [renewed.get((lease.key, lease.fence, lease.claim)) for lease in leases]

    def _extend(self, leases: Sequence[Lease], alive: int, begun: bool) -> Sequence[RowMapping]:
        extend = self.lease_statements.extend_begun if begun else self.lease_statements.extend
        held = [(lease.key, lease.fence, lease.claim) for lease in leases]
        values = {"alive": alive, "keys": [lease.key for lease in leases], "leases": held, "lease_holder": self._holder}

        def work(connection: Connection, uncertain: bool) -> Sequence[RowMapping]:
            changed = connection.execute(extend, values)
            if not self._database.dialect.returning:
                changed = connection.execute(self.lease_statements.held, values)
            return changed.mappings().all()

        return self._database.run(work)

    def release(self, lease: Lease, until: float) -> None:
        self._settle(lease, self.lease_statements.release, RELEASED, {}, until)

    def retry(
        self,
        lease: Lease,
        wait: float,
        error: str | None,
        until: float,
        counted: bool = True,
        version: int | None = None,
    ) -> None:
        values = _retry_values(Retry(lease, wait, error, version, counted))
        self._settle(lease, self.lease_statements.retry, RETRIED, values, until)

    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        leases = [retry.lease for retry in retries]
        rows = [_retry_values(retry) for retry in retries]
        return self._settle_many(leases, self.lease_statements.retry_many, {}, RETRIED, until, rows)

    def give_back(self, holder: str, suspects: Collection[str], longest_wait: float, error: str = WORKER_DIED) -> int:
        longest = math.ceil(longest_wait * 1000)
        values = {"dead": holder, "suspects": list(suspects), "longest": longest, "error": error}
        count: int = self._database.run(
            lambda connection, _: connection.execute(self.lease_statements.give_back, values).rowcount
        )
        return count

    def _settle(
        self,
        lease: Lease,
        statement: Statement,
        outcome: str | None,
        values: Mapping[str, Any],
        until: float,
        also: Also | None = None,
        on_record: Callable[[], bool] | None = None,
    ) -> RowMapping | None:
        """Execute `statement`, made of `LeaseStatements.settling`, and `also` in one transaction.

        It ends the lease with `outcome`; None: the lease stays. `on_record` tells whether that outcome is in the
        ledger, and is called when the row cannot tell.

        Returns None when it is done, and the row when the lease is ours but another condition of the statement does
        not hold. Raises PreemptedError, OutcomeUnknownError, IdempotentNotFoundError, AlreadyFinishedError and, when
        the lease was ended with `outcome` before, IdempotentAlreadyFinishedError.
        """
        parameters = {
            "lease_key": lease.key,
            "lease_fence": lease.fence,
            "lease_claim": lease.claim,
            "lease_holder": self._holder,
            **values,
        }

        def work(connection: Connection, uncertain: bool) -> tuple[bool, RowMapping | None, bool]:
            if self._database.execute_one(connection, statement, parameters, also):
                return True, None, uncertain
            read = connection.execute(self.lease_statements.read, {"lease_key": lease.key})
            return False, read.mappings().first(), uncertain

        done, row, uncertain = self._database.run(work, until)
        if done:
            return None
        if row is not None and self._is_ours(lease, row):
            return row
        refused = refusal(lease, _lost(row), outcome, uncertain)
        if on_record is not None and isinstance(refused, NotFoundError | OutcomeUnknownError) and on_record():
            refused = None if uncertain else finished_before(lease)
        if refused is not None:
            raise refused
        return None

    def _settle_many(
        self,
        leases: Sequence[Lease],
        statement: BulkUpdate,
        values: Mapping[str, Any],
        outcome: str,
        until: float,
        more: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[ScheduleError | None]:
        """Execute `statement`, made of `LeaseStatements.settling_rows`, which gives rows the status `outcome`.

        Each `_BATCH` leases are one transaction. `more`: further values of each row. Returns for each of `leases` None
        when that is done, be it by an earlier call whose answer was lost, else what `_settle` would raise.
        """
        answers: list[ScheduleError | None] = []
        values = {**values, "lease_holder": self._holder}
        for start in range(0, len(leases), _BATCH):
            part = leases[start : start + _BATCH]
            rows: list[dict[str, Any]] = [{"key": one.key, "fence": one.fence, "claim": one.claim} for one in part]
            if more is not None:
                rows = [{**row, **further} for row, further in zip(rows, more[start : start + _BATCH], strict=True)]
            found, uncertain = self._database.run(partial(self._settle_batch, rows, statement, values), until)
            answers += [
                None if found is None else self._unless_done(lease, found.get(lease.key), outcome, uncertain)
                for lease in part
            ]
        return answers

    def _settle_batch(
        self,
        rows: Sequence[Mapping[str, Any]],
        statement: BulkUpdate,
        values: Mapping[str, Any],
        connection: Connection,
        uncertain: bool,
    ) -> tuple[dict[str, RowMapping] | None, bool]:
        """Settle `rows` together; unless all of them were settled, return them as they are now, and `uncertain`."""
        if statement.execute(connection, rows, values) == len(rows):
            return None, uncertain
        keys = [row["key"] for row in rows]
        found = connection.execute(self.lease_statements.seen, {"keys": keys}).mappings()
        return {row["key"]: row for row in found}, uncertain

    def _unless_done(self, lease: Lease, row: RowMapping | None, outcome: str, uncertain: bool) -> ScheduleError | None:
        """Return None when `lease` was ended with `outcome`, now or before, else what became of its row."""
        if row is not None and self._is_ours(lease, row):
            return PreemptedError(f"{lease.key!r}: this run could not be settled")
        refused = refusal(lease, _lost(row), outcome, uncertain)
        return None if isinstance(refused, IdempotentAlreadyFinishedError) else refused

    def _is_ours(self, lease: Lease, row: RowMapping) -> bool:
        """Return whether `row` is under `lease`."""
        numbers = (row["fence"], row["claim"]) == (lease.fence, lease.claim)
        return numbers and row["status"] == RUNNING and row["holder"] == self._holder

    def _still_leased(self, now: float) -> list[int]:
        """Return the numbers of acquires without an answer that may hold rows: a statement may arrive late."""
        with self._lock:
            self._unanswered = {number: end for number, end in self._unanswered.items() if end > now}
            return list(self._unanswered)

    def _undo(self, numbers: list[int]) -> None:
        if numbers:
            values = self._undo_values(numbers)
            self._database.run(lambda connection, _: connection.execute(self.lease_statements.undo, values).rowcount)

    def _undo_values(self, numbers: list[int]) -> dict[str, Any]:
        return {"claimer": self._holder, "claims": numbers}


def new_number() -> int:
    """Return a number that no other call has: it marks the rows of a call, should its answer be lost."""
    return secrets.randbits(62)


def lease_of(row: RowMapping) -> Lease:
    """Return the lease that is stored in a row."""
    cancelled = bool(row.get("cancel_requested", False))
    paused = row.get("paused_from") is not None and row.get("paused_until") is None
    return Lease(row["key"], row["fence"], row["due"] / 1000, cancelled, row["claim"], row["nonce"], paused=paused)


def _retry_values(retry: Retry) -> dict[str, Any]:
    return {
        "wait": math.ceil(retry.wait * 1000),
        "error": storable(retry.error),
        "seen_version": retry.version,
        "uncounted": 0 if retry.counted else 1,
    }


def _lost(row: RowMapping | None) -> LostRow | None:
    """Return what became of a row that is not ours."""
    if row is None:
        return None
    owner = f"{row['node']} holds it now" if row["status"] == RUNNING else "no worker holds it now"
    return LostRow(str(row["endings"]), row["nonce"], owner)
