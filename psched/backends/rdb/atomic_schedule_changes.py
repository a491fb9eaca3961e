"""Applies many changes of schedules in one transaction: all of them or none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import sqlalchemy as sa

from psched.backends.common.batches import parts
from psched.backends.common.rows import BATCH, RUNNING, all_columns, milliseconds
from psched.backends.rdb.inserts import RowInserts, schedule_columns
from psched.backends.rdb.lease_store import new_number
from psched.backends.sql.bulk_statements import BulkUpdate, GivenColumns
from psched.backends.sql.compiled_statements import Statement, cached_on_class, execute_text
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import Dialect, now_ms
from psched.backends.sql.ledger_writer import LedgerWriter
from psched.model import NO_OCCURRENCE, Rule, ScheduleRow
from psched.payload import pack
from psched.store import RowChange, StoreSettings
from psched.store.ledger import DELETE, MODIFY

_CHARACTERS_AT_ONCE = 500_000
"""The maximum number of characters of data in one statement. MariaDB limits the length of a statement, and escaping may
double it.
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
        self,
        database: Database,
        table: sa.Table,
        read: Callable[[Mapping[Any, Any]], ScheduleRow],
        inserts: RowInserts,
        records: LedgerWriter,
        settings: StoreSettings,
    ) -> None:
        self._database = database
        self._read = read
        self._inserts = inserts
        self._records = records
        self._holder = settings.holder
        self._max_data_size = settings.max_data_size
        self._write_statements(type(database.dialect), table)

    def rows(self, keys: Sequence[str]) -> Iterator[sa.RowMapping]:
        for start in range(0, len(keys), BATCH):
            yield from self._database.rows(self._whole, {"of_keys": list(keys[start : start + BATCH])})

    def apply(self, changes: Sequence[RowChange]) -> list[str]:
        new = [
            schedule_columns(change.wanted, self._max_data_size)
            for change in changes
            if change.seen is None and change.wanted is not None
        ]
        old = sorted((change for change in changes if change.seen is not None), key=attrgetter("key"))
        modified = [self._modification(change) for change in old if change.wanted is not None]
        gone = [change.key for change in old if change.wanted is None]
        number = new_number()
        conflicts: list[str] = []

        def work(connection: sa.Connection, uncertain: bool) -> None:
            conflicts.clear()
            if uncertain and changes and self._is_done(connection, changes[0], number):
                return
            self._database.change_rows(connection, 0, lambda: change(connection), lambda: None)

        def change(connection: sa.Connection) -> int:
            present = self._locked(connection, [change.key for change in old])
            conflicts.extend(change.key for change in old if not _is_expected(present.get(change.key), change))
            if conflicts:
                return len(conflicts)
            self._delete(connection, gone, present, number)
            self._modify(connection, modified, present, number)
            if new:
                conflicts.extend(self._inserts.insert_within(connection, new, number))
            return len(conflicts)

        if changes:
            self._database.run(work)
            self._inserts.notify()
        return conflicts

    def _modification(self, change: RowChange) -> _Modification:
        assert change.wanted is not None
        return _Modification(change, change.wanted, *pack(change.wanted.data, max_size=self._max_data_size))

    def _is_done(self, connection: sa.Connection, first: RowChange, number: int) -> bool:
        """Return whether an earlier attempt was committed, although its answer was lost.

        `first`: any of the changes, because all changes are in one transaction. `number`: the number of the call of
        `apply`.
        """
        if first.seen is None:
            return self._inserts.has_inserted(connection, first.key, number)
        return self._records.has_change_of(connection, first.key, number)

    def _locked(self, connection: sa.Connection, keys: Sequence[str]) -> dict[str, _Columns]:
        """Lock these rows, and return their columns without the data. The column `now` is the database's clock."""
        found: dict[str, _Columns] = {}
        for start in range(0, len(keys), BATCH):
            text, values = self._lock.step_on(connection, keys[start : start + BATCH], {})
            rows = execute_text(connection, text, values).fetchall()
            found |= {row[0]: dict(zip(self._names, row, strict=True)) for row in rows}
        return found

    def _delete(
        self, connection: sa.Connection, keys: Sequence[str], present: Mapping[str, _Columns], number: int
    ) -> None:
        change = self._records.change_parameters(DELETE, self._holder, number=number)
        for start in range(0, len(keys), BATCH):
            part = keys[start : start + BATCH]
            self._records.deleted.execute(connection, [_pending(present[key]) for key in part], change)
            self._gone.execute_on(connection, part, {})

    def _modify(
        self,
        connection: sa.Connection,
        modifications: Sequence[_Modification],
        present: Mapping[str, _Columns],
        number: int,
    ) -> None:
        if not modifications:
            return
        change = self._records.change_parameters(MODIFY, self._holder, number=number)
        if len(modifications) > 1:
            self._update.prepare(connection, one_row=False)
        rows = [self._modified(each, present[each.wanted.key]) for each in modifications]
        for part in parts(rows, [len(row["data"]) for row in rows], BATCH, _CHARACTERS_AT_ONCE):
            self._update.execute(connection, part, {})
            self._records.modified.execute(connection, [_pending(present[row["key"]]) for row in part], change)

    def _modified(self, modification: _Modification, present: _Columns) -> dict[str, Any]:
        wanted, change = modification.wanted, modification.change
        if change.redefine is not None:
            seen = change.seen
            if not isinstance(seen, ScheduleRow) or not _has_times(present, seen):
                seen = self._read({**present, "data": "{}"})
            wanted = change.redefine(seen, present["now"] / 1000)
        columns = all_columns(wanted)
        if present["status"] == RUNNING:
            columns["due"] = present["due"]  # the lease may have been renewed
        return {"key": wanted.key, "data": modification.text, "size": modification.size, **columns}

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: sa.Table) -> None:
        c = table.c
        of_keys = c.key.in_(sa.bindparam("keys", expanding=True))
        self._whole = sa.select(*c).where(c.key.in_(sa.bindparam("of_keys", expanding=True)))
        read = [c.key, *(column for column in c if column is not c.key and column is not c.data)]
        self._names = [*(column.name for column in read), "now"]
        self._lock = Statement(sa.select(*read, now_ms()).where(of_keys).order_by(c.key).with_for_update())
        self._gone = Statement(sa.delete(table).where(of_keys))

        def update(row: GivenColumns, now: sa.ColumnElement[int]) -> sa.Update:
            given = {name: row[name] for name in _COLUMNS}
            is_row = dialect.by_index(c.key, row["key"])
            return sa.update(table).where(is_row).values(**given, updated=now, version=c.version + 1)

        self._update = BulkUpdate({name: c[name].type for name in ("key", *_COLUMNS)}, update)


