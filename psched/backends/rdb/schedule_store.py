"""Schedules in `rdb`: created by `add`, finished by `advance`."""

from __future__ import annotations

import builtins
from collections.abc import Collection, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, cast

import sqlalchemy as sa

from psched.backends.common.ended_leases import FINISHED, RELEASED, finished_before
from psched.backends.common.rows import (
    BATCH,
    DEFINITION,
    RUNNING,
    changed_columns,
    claimed_schedule,
    definition_columns,
    ledger_columns,
    milliseconds,
    optional_milliseconds,
    read_schedule,
    regular_time,
    settled_time,
    with_tag,
)
from psched.backends.rdb.alert_store import RdbOverdueAlerts
from psched.backends.rdb.atomic_schedule_changes import AtomicScheduleChanges
from psched.backends.rdb.calendars import RdbCalendars
from psched.backends.rdb.counts import RdbScheduleCounts
from psched.backends.rdb.inserts import RowInserts, schedule_columns, schedule_insert
from psched.backends.rdb.lease_statements import LEASE_TYPES, LeaseStatements, constant
from psched.backends.rdb.lease_store import RdbLeaseStore, lease_values, new_number
from psched.backends.rdb.schema import calendars_table, is_no_backfill, schedules_table, type_condition_and_order
from psched.backends.sql.bulk_statements import BulkUpdate, GivenColumns
from psched.backends.sql.compiled_statements import cached, cached_on_class, table_named
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import now_ms, with_index_hint
from psched.backends.sql.ledger import LEDGER_TABLES, SqlLedger
from psched.backends.sql.ledger_writer import LedgerWriter
from psched.backends.sql.paging import begins_with, read_pages
from psched.errors import IdempotentNotFoundError, NotFoundError, OutcomeUnknownError, ScheduleError
from psched.model import Lease, ScheduleFilter, ScheduleRow
from psched.store import RowChange, ScheduleStore, StoreSettings, only
from psched.store.ledger import (
    ADD,
    DELETE,
    FAILED,
    MODIFY,
    NOW,
    Entry,
    OnCommit,
    Step,
    failures_after,
    previous_ended_after,
    runs_after,
)

_COUNTERS = ("counted", "failed_in_row", "run_ended")
_AT_ONCE = -1
"""A value for the end of a run. The settling statement writes the current time instead of this value."""


