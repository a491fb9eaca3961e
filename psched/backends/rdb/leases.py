"""Leases on the rows of one table: acquiring, renewing, settling, giving back. Used in children and clients.

Written once for every table that has the lease columns of tables.py; the SQL stands in statements.py.
"""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from sqlalchemy import Connection, Insert, RowMapping, Table, Update

from psched import fork_safety as forks
from psched.backends.common.lease_history import RELEASED, RETRIED, LostRow, finished_before, refusal
from psched.backends.common.rows import AHEAD, RUNNING, storable
from psched.backends.rdb.claiming import Claiming, WantedTypes, claiming_by
from psched.backends.rdb.lease_statements import LeaseStatements
from psched.backends.sql.bulk_statement import BulkUpdate, CompiledBulkUpdate
from psched.backends.sql.connection import as_sqlalchemy
from psched.backends.sql.database import Database
from psched.backends.sql.once import cached
from psched.backends.sql.statement import Executing, TwoStatements
from psched.clock import boottime
from psched.errors import (
    IdempotentAlreadyFinishedError,
    NotFoundError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
)
from psched.model import WORKER_DIED, Lease, Retry
from psched.payload import MAX_BATCH_SIZE
from psched.store import Also

_BATCH = 500
"""Leases renewed by one statement, to keep it short."""


