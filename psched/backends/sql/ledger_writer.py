"""Writes the ledger of schedules on SQL databases: settled occurrences and changed definitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

import sqlalchemy as sa

from psched.backends.common.rows import BATCH, ledger_columns, milliseconds
from psched.backends.sql.bulk_statements import BulkUpdate, GivenColumns, column_as_parameter, rows_in
from psched.backends.sql.compiled_statements import Statement
from psched.backends.sql.dialect import Dialect, larger_of, now_ms
from psched.model import Lease, ScheduleRow
from psched.store.ledger import DELETE, Entry

_OF_SCHEDULE = ("key", "fence", "node", "version")
"""Columns of an entry that are copied from the schedule's row."""
_OF_CALL = ("action", "node", "pending", "reckoning", "number")
"""Columns of a change that the caller provides."""
_OF_TIMES = ("next_time", "due", "regular_time", "regular_due")


class LedgerWriter:
    """Inserts ledger entries and definition changes, usually together with the change of the schedule."""

    def __init__(
        self, dialect: type[Dialect], schedules: sa.Table, ledger: sa.Table, changes: sa.Table, reckoning: str
    ) -> None:
        """`reckoning`: the cron dialect and the tz database version with which this process computes times."""
        self._dialect = dialect
        self._schedules = schedules
        self._ledger = ledger
        self._changes = changes
        self._reckoning = reckoning
        self._this = schedules.c.key == sa.bindparam("lease_key")
        self._given = [c.name for c in ledger.c if c.name not in (*_OF_SCHEDULE, "ended")]
        computed = ("changed", "first_time", "due", *_OF_CALL)
        self._of_definition = [c.name for c in changes.c if c.name not in computed]
        types = {name: ledger.c[name].type for name in ("key", *self._given)}
        self.entries = BulkUpdate(types, self._entry_of_row)
        self._skipped = BulkUpdate(types, partial(self._entry_of_row, age=1))
        self._change_parameters = {
            name: sa.bindparam(f"change_{name}", type_=changes.c[name].type) for name in _OF_CALL
        }
        self._insert_change = self._change_of_row(schedules.c.version, self._this)
        new = rows_in("new_rows", [sa.column("new_key", schedules.c.key.type)])
        ours = (
            dialect.by_index(schedules.c.key, new.c.new_key),
            schedules.c.nonce == sa.bindparam("nonce", type_=schedules.c.nonce.type),
        )
        self._insert_added = self._change_of_row(schedules.c.version, *ours)
        # A deletion gets a version above the row's last fence, so that a later row with this key gets larger fences.
        last = larger_of(schedules.c.version, schedules.c.fence)
        self._insert_deleted = self._change_of_row(last + 1, self._this)
        of_change = {"key": ledger.c.key.type, "pending": sa.BigInteger()}
        self.modified = BulkUpdate(of_change, partial(self._change_of_given, schedules.c.version))
        """Records changes of rows. Each given row has its key and the occurrence that was next before the change."""
        self.deleted = BulkUpdate(of_change, partial(self._change_of_given, last + 1))
        """Records deletions of rows, and must be executed before the rows are deleted."""
        c = ledger.c
        self._of_lease = sa.select(c.key).where(
            c.key == sa.bindparam("of_key"),
            c.scheduled_time == sa.bindparam("of_time"),
            c.fence == sa.bindparam("of_fence"),
        )
        c = changes.c
        this_version = c.key == sa.bindparam("of_key"), c.version == sa.bindparam("of_version")
        self._made_by = sa.select(c.number).where(*this_version)
        number = sa.bindparam("of_number", type_=sa.BigInteger)
        self._is_of_call = sa.select(c.key).where(c.key == sa.bindparam("of_key"), c.number == number).limit(1)

    def settle_and_insert(self, settle: BulkUpdate) -> Statement:
        """Return a statement that settles one row and inserts the row's ledger entry."""
        update = cast("sa.Update", settle.on_one_row())
        if not self._dialect.nested_writes:
            return Statement(update, then=cast("sa.Insert", self.entries.on_one_row()))
        settled = update.returning(*(self._schedules.c[name] for name in _OF_SCHEDULE)).cte("settled")
        insert_entry = self._insert_entry(settled, self.entries.given(), now_ms())
        return Statement(insert_entry.execution_options(preserve_rowcount=True))  # report the row count of `settle`

    def has(self, connection: sa.Connection, row: ScheduleRow, lease: Lease) -> bool:
        """Return whether the ledger has the entry by which `lease` settled the occurrence in `row`."""
        time = milliseconds(row.next_time)
        values = {"of_key": row.key, "of_time": time, "of_fence": lease.fence}
        return connection.execute(self._of_lease, values).first() is not None

    def insert_skipped(self, connection: sa.Connection, row: ScheduleRow, entry: Entry) -> None:
        """Insert the entry of the occurrence in `row`, after the change that skipped this occurrence was written."""
        self._skipped.execute(connection, [ledger_columns(row, entry, self._reckoning)], {})

    def last_version(self, key: sa.ColumnElement[Any]) -> sa.ColumnElement[int]:
        """Return the last recorded version of the schedule `key`, or 0."""
        c = self._changes.c
        return sa.func.coalesce(sa.select(sa.func.max(c.version)).where(c.key == key).scalar_subquery(), 0)

    def insert_change(
        self,
        connection: sa.Connection,
        key: str,
        action: str,
        node: str,
        pending: int | None,
        number: int | None = None,
    ) -> None:
        """Copy the current definition from the schedule's row into the table of changes. The row must exist.

        `pending`: the occurrence that was next before this change, in unix milliseconds. `number`: the number of the
        call that makes the change.
        """
        insert_change = self._insert_deleted if action == DELETE else self._insert_change
        change = self.change_parameters(action, node, pending, number)
        connection.execute(insert_change, {"lease_key": key, **change})

    def is_made_by(self, connection: sa.Connection, key: str, version: int, number: int) -> bool:
        """Return whether the call with this number has written this version of the definition."""
        made = connection.execute(self._made_by, {"of_key": key, "of_version": version}).scalar()
        return bool(made == number)

    def has_change_of(self, connection: sa.Connection, key: str, number: int) -> bool:
        values = {"of_key": key, "of_number": number}
        return connection.execute(self._is_of_call, values).first() is not None

    def insert_added(
        self, change: Mapping[str, Any], connection: sa.Connection, keys: Sequence[str], nonce: int
    ) -> None:
        """Record the definitions of schedules that the call with the number `nonce` has just added.

        `change`: the result of `change_parameters`.
        """
        for start in range(0, len(keys), BATCH):
            rows = column_as_parameter(keys[start : start + BATCH])
            connection.execute(self._insert_added, {"new_rows": rows, "nonce": nonce, **change})

    def insert_and_record(self, new: sa.Insert) -> sa.Insert:
        """Return a statement that executes `new`, with the row count of `new`, and records the new definitions."""
        added = new.returning(*(self._schedules.c[name] for name in (*self._of_definition, *_OF_TIMES))).cte("added")
        return self._change_of_row(added.c.version, source=added)

    def change_parameters(
        self, action: str, node: str, pending: int | None = None, number: int | None = None
    ) -> dict[str, Any]:
        """Return the parameters of a statement that records a change, such as the statement of `insert_and_record`."""
        change = {"action": action, "node": node, "pending": pending, "reckoning": self._reckoning, "number": number}
        return {f"change_{name}": value for name, value in change.items()}

    def _entry_of_row(self, row: GivenColumns, now: sa.ColumnElement[int], age: int = 0) -> sa.Insert:
        """Return the INSERT of entries. Their version is the version of the schedule's row minus `age`."""
        return self._insert_entry(self._schedules, row, now, self._is_of(row), age=age)

    def _insert_entry(
        self,
        source: sa.FromClause,
        row: GivenColumns,
        now: sa.ColumnElement[int],
        *conditions: sa.ColumnElement[bool],
        age: int = 0,
    ) -> sa.Insert:
        started = row["started"]  # `started` may be late by a round trip, and a run may be shorter than that
        values = {**row, "started": sa.case((started > now, now), else_=started)}
        *names, version = (source.c[name] for name in _OF_SCHEDULE)
        known = [values[name] for name in self._given]
        chosen = sa.select(*names, version - age if age else version, *known, now).where(*conditions)
        return sa.insert(self._ledger).from_select([*_OF_SCHEDULE, *self._given, "ended"], chosen)

    def _is_of(self, row: GivenColumns) -> sa.ColumnElement[bool]:
        """Return the condition that a schedule has the key `row["key"]`."""
        return self._dialect.by_index(self._schedules.c.key, row["key"])

    def _change_of_given(
        self, version: sa.ColumnElement[int], row: GivenColumns, now: sa.ColumnElement[int]
    ) -> sa.Insert:
        """Return the INSERT of the definition of the schedule `row["key"]`.

        The pending occurrence is `row["pending"]`.
        """
        return self._change_of_row(version, self._is_of(row), pending=row["pending"])

    def _change_of_row(
        self,
        version: sa.ColumnElement[int],
        *conditions: sa.ColumnElement[bool],
        source: sa.FromClause | None = None,
        pending: sa.ColumnElement[Any] | None = None,
    ) -> sa.Insert:
        """Return the INSERT of the definition in a schedule's row, under the version `version`."""
        row = self._schedules.c if source is None else source.c
        taken = {name: row[name] for name in self._of_definition} | {
            "version": version,
            "first_time": sa.func.coalesce(row.regular_time, row.next_time),
            "due": sa.func.coalesce(row.regular_due, row.due),
        }
        change = self._change_parameters if pending is None else {**self._change_parameters, "pending": pending}
        chosen = sa.select(*taken.values(), *change.values(), now_ms()).where(*conditions)
        return sa.insert(self._changes).from_select([*taken, *change, "changed"], chosen)