class RdbScheduleStore(RdbLeaseStore, ScheduleStore):
    _kind = "schedules"

    def __init__(self, database: Database, table: str, settings: StoreSettings) -> None:
        """Opens no connection. Raises ConfigError if `table` cannot be the name of a table."""
        rows = table_named(schedules_table, table)
        ledger, changes, outputs = (table_named(make, table) for make in LEDGER_TABLES)
        calendars = table_named(calendars_table, table)
        super().__init__(database, settings, claimed_schedule, read_schedule, rows, ledger, changes, outputs, calendars)
        self._reckoning = settings.reckoning
        self._records = cached(LedgerWriter, type(database.dialect), rows, ledger, changes, settings.reckoning)
        self.ledger = SqlLedger(database, ledger, changes, outputs)
        self.alerts = RdbOverdueAlerts(database, self._table)
        self.calendars = RdbCalendars(database, calendars)
        insert = cached(schedule_insert, type(database.dialect), self._table, self._records)
        change = self._records.change_parameters(ADD, settings.holder)
        record = None if database.dialect.nested_writes else partial(self._records.insert_added, change)
        self._inserts = RowInserts(database, self._table, insert, {} if record else change, record)
        self._write_statements(self._table, self.lease_statements, self._records)
        self._changes = AtomicScheduleChanges(database, self._table, self._read, self._inserts, self._records, settings)

    @property
    def reads(self) -> RdbScheduleCounts:
        return RdbScheduleCounts(self._database, self._table, self._due_times)

    def add_many(self, schedules: Sequence[ScheduleRow]) -> builtins.list[str]:
        return self._inserts.insert([schedule_columns(row, self.max_data_size) for row in schedules])

    def get_many(self, keys: Sequence[str]) -> builtins.list[ScheduleRow]:
        return [self._read(row) for row in self._changes.rows(keys)]

    def apply(self, changes: Sequence[RowChange]) -> builtins.list[str]:
        return self._changes.apply(changes)

    def list(self, wanted: ScheduleFilter = ScheduleFilter()) -> Iterator[ScheduleRow]:  # noqa: B008 - frozen
        c = self._table.c
        conditions: builtins.list[sa.ColumnElement[bool]] = []
        same: Sequence[sa.ColumnElement[Any]] = ()
        if wanted.type is not None:
            type_ = sa.literal(wanted.type, c.type.type)
            of_type, same = type_condition_and_order(type(self._database.dialect), self._table, type_)
            conditions.append(of_type)
        if wanted.prefix is not None:
            conditions.append(begins_with(c.key, wanted.prefix))
        order: Sequence[sa.Column[Any]] = ()
        if wanted.held:
            conditions.append(c.holder.is_not(None))
            order = (c.holder,)
        if wanted.failing:
            conditions.append(c.failing.is_not(None))
            order = (c.failing, c.key)
        if wanted.due_from is not None:
            conditions.append(c.due >= milliseconds(wanted.due_from))
        if wanted.due_until is not None:
            conditions.append(c.due <= milliseconds(wanted.due_until))
        if wanted.owner is not None:
            conditions.append(c.owner == wanted.owner)
            order = (c.owner, c.key)
        if wanted.tag is not None:
            conditions.append(c.options.is_not(None))
        after = () if wanted.after is None else (milliseconds(wanted.after[0]), wanted.after[1])
        others = (wanted.prefix, wanted.owner, wanted.tag)
        # The index by type is also ordered by due time, as the result must be.
        is_ordered = not (wanted.held or wanted.failing) and others == (None, None, None)
        rows = read_pages(
            self._database, sa.select(*c), c.key, c.due, conditions, after, wanted.page, order, None, is_ordered, same
        )
        return with_tag(map(self._read, rows), wanted.tag)

    def long_due(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        return self._aged(self._long_due, age, limit)

    def failing(self, age: float, limit: int) -> builtins.list[ScheduleRow]:
        return self._aged(self._failing, age, limit)

    def modify(self, seen: ScheduleRow, wanted: ScheduleRow, action: str = MODIFY, entry: Entry | None = None) -> bool:
        changes = changed_columns(seen, wanted, self.max_data_size)
        if not changes:
            return True
        statement = self._unchanged(seen).values(**changes, updated=now_ms(), version=self._table.c.version + 1)
        if entry is not None:  # without a new fence, two entries of the ledger might have the same key
            statement = statement.values(fence=self._table.c.fence + 1)

        pending = milliseconds(regular_time(seen) if entry is None or entry.last is None else entry.last + 1)
        number = new_number()

        def work(connection: sa.Connection, uncertain: bool) -> bool:
            with self._database.transaction(connection):
                done = connection.execute(statement).rowcount == 1
                if done:
                    self._records.insert_change(connection, seen.key, action, self._holder, pending, number)
                if done and entry is not None:
                    self._records.insert_skipped(connection, seen, entry)
            return done or (uncertain and self._records.is_made_by(connection, seen.key, seen.version + 1, number))

        return self._database.run(work)

    def delete(self, key: str) -> None:
        def delete(connection: sa.Connection, row: sa.RowMapping) -> None:
            pending = row["next_time"] if row["regular_time"] is None else row["regular_time"]
            self._records.insert_change(connection, key, DELETE, self._holder, pending)
            connection.execute(self._delete, {"lease_key": key})

        if not self._delete_row(key, itemgetter("nonce"), delete):
            raise IdempotentNotFoundError(f"no schedule has the key {key!r}")

    def park(self, lease: Lease, due: float, until: float) -> None:
        only(self._settle_many(self._park, RELEASED, [lease], until, values={"parked_until": milliseconds(due)}))

    def advance_many(self, steps: Sequence[Step], until: float) -> builtins.list[ScheduleRow | ScheduleError | None]:
        """Advance schedules in transactions of up to `BATCH` schedules.

        If a schedule of a transaction was changed, advances the schedules of this transaction one by one.
        """
        answers: builtins.list[ScheduleRow | ScheduleError | None] = []
        for start in range(0, len(steps), BATCH):
            part = steps[start : start + BATCH]
            is_bulk = len(part) > 1 and not any(map(self._on_commit, part))
            done, uncertain = self._advance_together(part, until) if is_bulk else (False, False)
            if done:
                answers += [None] * len(part)
            else:
                answers += map(partial(self._advance_one, until=until, uncertain=uncertain), part)
        return answers

    def _advance_together(self, steps: Sequence[Step], until: float) -> tuple[bool, bool]:
        """Advance all `steps` in one transaction. Change nothing if one of the rows was changed.

        Return whether the rows were advanced, and whether an attempt whose answer was lost may have advanced them.
        """
        rows = [self._step_values(step) for step in steps]

        def work(connection: sa.Connection, uncertain: bool) -> tuple[bool, bool]:
            advance = partial(self._advance.execute, connection, rows, {"lease_holder": self._holder})
            record = partial(self._records.entries.execute, connection, rows, {})
            return self._database.change_rows(connection, len(rows), advance, record), uncertain

        return self._database.run(work, until)

    def _advance_one(self, step: Step, until: float, uncertain: bool) -> ScheduleRow | ScheduleError | None:
        """Advance one schedule. `uncertain`: whether an earlier try, whose answer was lost, may have advanced it."""
        row, lease = cast("ScheduleRow", step.claim.row), step.claim.lease
        given, on_commit = self._step_values(step), self._on_commit(step)
        values = {
            "lease_holder": self._holder,
            **self._advance.parameters(given),
            **self._records.entries.parameters(given),
        }
        advance = partial(self._database.change_row, statement=self._advance_and_record, values=values, also=on_commit)
        answers, uncertain = self._settle([lease], advance, FINISHED, until, uncertain)
        if not answers:
            return None
        (answer,) = answers
        is_unknown = isinstance(answer, NotFoundError | OutcomeUnknownError)
        if is_unknown and self._database.run(lambda own, _: self._records.has(own, row, lease), until):
            return None if uncertain else finished_before(lease)
        return read_schedule({**answer, "data": "{}"}) if isinstance(answer, sa.RowMapping) else answer

    def _step_values(self, step: Step) -> dict[str, Any]:
        row = cast("ScheduleRow", step.claim.row)
        ended = previous_ended_after(row, step.entry)
        return {
            **definition_columns(row),
            **ledger_columns(row, step.entry, self._reckoning),
            **lease_values(step.claim.lease),
            "following": milliseconds(step.next_time),
            "following_due": milliseconds(step.next_run_time),
            "settled": settled_time(row, step.entry),
            "counted": runs_after(row, step.entry),
            "failed_in_row": failures_after(row, step.entry),
            "run_ended": _AT_ONCE if ended == NOW else optional_milliseconds(ended),
        }

    def _on_commit(self, step: Step) -> OnCommit | None:
        if step.entry.outcome == FAILED and self._keeps_failures:
            return self.failures.insert(step.claim, step.claim.row.last_error, step.on_commit)
        return step.on_commit

    def _compile(self, connection: sa.Connection, types: Collection[str] | None) -> None:
        super()._compile(connection, types)
        self._advance_and_record.prepare(connection)
        self._advance.prepare(connection, one_row=False)
        self._records.entries.prepare(connection, one_row=False)

    def _aged(self, statement: sa.Select[Any], age: float, limit: int) -> builtins.list[ScheduleRow]:
        values = {"age": milliseconds(age), "limit": limit}
        return [read_schedule({**row, "data": "{}"}) for row in self._database.rows(statement, values)]

    def _unchanged(self, seen: ScheduleRow) -> sa.Update:
        """Return an UPDATE that changes the row only if it still has the version, status and times of `seen`.

        If the row is running, `due` is not compared, because each renewal of the lease changes it.
        """
        c = self._table.c
        same = [c.version == seen.version, c.status == seen.status, c.next_time == milliseconds(seen.next_time)]
        if seen.status != RUNNING:
            same.append(c.due == milliseconds(seen.next_run_time))
        return sa.update(self._table).where(c.key == seen.key, *same)

    @cached_on_class
    def _write_statements(self, table: sa.Table, statements: LeaseStatements, records: LedgerWriter) -> None:
        c = table.c
        ago = now_ms() - sa.bindparam("age", type_=sa.BigInteger)
        most: sa.BindParameter[int] = sa.bindparam("limit")
        without_data = [column for column in c if column is not c.data]
        no_backfill = is_no_backfill(table)
        rows = sa.select(*without_data).where(no_backfill).limit(most)
        self._long_due = with_index_hint(rows.where(c.due <= ago).order_by(c.due, c.key), table, "due")
        runs = c.paused_from.is_(None) | c.paused_until.is_not(None)
        self._failing = with_index_hint(rows.where(c.failing <= ago, runs).order_by(c.failing, c.key), table, "failing")
        self._delete = sa.delete(table).where(c.key == sa.bindparam("lease_key"))
        is_paused = c.paused_from.is_not(None) & c.paused_until.is_(None)

        def park(row: GivenColumns, now: sa.ColumnElement[int]) -> sa.Update:
            due = sa.case((is_paused, sa.bindparam("parked_until", type_=sa.BigInteger)), else_=now)
            return statements.settling(row, now, RELEASED, due=due, attempts=c.attempts - 1)

        def advance(row: GivenColumns, now: sa.ColumnElement[int]) -> sa.Update:
            alert_at = sa.case((is_paused, None), else_=row["following"] + c.delay_ms + c.alert_after_ms)
            columns = {
                "next_time": row["following"],
                "due": row["following_due"],
                "last_time": row["settled"],
                "runs": row["counted"],
                "failures": row["failed_in_row"],
                "previous_ended": sa.case((row["run_ended"] == constant(_AT_ONCE), now), else_=row["run_ended"]),
                "alert_at": alert_at,
                "attempts": constant(0),
                "crashes": constant(0),
                **dict.fromkeys(("regular_time", "regular_due", "last_error"), sa.null()),
            }
            unchanged = [c[name] == row[name] for name in DEFINITION]
            return statements.settling(row, now, FINISHED, **columns).where(*unchanged)

        types = LEASE_TYPES | {name: c[name].type for name in DEFINITION}
        self._park = BulkUpdate(LEASE_TYPES, park)
        self._advance = BulkUpdate(
            types | dict.fromkeys(("following", "following_due", "settled", *_COUNTERS), sa.BigInteger()), advance
        )
        self._advance_and_record = records.settle_and_insert(self._advance)