_Columns = Mapping[str, Any]


class _Modification(NamedTuple):
    """A change of a row, with the text and the size of the row's new data."""

    change: RowChange
    wanted: ScheduleRow
    text: str
    size: int


def _is_expected(present: _Columns | None, change: RowChange) -> bool:
    """Return whether a stored row is the row that `change` expects.

    The version must be the same. The times must be the same, too, if `change` modifies the row without `redefine`.
    """
    seen = change.seen
    if present is None or seen is None or present["version"] != seen.version:
        return False
    if change.wanted is None or change.redefine is not None:
        return True
    return isinstance(seen, ScheduleRow) and _has_times(present, seen)


def _has_times(present: _Columns, seen: ScheduleRow) -> bool:
    """Return whether a stored row still has the status and times of `seen`.

    If so, the schedule has not run since `seen` was read. The due time of a running row is ignored, because each
    renewal of the lease changes it.
    """
    if (present["status"], present["next_time"]) != (seen.status, milliseconds(seen.next_time)):
        return False
    return bool(seen.status == RUNNING or present["due"] == milliseconds(seen.next_run_time))


def _pending(present: _Columns) -> dict[str, Any]:
    """Return the next regular occurrence of a stored row. It is recorded with the change of the row."""
    time, regular = present["next_time"], present["regular_time"]
    return {"key": present["key"], "pending": time if regular is None else regular}
