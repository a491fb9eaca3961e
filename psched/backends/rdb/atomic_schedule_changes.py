"""Applies many changes of schedules (new, modified and deleted rows) in one transaction: all of them or none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

import sqlalchemy as sa

from psched.backends.common.batches import parts
from psched.backends.common.rows import BATCH, RUNNING, all_columns, milliseconds, regular_time
from psched.backends.rdb.inserts import RowInserts, schedule_columns
from psched.backends.rdb.lease_store import new_number
from psched.backends.sql.compiled_statements import BulkUpdate, GivenColumns, Statement, cached_on_class
from psched.backends.sql.connection_pool import execute_text
from psched.backends.sql.database import Database
from psched.backends.sql.ledger import LedgerWriter
from psched.model import NO_OCCURRENCE, Rule, ScheduleRow
from psched.payload import pack
from psched.store import RowChange, StoreSettings
from psched.store.ledger import DELETE, MODIFY

_BYTES_AT_ONCE = 500_000
"""The most characters of data in one statement. MariaDB limits the length of a statement, and escaping may double it.
"""
_EMPTY = ScheduleRow(
    key="",
    type="",
    data={},
    status="waiting",
    rule=Rule("", ""),
    next_time=NO_OCCURRENCE,
    next_run_time=NO_OCCURRENCE,
)
_COLUMNS = ("data", "size", *all_columns(_EMPTY))
"""The columns that the UPDATE of a modified row sets."""


class AtomicScheduleChanges:
    def __init__(
        self, database: Database, table: sa.Table, inserts: RowInserts, records: LedgerWriter, settings: StoreSettings
    ) -> None:
        self._database = database
        self._inserts = inserts
        self._records = records
        self._holder = settings.holder
        self._max_data_size = settings.max_data_size
        self._write_statements(table)

    def rows(self, keys: Sequence[str]) -> Iterator[sa.RowMapping]:
        """Yield the existing rows of these keys."""
        for start in range(0, len(keys), BATCH):
            yield from self._database.rows(self._whole, {"of_keys": list(keys[start : start + BATCH])})

    def apply(self, changes: Sequence[RowChange]) -> list[str]:
        """See `ScheduleStore.apply`."""
        new = [
            schedule_columns(change.wanted, self._max_data_size)
            for change in changes
            if change.seen is None and change.wanted is not None
        ]
        seen = {change.key: change.seen for change in sorted(changes, key=attrgetter("key")) if change.seen is not None}
        modified = [self._modified(change.wanted) for change in changes if change.seen and change.wanted is not None]
        gone = [change.key for change in changes if change.wanted is None]
        deleted = set(gone)
        number = new_number()
        conflicts: list[str] = []

        def work(connection: sa.Connection, uncertain: bool) -> None:
            conflicts.clear()
            if uncertain and changes and self._is_done(connection, changes[0], number):
                return
            self._database.change_rows(connection, 0, lambda: change(connection), lambda: None)

        def change(connection: sa.Connection) -> int:
            conflicts.extend(self._conflicts(connection, seen, deleted))
            if conflicts:
                return len(conflicts)
            self._delete(connection, gone, seen, number)
            self._modify(connection, modified, seen, number)
            if new:
                conflicts.extend(self._inserts.insert_within(connection, new, number))
            return len(conflicts)

        if changes:
            self._database.run(work)
            self._inserts.notify()
        return conflicts

    def _modified(self, wanted: ScheduleRow) -> dict[str, Any]:
        text, size = pack(wanted.data, max_size=self._max_data_size)
        return {"key": wanted.key, "data": text, "size": size, **all_columns(wanted)}

    def _is_done(self, connection: sa.Connection, first: RowChange, number: int) -> bool:
        """Return whether an attempt whose answer was lost was committed.

        One change is checked, as all share a transaction.
        """
        if first.seen is None:
            return self._inserts.has_inserted(connection, first.key, number)
        return self._records.has_change_of(connection, first.key, number)

    def _conflicts(
        self, connection: sa.Connection, seen: Mapping[str, ScheduleRow], deleted: set[str]
    ) -> Iterator[str]:
        """Lock the rows. Yield the keys of rows that differ from `seen`."""
        keys = list(seen)
        found: dict[str, Sequence[Any]] = {}
        for start in range(0, len(keys), BATCH):
            text, values = self._lock.step_on(connection, keys[start : start + BATCH], {})
            found |= {row[0]: row for row in execute_text(connection, text, values).fetchall()}
        for key, row in seen.items():
            present = found.get(key)
            if present is None or present[1] != row.version or (key not in deleted and not _is_same(present, row)):
                yield key

    def _delete(
        self, connection: sa.Connection, keys: Sequence[str], seen: Mapping[str, ScheduleRow], number: int
    ) -> None:
        change = self._records.change_parameters(DELETE, self._holder, number=number)
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            self._records.deleted.execute(connection, [_pending(seen[key]) for key in part], change)
            self._gone.execute_on(connection, part, {})

    def _modify(
        self,
        connection: sa.Connection,
        rows: Sequence[Mapping[str, Any]],
        seen: Mapping[str, ScheduleRow],
        number: int,
    ) -> None:
        if not rows:
            return
        change = self._records.change_parameters(MODIFY, self._holder, number=number)
        if len(rows) > 1:
            self._update.prepare(connection, one_row=False)
        for part in parts(rows, [len(row["data"]) for row in rows], BATCH, _BYTES_AT_ONCE):
            self._update.execute(connection, part, {})
            self._records.modified.execute(connection, [_pending(seen[row["key"]]) for row in part], change)

    @cached_on_class
    def _write_statements(self, table: sa.Table) -> None:
        c = table.c
        of_keys = c.key.in_(sa.bindparam("keys", expanding=True))
        self._whole = sa.select(*c).where(c.key.in_(sa.bindparam("of_keys", expanding=True)))
        lock = sa.select(c.key, c.version, c.status, c.next_time, c.due).where(of_keys).order_by(c.key)
        self._lock = Statement(lock.with_for_update())
        self._gone = Statement(sa.delete(table).where(of_keys))

        def update(row: GivenColumns, now: sa.ColumnElement[int]) -> sa.Update:
            given = {name: row[name] for name in _COLUMNS}
            return sa.update(table).where(c.key == row["key"]).values(**given, updated=now, version=c.version + 1)

        self._update = BulkUpdate({name: c[name].type for name in ("key", *_COLUMNS)}, update)


def _is_same(present: Sequence[Any], seen: ScheduleRow) -> bool:
    """Return whether status and times equal those in `seen`. A renewed lease differs, because it has a new due time."""
    _, _, status, next_time, due = present
    if (status, next_time) != (seen.status, milliseconds(seen.next_time)):
        return False
    return bool(status == RUNNING or due == milliseconds(seen.next_run_time))


def _pending(seen: ScheduleRow) -> dict[str, Any]:
    return {"key": seen.key, "pending": milliseconds(regular_time(seen))}
