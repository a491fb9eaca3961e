"""Schedules in PerfectSched's table."""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any, cast

from sqlalchemy import BigInteger, Connection, RowMapping, bindparam, func, select, update

from psched.backends.common.rows import BATCH
from psched.backends.rdb_compat.counts import CompatScheduleCounts
from psched.backends.rdb_compat.lease_store import CompatLeaseStore, is_same, seconds
from psched.backends.rdb_compat.ledger_writer import CompatLedgerWriter
from psched.backends.rdb_compat.rows import (
    check_rule,
    check_text,
    data_column,
    read_schedule,
    rule_columns,
    whole_seconds,
)
from psched.backends.rdb_compat.schema import schedules_table
from psched.backends.sql.compiled_statements import table_named
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms
from psched.backends.sql.ledger import LEDGER_TABLES, SqlLedger
from psched.backends.sql.paging import begins_with, read_pages
from psched.backends.sql.schema_setup import RecordedSchema
from psched.errors import NotSupportedError, ScheduleError
from psched.model import Lease, Row, ScheduleFilter, ScheduleRow
from psched.store import Finding, ScheduleStore, StoreSettings
from psched.store.ledger import DELETE, MODIFY, Entry, OnCommit, Step


class CompatScheduleStore(CompatLeaseStore, ScheduleStore):
    """A `ScheduleStore` on a table that Ruby clients and workers may share."""

    _kind = "schedule"
    _identity = ("cron", "delay", "timezone", "data")
    _written = (*_identity, "next_time")
    keeps_policies = False
    advances_together = False

    def __init__(self, database: Database, table: str, settings: StoreSettings) -> None:
        self._records: CompatLedgerWriter | None = None
        self._others: RecordedSchema | None = None
        if settings.ledger is not None:
            ledger, changes, outputs = (table_named(make, settings.ledger) for make in LEDGER_TABLES)
            self.ledger = SqlLedger(database, ledger, changes, outputs)
            self._records = CompatLedgerWriter(ledger, changes, settings.holder, settings.reckoning)
            self._others = RecordedSchema("ledger", database, ledger, changes, outputs)
        self.max_data_size = settings.max_data_size
        self._problem_of_rule = settings.problem
        rows = table_named(schedules_table, table)
        super().__init__(database, rows, "PerfectSched", rows.c.next_time)

    @property
    def reads(self) -> CompatScheduleCounts:
        return CompatScheduleCounts(self._database, self._table)

    def create_tables(self) -> None:
        super().create_tables()
        if self._others is not None:
            self._others.create()

    def check_tables(self) -> None:
        super().check_tables()
        if self._others is not None:
            self._others.check()

    def pending_statements(self) -> builtins.list[str]:
        own = super().pending_statements()
        return own if self._others is None else [*own, *self._others.pending()]

    def diagnose(self, writing: bool = True) -> Iterator[Finding]:
        yield from super().diagnose(writing)
        if self._others is not None:
            problem = self._others.problem()
            yield Finding("ledger", problem is None, "its tables exist" if problem is None else problem)

    def add_many(self, schedules: Sequence[ScheduleRow]) -> builtins.list[str]:
        rows = [_columns(schedule, self.max_data_size) for schedule in schedules]

        def work(connection: Connection, uncertain: bool) -> builtins.list[str]:
            single = len(rows) == 1 and self._records is None
            with nullcontext() if single else self._database.transaction(connection):
                present = self._insert(connection, rows)
                if self._records is not None:
                    keys = {row["id"] for row in present}
                    self._records.insert_added(connection, [row for row in schedules if row.key not in keys])
            return self._older_keys(connection, present, uncertain)

        return self._database.run(work)

    def get(self, key: str) -> ScheduleRow | None:
        row = self._database.run(lambda connection, _: self._row(connection, key))
        return None if row is None else self._read_row(row)

    def get_many(self, keys: Sequence[str]) -> builtins.list[ScheduleRow]:
        parts = (keys[start : start + BATCH] for start in range(0, len(keys), BATCH))
        return [self._read_row(row) for part in parts for row in self._rows.read(self._database, part)]

    def list(self, wanted: ScheduleFilter = ScheduleFilter()) -> Iterator[ScheduleRow]:  # noqa: B008 - frozen
        """See `ScheduleStore.list`. Reads every row to filter by type, because the type is inside the data."""
        c = self._table.c
        conditions = [] if wanted.prefix is None else [begins_with(c.id, wanted.prefix)]
        if wanted.due_from is not None:
            conditions.append(c.timeout >= math.ceil(wanted.due_from))
        if wanted.due_until is not None:
            conditions.append(c.timeout <= int(wanted.due_until))
        if wanted.held:
            conditions.append(c.timeout > seconds(now_ms()))
        after = () if wanted.after is None else (int(wanted.after[0]), wanted.after[1])
        for row in read_pages(self._database, self._whole, c.id, c.timeout, conditions, after, wanted.page):
            schedule = self._read_row(row)
            if wanted.type in (None, schedule.type):
                yield schedule

    def long_due(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        values = {"age": int(age), "limit": limit}
        keys = self._database.run(lambda connection, _: connection.execute(self._long_due, values).scalars().all())
        return [
            replace(self._read_row(row), data={}) for row in self._rows.read(self._database, keys)
        ]  # the type is inside the data

    def failing(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        return []  # the table does not distinguish a lease from the wait for a retry

    def modify(self, seen: ScheduleRow, wanted: ScheduleRow, action: str = MODIFY, entry: Entry | None = None) -> bool:
        changes = _changes(seen, wanted, self.max_data_size)
        if not changes:
            return True

        def work(connection: Connection, uncertain: bool) -> bool:
            with self._database.transaction(connection):
                row = self._row(connection, seen.key, locked=True)
                if row is None:
                    return False
                if not _as_seen(self._read_row(row), seen):
                    return uncertain and is_same(row, changes)
                connection.execute(self._update.values(changes), {"lease_key": seen.key})
                if self._records is not None:
                    self._records.insert_change(connection, seen, wanted, action)
            return True

        return self._database.run(work)

    def advance_many(self, steps: Sequence[Step], until: float) -> builtins.list[ScheduleRow | ScheduleError | None]:
        return [self._advance_one(step, until) for step in steps]

    def _advance_one(self, step: Step, until: float) -> ScheduleRow | ScheduleError | None:
        rule = cast("ScheduleRow", step.claim.row).rule
        outcome = {
            "next_time": whole_seconds("next_time", step.next_time),
            "timeout": whole_seconds("next_run_time", step.next_run_time),
        }
        seen = {"seen_cron": rule.cron, "seen_timezone": rule.timezone, "seen_delay": rule.delay}
        values = {**seen, "then": outcome["next_time"], "then_due": outcome["timeout"]}
        answer = self._settle(step.claim.lease, self._advance, values, until, outcome, self._with_entry(step))
        return self._read_row(answer) if isinstance(answer, RowMapping) else answer

    def park(self, lease: Lease, due: float, until: float) -> None:
        raise NotSupportedError(f"{lease.key!r}: rdb_compat does not support pauses; use `type: rdb` or `type: redis`")

    def _with_entry(self, step: Step) -> OnCommit | None:
        """Return a function that inserts the ledger entry, if there is a ledger, and calls the step's `on_commit`."""
        records, on_commit = self._records, step.on_commit
        if records is None:
            return on_commit

        def work(connection: Connection) -> None:
            records.insert_entry(connection, step.claim, step.entry)
            if on_commit is not None:
                on_commit(connection)

        return work

    def _read_row(self, row: Mapping[Any, Any]) -> ScheduleRow:
        return read_schedule(row, self.max_data_size)

    def _problem(self, row: Row) -> str | None:
        return row.problem or (None if self._problem_of_rule is None else self._problem_of_rule(row))

    def _delete_locked(self, connection: Connection, row: RowMapping) -> None:
        if self._records is not None:
            seen = self._read_row(row)
            self._records.insert_change(connection, seen, seen, DELETE)
        super()._delete_locked(connection, row)

    def _write_statements(self) -> None:
        super()._write_statements()
        c = self._table.c
        ago = seconds(now_ms()) - bindparam("age", type_=BigInteger)
        self._long_due = select(c.id).where(c.timeout <= ago).order_by(c.timeout, c.id).limit(bindparam("limit"))
        self._update = update(self._table).where(c.id == bindparam("lease_key"))
        self._advance = self._settling(
            c.cron == bindparam("seen_cron"),
            func.coalesce(c.timezone, "UTC") == bindparam("seen_timezone"),
            c.delay == bindparam("seen_delay"),
            next_time=bindparam("then"),
            timeout=bindparam("then_due"),
        )


def _columns(schedule: ScheduleRow, max_data_size: int) -> dict[str, Any]:
    """Return the row of a new schedule.

    Raises ValueError or NotSupportedError for values that do not fit into the table.
    """
    check_text("key", schedule.key)
    check_rule(schedule.key, schedule.rule)
    return {
        "id": schedule.key,
        "data": data_column(schedule.type, schedule.data, max_data_size),
        **rule_columns(schedule.rule),
        "next_time": whole_seconds("next_time", schedule.next_time),
        "timeout": whole_seconds("next_run_time", schedule.next_run_time),
    }


def _changes(seen: ScheduleRow, wanted: ScheduleRow, max_data_size: int) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    if (wanted.rule.cron, wanted.rule.timezone) != (seen.rule.cron, seen.rule.timezone):
        check_rule(seen.key, wanted.rule)
    if (wanted.type, wanted.data) != (seen.type, seen.data):
        changes["data"] = data_column(wanted.type, wanted.data, max_data_size)
    if wanted.rule != seen.rule:
        before = {"cron": seen.rule.cron, "timezone": seen.rule.timezone, "delay": seen.rule.delay}
        changes |= {name: value for name, value in rule_columns(wanted.rule).items() if value != before[name]}
    if wanted.next_time != seen.next_time:
        changes["next_time"] = whole_seconds("next_time", wanted.next_time)
    if wanted.next_run_time != seen.next_run_time:
        changes["timeout"] = whole_seconds("next_run_time", wanted.next_run_time)
    return changes


def _as_seen(present: ScheduleRow, seen: ScheduleRow) -> bool:
    """Return whether the schedule `present` still equals `seen`.

    The due time of a leased row is not compared, because extending the lease changes it. The table has no version of
    the definition that could be compared instead of the columns.
    """
    if (present.rule, present.next_time) != (seen.rule, seen.next_time):
        return False
    if seen.settled and present.next_run_time != seen.next_run_time:
        return False
    return (present.type, present.data) == (seen.type, seen.data)