class Leases:
    """The leases of one holder on one table. Safe to use from several threads."""

    def __init__(self, database: Database, table: Table, holder: str, claiming: Claiming | None = None) -> None:
        """`claiming`: how due rows are chosen and leased; by default the earliest."""
        dialect = type(database.dialect)
        self.statements = cached(LeaseStatements, dialect, table)
        self._database = database
        self._holder = holder
        self._claiming = claiming_by(dialect, table, self.statements) if claiming is None else claiming
        self.begin_anew()
        forks.register_for_fork(self)

    def begin_anew(self) -> None:
        """Have every acquire answered, as at first; those of a parent process are the parent's to undo."""
        self._lock = threading.Lock()
        self._unanswered: dict[int, float] = {}

    def acquire(
        self,
        limit: int,
        alive_time: float,
        types: Collection[str] | None,
        apart: bool = True,
        askers: int = 1,
        ahead: bool = False,
    ) -> Sequence[Sequence[Any]]:
        """Lease up to `limit` due rows, in the order in which they are to be run, for `alive_time` seconds.

        They have the columns of `LeaseStatements.claimed`. `apart`: rows of other types may be due in any number.
        `ahead`: as for `LeaseStore.acquire`. `askers`: for how many threads the rows are; for each that is one row, and
        more while the data of all has `MAX_BATCH_SIZE` bytes for each at the most.

        Each acquire writes a number of its own into its rows. When its answer is lost, the next one undoes by this
        number what it did, so that the rows are due again as they were.
        """
        if limit < 1 or (types is not None and not types):
            return []
        asked = boottime()
        self._undo(self._still_leased(asked))
        number = new_number()
        claim = {"claim_number": number, "claimer": self._holder, "alive": math.ceil(alive_time * 1000)}
        claim["ahead"] = AHEAD if ahead else 0
        values = {**claim, "limit": limit, "budget": MAX_BATCH_SIZE * askers, "least": askers}
        wanted = None if types is None else WantedTypes(tuple(sorted(set(types))), apart)
        begun = False

        def work(connection: Executing, uncertain: bool) -> Sequence[Sequence[Any]]:
            nonlocal begun
            if begun:  # more than one statement takes rows, and some may have been done
                as_sqlalchemy(connection).execute(self.statements.undo, self._undoing([number]))
            begun = True
            return self._claiming.acquire(connection, values, wanted)

        try:
            return self._database.run_direct(work)
        except BaseException:
            with self._lock:
                self._unanswered[number] = asked + alive_time
            raise

    def prepare(self, connection: Executing, types: Collection[str] | None) -> None:
        """Compile what `acquire` executes, which is nothing when there are no types to look for."""
        if types is None or types:
            self._claiming.prepare(connection, None if types is None else WantedTypes(tuple(set(types)), apart=False))

    def extend(self, leases: Sequence[Lease], alive_time: float, begun: bool = True) -> list[Lease | None]:
        """Make each lease end `alive_time` seconds from now, the runs recorded as `begun`; None where it is lost."""
        renewed: dict[tuple[str, int, int], Lease] = {}
        for start in range(0, len(leases), _BATCH):
            rows = self._extend(leases[start : start + _BATCH], math.ceil(alive_time * 1000), begun)
            renewed.update(((row["key"], row["fence"], row["claim"]), lease_of(row)) for row in rows)
        return [renewed.get((lease.key, lease.fence, lease.claim)) for lease in leases]

    def release(self, lease: Lease, until: float) -> None:
        """Make the row due now, the attempt not counted."""
        self.settle(lease, self.statements.release, RELEASED, {}, until)

    def retry(
        self,
        lease: Lease,
        wait: float,
        error: str | None,
        until: float,
        counted: bool = True,
        version: int | None = None,
    ) -> None:
        """Make the row due `wait` seconds from now, and keep the end of `error`; see `LeaseStore.retry`."""
        values = {
            "wait": math.ceil(wait * 1000),
            "error": storable(error),
            "uncounted": 0 if counted else 1,
            "seen_version": version,
        }
        self.settle(lease, self.statements.retry, RETRIED, values, until)

    def retry_many(self, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
        """Do for each what `retry` does, some hundreds by one statement."""
        given = [
            {
                "wait": math.ceil(wait * 1000),
                "error": storable(error),
                "version": version,
                "uncounted": 0 if counted else 1,
            }
            for _, wait, error, version, counted in retries
        ]
        leases = [retry.lease for retry in retries]
        return self.settle_many(leases, self.statements.retry_many, {}, RETRIED, until, given)

    def settle(
        self,
        lease: Lease,
        statement: Update | Insert | TwoStatements | CompiledBulkUpdate,
        outcome: str | None,
        values: Mapping[str, Any],
        until: float,
        also: Also | None = None,
        on_record: Callable[[], bool] | None = None,
    ) -> RowMapping | None:
        """Execute `statement`, one of `LeaseStatements.settling` or made of one, and `also` in one transaction.

        It ends the lease with `outcome`, or is no such statement (None). `on_record` tells whether that is on record,
        and is asked when the row cannot tell.

        Returns None when it is done, and the row when the lease is ours but another condition of the statement does
        not hold. Raises PreemptedError, OutcomeUnknownError, IdempotentNotFoundError, AlreadyFinishedError and, when
        the lease was ended with `outcome` before, IdempotentAlreadyFinishedError.
        """
        parameters = {
            "lease_key": lease.key,
            "lease_fence": lease.fence,
            "lease_claim": lease.claim,
            "lease_holder": self._holder,
        }

        def work(connection: Executing, uncertain: bool) -> tuple[bool, RowMapping | None, bool]:
            if self._execute(connection, statement, {**parameters, **values}, also):
                return True, None, uncertain
            row = as_sqlalchemy(connection).execute(self.statements.read, {"lease_key": lease.key}).mappings().first()
            return False, row, uncertain

        done, row, uncertain = self._database.run_direct(work, until)
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

    def settle_many(
        self,
        leases: Sequence[Lease],
        statement: BulkUpdate,
        values: Mapping[str, Any],
        outcome: str,
        until: float,
        more: Sequence[Mapping[str, Any]] | None = None,
    ) -> list[ScheduleError | None]:
        """Execute `statement`, one of `LeaseStatements.settling_given`, which gives rows the status `outcome`.

        Some hundreds are one transaction. `more`: what is given for each besides its lease. Returns for each of
        `leases` None when that is done, be it by an earlier call whose answer was lost, else what `settle` would raise.
        """
        found: list[ScheduleError | None] = []
        values = {**values, "lease_holder": self._holder}
        for start in range(0, len(leases), _BATCH):
            part = leases[start : start + _BATCH]
            given: list[dict[str, Any]] = [
                {"key": lease.key, "fence": lease.fence, "claim": lease.claim} for lease in part
            ]
            if more is not None:
                given = [row | dict(told) for row, told in zip(given, more[start : start + _BATCH], strict=True)]
            rows, uncertain = self._database.run_direct(partial(self._settle_many, given, statement, values), until)
            found += [
                None if rows is None else self._unless(lease, rows.get(lease.key), outcome, uncertain) for lease in part
            ]
        return found

    def give_back(self, holder: str, suspects: Collection[str], longest_wait: float, error: str = WORKER_DIED) -> int:
        """Give back what a dead `holder` leases; see `LeaseStore.give_back`."""
        longest = math.ceil(longest_wait * 1000)
        values = {"dead": holder, "suspects": list(suspects), "longest": longest, "error": error}
        count: int = self._database.run(
            lambda connection, _: connection.execute(self.statements.give_back, values).rowcount
        )
        return count

    def _execute(
        self,
        connection: Executing,
        statement: Update | Insert | TwoStatements | CompiledBulkUpdate,
        values: Mapping[str, Any],
        also: Also | None,
    ) -> bool:
        if isinstance(statement, CompiledBulkUpdate):
            return self._execute_compiled(connection, statement, values, also)
        if isinstance(statement, TwoStatements):
            return self._database.execute_pair(connection, statement, values, also)
        return self._database.execute_with(as_sqlalchemy(connection), statement, values, also)

    def _execute_compiled(
        self, connection: Executing, statement: CompiledBulkUpdate, values: Mapping[str, Any], also: Also | None
    ) -> bool:
        if also is None:
            return statement.execute(connection, values) == 1
        with self._database.transaction(connection):
            done = statement.execute(connection, values) == 1
            if done:
                also(as_sqlalchemy(connection))
        return done

    def _settle_many(
        self,
        given: Sequence[Mapping[str, Any]],
        statement: BulkUpdate,
        values: Mapping[str, Any],
        connection: Executing,
        uncertain: bool,
    ) -> tuple[dict[str, RowMapping] | None, bool]:
        """Settle all at once; unless that was all of them, return their rows as they are now, and `uncertain`."""
        if statement.execute(connection, given, values) == len(given):
            return None, uncertain
        keys = [row["key"] for row in given]
        rows = as_sqlalchemy(connection).execute(self.statements.seen, {"keys": keys}).mappings()
        return {row["key"]: row for row in rows}, uncertain

    def _extend(self, leases: Sequence[Lease], alive: int, begun: bool) -> Sequence[RowMapping]:
        extend = self.statements.extend_begun if begun else self.statements.extend
        keys = [lease.key for lease in leases]
        given = [(lease.key, lease.fence, lease.claim) for lease in leases]
        values = {"alive": alive, "keys": keys, "leases": given, "lease_holder": self._holder}

        def work(connection: Connection, uncertain: bool) -> Sequence[RowMapping]:
            changed = connection.execute(extend, values)
            if not self._database.dialect.returning:
                changed = connection.execute(self.statements.held, values)
            return changed.mappings().all()

        return self._database.run(work)

    def _unless(self, lease: Lease, row: RowMapping | None, outcome: str, uncertain: bool) -> ScheduleError | None:
        """Return None when `lease` was ended with `outcome`, now or before, else what has become of its row."""
        if row is not None and self._is_ours(lease, row):
            return PreemptedError(f"{lease.key!r}: this run could not be settled")
        refused = refusal(lease, _lost(row), outcome, uncertain)
        return None if isinstance(refused, IdempotentAlreadyFinishedError) else refused

    def _is_ours(self, lease: Lease, row: RowMapping) -> bool:
        """Tell whether `row` is under `lease`."""
        numbers = (row["fence"], row["claim"]) == (lease.fence, lease.claim)
        return numbers and row["status"] == RUNNING and row["holder"] == self._holder

    def _still_leased(self, now: float) -> list[int]:
        """Return the numbers of acquires without an answer that may hold rows, as some statement may come late."""
        with self._lock:
            self._unanswered = {number: end for number, end in self._unanswered.items() if end > now}
            return list(self._unanswered)

    def _undo(self, numbers: list[int]) -> None:
        if numbers:
            self._database.run(
                lambda connection, _: connection.execute(self.statements.undo, self._undoing(numbers)).rowcount
            )

    def _undoing(self, numbers: list[int]) -> dict[str, Any]:
        return {"claimer": self._holder, "claims": numbers}


def new_number() -> int:
    """Return a number that no other call has, to know one's own rows by when an answer is lost."""
    return secrets.randbits(62)


def lease_of(row: RowMapping) -> Lease:
    """Return the lease that stands in a row."""
    cancelled = bool(row.get("cancel_requested", False))
    paused = row.get("paused_from") is not None and row.get("paused_until") is None
    return Lease(row["key"], row["fence"], row["due"] / 1000, cancelled, row["claim"], row["nonce"], paused=paused)


def _lost(row: RowMapping | None) -> LostRow | None:
    """Return what became of a row that is not ours."""
    if row is None:
        return None
    owner = f"{row['node']} holds it now" if row["status"] == RUNNING else "no worker holds it now"
    return LostRow(str(row["endings"]), row["nonce"], owner)
