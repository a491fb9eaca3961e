"""Schedules in `rdb`: created by `add`, finished by `advance`."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    BindParameter,
    ColumnElement,
    Connection,
    RowMapping,
    Select,
    Table,
    Update,
    bindparam,
    case,
    delete,
    null,
    select,
    update,
)

from psched.backends.common.lease_history import FINISHED, RELEASED
from psched.backends.common.rows import (
    DEFINITION,
    RUNNING,
    changed_columns,
    claimed_schedule,
    definition_columns,
    milliseconds,
    read_schedule,
    regular_time,
    settled_time,
)
from psched.backends.common.store_base import SingleAdd, advanced
from psched.backends.rdb.alerts import RdbFailures, RdbOverdueAlerts
from psched.backends.rdb.inserts import ScheduleInserts
from psched.backends.rdb.lease_statements import LEASE_TYPES, LeaseStatements, constant
from psched.backends.rdb.schema import failures_table, schedules_table
from psched.backends.rdb.store import RdbLeaseStore, new_number
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import ExactText, LongText, now_ms
from psched.backends.sql.ledger import LedgerWriter, SqlLedger, changes_table, ledger_table
from psched.backends.sql.paging import read_pages
from psched.backends.sql.statement import BulkUpdate, GivenColumns, Statement, cached, cached_on_class, table_named
from psched.errors import IdempotentNotFoundError, ScheduleError
from psched.model import Claim, Lease, ScheduleRow
from psched.store import Also, StoreSettings
from psched.store.alerts import OverdueAlerts, UnreportedFailures
from psched.store.ledger import FAILED, MODIFY, Entry, Ledger, Step

_RUN = Entry()
_BATCH = 500
"""Schedules advanced by one transaction, to keep it short."""


class RdbScheduleStore(SingleAdd, RdbLeaseStore):
    """Implements `ScheduleStore`, which documents the methods."""

    keeps_policies = True

    def __init__(self, database: Database, table: str, settings: StoreSettings) -> None:
        """Connects to nothing yet. Raises ConfigError for a name that cannot be a table's."""
        self._table = table_named(schedules_table, table)
        self.max_data_size = settings.max_data_size
        others = table_named(ledger_table, table), table_named(changes_table, table)
        self._records = cached(LedgerWriter, type(database.dialect), self._table, *others, settings.reckoning)
        self.ledger: Ledger | None = SqlLedger(database, *others)
        self.alarms: OverdueAlerts | None = RdbOverdueAlerts(database, self._table)
        failures = table_named(failures_table, table)
        self._failures = RdbFailures(database, failures, settings.holder)
        self.failures: UnreportedFailures | None = self._failures
        self._keeps_failures = settings.keeps_failures
        super().__init__(
            database,
            settings.holder,
            None,
            partial(claimed_schedule, settings.holder, settings.max_data_size),
            *(self._table, *others, failures),
        )
        self._inserts = ScheduleInserts(database, self._table, self._records, settings.holder, settings.max_data_size)
        self._write_statements(self._table, self.lease_statements)
        self._bulk_advance = BulkAdvance(database, self._table, self.lease_statements, self._records, settings.holder)

    def add_many(self, schedules: Sequence[ScheduleRow]) -> builtins.list[str]:
        return self._inserts.add(schedules)

    def get(self, key: str) -> ScheduleRow | None:
        row = self._database.run(lambda connection, _: self._row(connection, self._read, key))
        return None if row is None else self._read_row(row)

    def _read_row(self, row: Mapping[Any, Any]) -> ScheduleRow:
        return read_schedule(row, self.max_data_size)

    def list(self) -> Iterator[ScheduleRow]:
        c = self._table.c
        return map(self._read_row, read_pages(self._database, select(*c), c.key, c.due))

    def long_due(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        return self._aged(self._long_due, age, limit)

    def failing(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        return self._aged(self._failing, age, limit)

    def modify(self, seen: ScheduleRow, wanted: ScheduleRow, action: str = MODIFY, entry: Entry | None = None) -> bool:
        changes = changed_columns(seen, wanted, self.max_data_size)
        if not changes:
            return True
        statement = self._unchanged(seen).values(**changes, updated=now_ms(), version=self._table.c.version + 1)
        if entry is not None:  # else its entry may have the key of the entry of the last run
            statement = statement.values(fence=self._table.c.fence + 1)

        pending = regular_time(seen) if entry is None or entry.last is None else entry.last + 1
        number = new_number()

        def record(connection: Connection) -> None:
            self._records.insert_change(connection, seen.key, action, self._holder, milliseconds(pending), number)
            if entry is not None:
                self._records.insert_skipped(connection, seen, entry)

        def work(connection: Connection, uncertain: bool) -> bool:
            with self._database.transaction(connection):
                done = connection.execute(statement).rowcount == 1
                if done:
                    record(connection)
            if done:
                return True
            return uncertain and self._records.is_made_by(connection, seen.key, seen.version + 1, number)

        return self._database.run(work)

    def delete(self, key: str) -> None:
        seen: int | None = None

        def work(connection: Connection, uncertain: bool) -> bool:
            nonlocal seen
            with self._database.transaction(connection):
                row = self._row(connection, self._read.with_for_update(), key)
                if row is None:
                    return uncertain and seen is not None
                if uncertain and seen is not None and row["nonce"] != seen:  # another schedule, created since
                    return True
                seen = row["nonce"]
                pending = row["next_time"] if row["regular_time"] is None else row["regular_time"]
                self._records.insert_deleted(connection, key, self._holder, pending)
                return connection.execute(self._delete, {"lease_key": key}).rowcount == 1

        if not self._database.run(work):
            raise IdempotentNotFoundError(f"no schedule has the key {key!r}")

    def advance(
        self,
        claim: Claim,
        next_time: int,
        next_run_time: float,
        until: float,
        also: Also | None = None,
        entry: Entry = _RUN,
    ) -> ScheduleRow | None:
        row = cast("ScheduleRow", claim.row)
        values = {
            **{f"seen_{name}": value for name, value in definition_columns(row).items()},
            "then": milliseconds(next_time),
            "then_due": milliseconds(next_run_time),
            "settled": settled_time(row, entry),
            **self._records.entry_parameters(row, entry),
        }
        if entry.outcome == FAILED and self._keeps_failures:
            also = self._failures.insert(claim, row.last_error, also)
        on_record = partial(self._is_on_record, row, claim.lease, until)
        stored = self._settle(
            claim.lease, self._records.settle_and_insert(self._advance), FINISHED, values, until, also, on_record
        )
        return None if stored is None else read_schedule(stored)

    def park(self, lease: Lease, due: float, until: float) -> None:
        self._settle(lease, self._park, RELEASED, {"parked_until": milliseconds(due)}, until)

    def advance_many(self, steps: Sequence[Step], until: float) -> builtins.list[ScheduleRow | ScheduleError | None]:
        """Advance each `_BATCH` schedules in one transaction, or one by one when some of them were changed."""
        answers: builtins.list[ScheduleRow | ScheduleError | None] = []
        for start in range(0, len(steps), _BATCH):
            part = steps[start : start + _BATCH]
            done, uncertain = self._bulk_advance.advance(part, until)
            answers += [None if done else advanced(self, step, until, uncertain) for step in part]
        return answers

    def _compile(self, connection: Connection, types: Collection[str] | None) -> None:
        super()._compile(connection, types)
        self._bulk_advance.prepare(connection)
        self._records.settle_and_insert(self._advance).prepare(connection)

    def _is_on_record(self, row: ScheduleRow, lease: Lease, until: float) -> bool:
        """Return whether the ledger has an entry of the occurrence in `row` under the fence of `lease`."""
        return self._database.run(lambda connection, _: self._records.has(connection, row, lease), until)

    def _aged(self, statement: Select[Any], age: float, limit: int) -> builtins.list[ScheduleRow]:
        values = {"age": milliseconds(age), "limit": limit}
        rows = self._database.run(lambda connection, _: connection.execute(statement, values).mappings().all())
        return [read_schedule({**row, "data": "{}"}) for row in rows]

    def _row(self, connection: Connection, statement: Select[Any], key: str) -> RowMapping | None:
        return connection.execute(statement, {"lease_key": key}).mappings().first()

    def _unchanged(self, seen: ScheduleRow) -> Update:
        """Return an UPDATE of the row if it is as `seen`, but for `due` of a running row, which is a lease's end."""
        c = self._table.c
        same = [c.version == seen.version, c.status == seen.status, c.next_time == milliseconds(seen.next_time)]
        if seen.status != RUNNING:
            same.append(c.due == milliseconds(seen.next_run_time))
        return update(self._table).where(c.key == seen.key, *same)

    @cached_on_class
    def _write_statements(self, table: Table, statements: LeaseStatements) -> None:
        c = table.c
        this = c.key == bindparam("lease_key")
        self._read = statements.read
        ago = now_ms() - bindparam("age", type_=BigInteger)
        most: BindParameter[int] = bindparam("limit")
        without_data = [column for column in c if column is not c.data]
        self._long_due = select(*without_data).where(c.due <= ago).order_by(c.due, c.key).limit(most)
        runs = c.paused_from.is_(None) | c.paused_until.is_not(None)
        self._failing = select(*without_data).where(c.failing <= ago, runs).order_by(c.failing, c.key).limit(most)
        self._delete = delete(table).where(this)
        then = bindparam("then", type_=BigInteger)
        parked = case((_is_paused(table), bindparam("parked_until", type_=BigInteger)), else_=now_ms())
        self._park = Statement(statements.settling(RELEASED, due=parked, attempts=c.attempts - 1))
        self._advance = statements.settling(
            FINISHED,
            *(c[name] == bindparam(f"seen_{name}") for name in DEFINITION),
            **_advanced_columns(table, then, bindparam("then_due"), bindparam("settled")),
        )


def _is_paused(table: Table) -> ColumnElement[bool]:
    return table.c.paused_from.is_not(None) & table.c.paused_until.is_(None)


def _advanced_columns(
    table: Table, next_time: ColumnElement[Any], due: ColumnElement[Any], settled: ColumnElement[Any]
) -> dict[str, ColumnElement[Any]]:
    """Return the columns of a row that is advanced to the occurrence `next_time`, due at `due`."""
    c = table.c
    return {
        "next_time": next_time,
        "due": due,
        "last_time": settled,
        "alert_at": case((_is_paused(table), None), else_=next_time + c.delay_ms + c.alert_after_ms),
        "regular_time": null(),
        "regular_due": null(),
        "attempts": constant(0),
        "crashes": constant(0),
        "last_error": null(),
    }


_TEXT, _LONG, _NUMBER = ExactText(255), LongText(), BigInteger()

_STEP = {
    **LEASE_TYPES,
    "cron": _TEXT,
    "timezone": _TEXT,
    "delay_ms": _NUMBER,
    "version": _NUMBER,
    **dict.fromkeys(("following", "following_due", "settled"), _NUMBER),
}
"""Values of a step: the lease, the definition that the row must still have, and the next occurrence."""

_ENTRY = {
    "key": _TEXT,
    **dict.fromkeys(("outcome", "reckoning"), _TEXT),
    **dict.fromkeys(("detail", "error"), _LONG),
    **dict.fromkeys(
        ("scheduled_time", "last_time", "occurrences", "extra", "previous", "attempts", "trouble", "started"), _NUMBER
    ),
}
"""Values of a ledger entry that are known before the occurrence is settled."""


class BulkAdvance:
    """Advances many schedules by two statements: one on the schedules, one on the ledger."""

    def __init__(
        self, database: Database, table: Table, statements: LeaseStatements, records: LedgerWriter, holder: str
    ) -> None:
        self._database = database
        self._holder = holder
        self._records = records
        self._write_statements(table, statements, records)

    @cached_on_class
    def _write_statements(self, table: Table, statements: LeaseStatements, records: LedgerWriter) -> None:
        self._advance = BulkUpdate(_STEP, partial(_bulk_advance, table, statements))
        self._insert_entries = BulkUpdate(_ENTRY, records.insert_settled)

    def prepare(self, connection: Connection) -> None:
        self._advance.prepare(connection)
        self._insert_entries.prepare(connection)

    def advance(self, steps: Sequence[Step], until: float) -> tuple[bool, bool]:
        """Advance all `steps` in one transaction, or change nothing when one of the rows was changed.

        Returns whether the rows were advanced, and whether an attempt without an answer may have advanced them.
        """
        rows = [self._row(step) for step in steps]

        def work(connection: Connection, uncertain: bool) -> tuple[bool, bool]:
            advance = partial(self._advance.execute, connection, rows, {"lease_holder": self._holder})
            insert = partial(self._insert_entries.execute, connection, rows, {})
            return self._database.change_rows(connection, len(steps), advance, insert), uncertain

        return self._database.run(work, until)

    def _row(self, step: Step) -> dict[str, Any]:
        row = cast("ScheduleRow", step.claim.row)
        return {
            **definition_columns(row),
            **self._records.values(row, step.entry),
            "key": row.key,
            "fence": step.claim.lease.fence,
            "claim": step.claim.lease.claim,
            "following": milliseconds(step.next_time),
            "following_due": milliseconds(step.next_run_time),
            "settled": settled_time(row, step.entry),
        }


def _bulk_advance(table: Table, statements: LeaseStatements, row: GivenColumns) -> Update:
    unchanged = [table.c[name] == row[name] for name in DEFINITION]
    columns = _advanced_columns(table, row["following"], row["following_due"], row["settled"])
    return statements.settling_rows(row, FINISHED, *unchanged, **columns)
