"""The ledger of schedules in `rdb`: reading it, and trimming what is old. Used in children and clients.

Each statement follows an index: the occurrences of a key stand together, failures and the rest each by their ends.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Connection,
    FromClause,
    Insert,
    RowMapping,
    Select,
    Table,
    Update,
    bindparam,
    case,
    column,
    delete,
    func,
    insert,
    or_,
    select,
)

from psched.backends.common.rows import (
    entry_columns,
    milliseconds,
    optional_milliseconds,
    read_change,
    read_row,
)
from psched.backends.sql.base import Dialect, larger_of, now_ms, now_once
from psched.backends.sql.bulk_statement import CompiledBulkUpdate, Told, as_parameter, rows_in
from psched.backends.sql.database import Database
from psched.backends.sql.once import cached_on_class
from psched.backends.sql.statement import TwoStatements
from psched.model import Lease, ScheduleRow
from psched.store.ledger import ADD, DELETE, Change, Entry, LedgerFilter, LedgerRow

_PAGE = 500
"""Rows read at once."""


class RdbLedger:
    """`Ledger` in two tables beside the schedules'."""

    def __init__(self, database: Database, ledger: Table, changes: Table) -> None:
        self._database = database
        self._write_questions(ledger, changes)

    @cached_on_class
    def _write_questions(self, ledger: Table, changes: Table) -> None:
        self._ledger = ledger
        c = changes.c
        self._of_key = select(*c).where(c.key == bindparam("of_key")).order_by(c.version)
        self._next_key = select(c.key).where(c.key > bindparam("after_key")).order_by(c.key).limit(1)
        row = ledger.c
        self._before = (
            select(*row)
            .where(
                row.key == bindparam("of_key"),
                row.scheduled_time < bindparam("before"),
                row.version == bindparam("by_version"),
            )
            .order_by(row.scheduled_time.desc(), row.fence.desc())
            .limit(1)
        )

    def rows(self, wanted: LedgerFilter) -> Iterator[LedgerRow]:
        """Yield entries: of one key in the order of occurrences, of all as they were settled."""
        c = self._ledger.c
        if wanted.key is not None:
            conditions = [c.key == wanted.key, *_between(c.scheduled_time, wanted)]
            if wanted.failed:
                conditions.append(c.trouble == 1)
            return map(read_row, self._pages((c.scheduled_time, c.fence), conditions))
        kinds = [self._settled(trouble, wanted) for trouble in ((1,) if wanted.failed else (0, 1))]
        return map(read_row, heapq.merge(*kinds, key=_settled_order))

    def row_before(self, key: str, time: int, version: int) -> LedgerRow | None:
        """Return the last entry by this definition of `key` whose first occurrence comes before `time`, or None."""
        found = self._read(self._before, {"of_key": key, "before": milliseconds(time), "by_version": version})
        return read_row(found[0]) if found else None

    def changes(self, key: str) -> list[Change]:
        """Return the changes of a schedule's definition that are kept, the oldest first."""
        return [read_change(row) for row in self._read(self._of_key, {"of_key": key})]

    def keys(self) -> Iterator[str]:
        """Yield the keys with changes on record, in order."""
        after = ""
        while found := self._read(self._next_key, {"after_key": after}):
            after = found[0]["key"]
            yield after

    def _settled(self, trouble: int, wanted: LedgerFilter) -> Iterator[RowMapping]:
        c = self._ledger.c
        conditions = [c.trouble == trouble, *_between(c.ended, wanted)]
        return self._pages((c.ended, c.key, c.scheduled_time, c.fence), conditions)

    def _pages(self, order: Sequence[Column[Any]], conditions: Sequence[ColumnElement[bool]]) -> Iterator[RowMapping]:
        """Yield rows in `order`, that of an index after the column which `conditions` fix, a page at a time."""
        statement = select(*self._ledger.c).where(*conditions).order_by(*order).limit(_PAGE)
        following = statement.where(order[0] >= bindparam("after_0"), _after(order))
        page = self._read(statement, {})
        while page:
            yield from page
            last = page[-1]
            values = {f"after_{place}": last[column.name] for place, column in enumerate(order)}
            page = self._read(following, values) if len(page) == _PAGE else []

    def _read(self, statement: Select[Any], values: Mapping[str, Any]) -> Sequence[RowMapping]:
        return self._database.run(lambda connection, _: connection.execute(statement, values).mappings().all())


def _between(column: Column[Any], wanted: LedgerFilter) -> Iterator[ColumnElement[bool]]:
    if wanted.since is not None:
        yield column >= milliseconds(wanted.since)
    if wanted.until is not None:
        yield column <= milliseconds(wanted.until)


def _after(columns: Sequence[Column[Any]], place: int = 0) -> ColumnElement[bool]:
    """Return the condition that a row comes after the last one read, spelled out, so that MariaDB uses an index."""
    column = columns[0]
    value: ColumnElement[Any] = bindparam(f"after_{place}", type_=column.type)
    if len(columns) == 1:
        return column > value
    return or_(column > value, (column == value) & _after(columns[1:], place + 1))


def _settled_order(row: RowMapping) -> tuple[Any, ...]:
    return row["ended"], row["key"], row["scheduled_time"], row["fence"]


_DEFINITIONS_AT_ONCE = 2000
"""Definitions entered by one statement."""

_OF_SCHEDULE = ("key", "fence", "node", "version")
_OF_ENTRY = (
    *(
        "scheduled_time",
        "outcome",
        "detail",
        "last_time",
        "occurrences",
        "extra",
        "previous",
        "attempts",
        "trouble",
        "error",
    ),
)
_GIVEN = (*_OF_ENTRY, "reckoning", "started")
_OF_DEFINITION = (
    *("key", "version", "type", "cron", "timezone", "delay_ms"),
    *("catch_up", "max_lateness_ms", "alert_after_ms", "max_attempts", "paused_from", "paused_until"),
)
_OF_TIMES = ("next_time", "due", "regular_time", "regular_due")

_NOW = now_ms()
"""The clock of a statement on one row; those on many take `now_once`."""


class SettlementEntry(NamedTuple):
    """What settles an occurrence and enters that, and its further parameters."""

    statement: CompiledBulkUpdate | TwoStatements
    values: dict[str, Any]


class LedgerWriter:
    """The statements that enter rows, built once per table (`dialects.once.shared`)."""

    def __init__(self, dialect: type[Dialect], schedules: Table, ledger: Table, changes: Table, reckoning: str) -> None:
        """`reckoning`: the cron dialect and the version of the tz database, as this process computes times."""
        self._nested = dialect.nested_writes
        self._schedules = schedules
        self._ledger = ledger
        self._changes = changes
        self._reckoning = reckoning
        self._this = schedules.c.key == bindparam("lease_key")
        self._entry = self._entering(schedules, self._this)
        self._passed = self._entering(schedules, self._this, age=1)
        given = self._given = {
            name: bindparam(f"change_{name}", type_=changes.c[name].type)
            for name in ("action", "node", "pending", "reckoning", "number")
        }
        self._change = self._changing(schedules.c.version, given, self._this)
        new = rows_in("new_rows", [column("new_key", schedules.c.key.type)])
        ours = (schedules.c.key == new.c.new_key, schedules.c.nonce == bindparam("nonce", type_=schedules.c.nonce.type))
        self._additions = self._changing(schedules.c.version, given, *ours)
        # No smaller than a fence that the row has had, so that the next row of its key begins with a larger one.
        last = larger_of(schedules.c.version, schedules.c.fence)
        self._removal = self._changing(last + 1, given, self._this)
        c = ledger.c
        self._of_lease = select(c.key).where(
            c.key == bindparam("of_key"),
            c.scheduled_time == bindparam("of_time"),
            c.fence == bindparam("of_fence"),
        )
        self._settling: dict[Update, CompiledBulkUpdate | TwoStatements] = {}
        c = changes.c
        this_version = c.key == bindparam("of_key"), c.version == bindparam("of_version")
        self._made_by = select(c.number).where(*this_version)

    def settling(self, settle: Update, row: ScheduleRow, entry: Entry) -> SettlementEntry:
        """Return what settles an occurrence by `settle` and enters it."""
        return SettlementEntry(self.settling_by(settle), self._parameters(row, entry))

    def settling_by(self, settle: Update) -> CompiledBulkUpdate | TwoStatements:
        """Return what settles an occurrence by `settle`; made once."""
        if settle not in self._settling:
            self._settling[settle] = (
                CompiledBulkUpdate(self._in_one(settle)) if self._nested else TwoStatements(settle, self._entry)
            )
        return self._settling[settle]

    def has(self, connection: Connection, row: ScheduleRow, lease: Lease) -> bool:
        """Tell whether there is an entry of the occurrence in `row` that was settled under the fence of `lease`."""
        time = milliseconds(row.next_time)
        values = {"of_key": row.key, "of_time": time, "of_fence": lease.fence}
        return connection.execute(self._of_lease, values).first() is not None

    def entering_given(self, given: Told) -> Insert:
        """Return what enters all that has just been settled of the given keys; given is what `values` returns."""
        values = {name: given[name] for name in _GIVEN}
        return self._entry_of(self._schedules, values, self._schedules.c.key == given["key"], clock=now_once())

    def passing(self, connection: Connection, row: ScheduleRow, entry: Entry) -> None:
        """Enter what became of the occurrence in `row`, passed over by a change that has just been written."""
        connection.execute(self._passed, {"lease_key": row.key, **self._parameters(row, entry)})

    def last_version(self, key: ColumnElement[Any]) -> ColumnElement[int]:
        """Return the last version on record of a schedule with that key, 0 when there is none."""
        c = self._changes.c
        return func.coalesce(select(func.max(c.version)).where(c.key == key).scalar_subquery(), 0)

    def change(
        self,
        connection: Connection,
        key: str,
        action: str,
        node: str,
        pending: int | None,
        number: int | None = None,
    ) -> None:
        """Enter the definition that now stands in the schedule's row; `pending`: what was next before, milliseconds."""
        self._enter_change(connection, self._change, key, action, node, pending, number)

    def is_made_by(self, connection: Connection, key: str, version: int, number: int) -> bool:
        """Tell whether the call with that number has made this version of the schedule's definition."""
        made = connection.execute(self._made_by, {"of_key": key, "of_version": version}).scalar()
        return bool(made == number)

    def additions(self, connection: Connection, keys: Sequence[str], nonce: int, node: str) -> None:
        """Enter the definitions of the schedules with these keys that were just added under `nonce`."""
        for start in range(0, len(keys), _DEFINITIONS_AT_ONCE):
            rows = as_parameter([{"key": key} for key in keys[start : start + _DEFINITIONS_AT_ONCE]], ["key"])
            connection.execute(self._additions, {"new_rows": rows, "nonce": nonce, **self.of_addition(node)})

    def adding(self, new: Insert) -> Insert:
        """Return the one statement that adds schedules and enters their definitions; its row count is the same."""
        added = new.returning(*(self._schedules.c[name] for name in (*_OF_DEFINITION, *_OF_TIMES))).cte("added")
        return self._changing(added.c.version, self._given, source=added)

    def of_addition(self, node: str) -> dict[str, Any]:
        """Return the parameters that `adding` takes besides those of the schedules."""
        return self._parameters_of_change(ADD, node, None)

    def removal(self, connection: Connection, key: str, node: str, pending: int) -> None:
        """Enter that the schedule, whose row is still there, is deleted."""
        self._enter_change(connection, self._removal, key, DELETE, node, pending)

    def _in_one(self, settle: Update) -> Insert:
        """Return the one statement that executes `settle` and enters what it settled; its row count is the same."""
        settled = settle.returning(*(self._schedules.c[name] for name in _OF_SCHEDULE)).cte("settled")
        return self._entering(settled).execution_options(preserve_rowcount=True)

    def values(self, row: ScheduleRow, entry: Entry) -> dict[str, Any]:
        """Return what is known of an entry before it is made, by its columns."""
        return {
            **entry_columns(row, entry),
            "scheduled_time": milliseconds(row.next_time),
            "started": optional_milliseconds(entry.started),
            "reckoning": self._reckoning,
        }

    def _parameters(self, row: ScheduleRow, entry: Entry) -> dict[str, Any]:
        return {f"entry_{name}": value for name, value in self.values(row, entry).items()}

    def _enter_change(
        self,
        connection: Connection,
        statement: Insert,
        key: str,
        action: str,
        node: str,
        pending: int | None,
        number: int | None = None,
    ) -> None:
        given = self._parameters_of_change(action, node, pending, number)
        connection.execute(statement, {"lease_key": key, **given})

    def _parameters_of_change(
        self, action: str, node: str, pending: int | None, number: int | None = None
    ) -> dict[str, Any]:
        change = {"action": action, "node": node, "pending": pending, "reckoning": self._reckoning, "number": number}
        return {f"change_{name}": value for name, value in change.items()}

    def _entering(self, source: FromClause, *conditions: ColumnElement[bool], age: int = 0) -> Insert:
        """Return the INSERT of an entry under the version that the schedule's row had `age` changes ago."""
        types = self._ledger.c
        values = {name: bindparam(f"entry_{name}", type_=types[name].type) for name in _GIVEN}
        return self._entry_of(source, values, *conditions, age=age)

    def _entry_of(
        self,
        source: FromClause,
        values: Mapping[str, ColumnElement[Any]],
        *conditions: ColumnElement[bool],
        age: int = 0,
        clock: ColumnElement[int] = _NOW,
    ) -> Insert:
        began = values["started"]  # known up to a round trip, which a run may be shorter than
        started = case((began > clock, clock), else_=began)
        *names, version = (source.c[name] for name in _OF_SCHEDULE)
        known = [value for name, value in values.items() if name != "started"]
        chosen = select(*names, version - age if age else version, *known, started, clock).where(*conditions)
        return insert(self._ledger).from_select([*_OF_SCHEDULE, *values, "ended"], chosen)

    def _changing(
        self,
        version: ColumnElement[int],
        given: Mapping[str, Any],
        *conditions: ColumnElement[bool],
        source: FromClause | None = None,
    ) -> Insert:
        row = self._schedules.c if source is None else source.c
        taken = {name: row[name] for name in _OF_DEFINITION} | {
            "version": version,
            "first_time": func.coalesce(row.regular_time, row.next_time),
            "due": func.coalesce(row.regular_due, row.due),
        }
        chosen = select(*taken.values(), *given.values(), now_ms()).where(*conditions)
        return insert(self._changes).from_select([*taken, *given, "changed"], chosen)


_OLDEST = now_ms() - bindparam("age", type_=BigInteger)
_ALL = 2**62
"""Later than any time."""


class TrimmedLedger(RdbLedger):
    """A ledger that can be trimmed. Each batch ends at a row that is found by its place in an index."""

    def __init__(self, database: Database, ledger: Table, changes: Table) -> None:
        super().__init__(database, ledger, changes)
        self._write_statements(ledger, changes)
        self._after = chr(random.randrange(0x20, 0x7F))  # not every process begins with the same key

    @cached_on_class
    def _write_statements(self, ledger: Table, changes: Table) -> None:
        c, change = ledger.c, changes.c
        of_key, old = c.key == bindparam("of_key"), (c.trouble == bindparam("trouble")) & (c.ended < _OLDEST)
        self._old = _nth(c.ended, (c.ended, c.key, c.scheduled_time, c.fence)).where(old)
        self._delete_old = delete(ledger).where(old, c.ended <= bindparam("end"))
        self._first = _nth(c.scheduled_time, (c.scheduled_time, c.fence)).where(of_key)
        self._last = _nth(c.scheduled_time, (c.scheduled_time.desc(), c.fence.desc())).where(of_key)
        self._delete_first = delete(ledger).where(of_key, c.scheduled_time <= bindparam("end"))
        this = change.key == bindparam("of_key")
        self._version = select(func.max(change.version)).where(this, change.changed < _OLDEST)
        self._superseded = delete(changes).where(this, change.version < bindparam("of_version"))
        gone = change.action == DELETE
        self._deleted = delete(changes).where(this, change.version == bindparam("of_version"), gone)

    def trim(self, retention: float, count: int, limit: int, key: str | None) -> bool:
        """Delete about `limit` entries that are too old, and of `key` those before its last `count`."""
        age = round(retention * 1000)

        def work(connection: Connection, uncertain: bool) -> bool:
            deleted = [self._trim_old(connection, age, limit, trouble) for trouble in (0, 1)]
            if key is not None:
                deleted.append(self._trim_key(connection, key, count, limit))
            self._trim_changes(connection, age)
            return max(deleted) >= limit

        return self._database.run(work)

    def _trim_old(self, connection: Connection, age: int, limit: int, trouble: int) -> int:
        kind = {"age": age, "trouble": trouble}
        end = connection.execute(self._old, {**kind, "skipped": limit - 1}).scalar()
        done: int = connection.execute(self._delete_old, {**kind, "end": _ALL if end is None else end}).rowcount
        return done

    def _trim_key(self, connection: Connection, key: str, count: int, limit: int) -> int:
        surplus = connection.execute(self._last, {"of_key": key, "skipped": count}).scalar()
        if surplus is None:
            return 0
        end = connection.execute(self._first, {"of_key": key, "skipped": limit - 1}).scalar()
        values = {"of_key": key, "end": surplus if end is None else min(surplus, end)}
        done: int = connection.execute(self._delete_first, values).rowcount
        return done

    def _trim_changes(self, connection: Connection, age: int) -> None:
        """Delete, of the next key, the changes that an old one has superseded, and an old one that deleted it."""
        key = connection.execute(self._next_key, {"after_key": self._after}).scalar()
        self._after = "" if key is None else key
        version = None if key is None else connection.execute(self._version, {"of_key": key, "age": age}).scalar()
        if version is not None:
            values = {"of_key": key, "of_version": version}
            connection.execute(self._superseded, values)
            connection.execute(self._deleted, values)


def _nth(column: Column[Any], order: Any) -> Select[Any]:
    """Return `column` of the row that comes after :skipped others in `order`."""
    return select(column).order_by(*order).limit(1).offset(bindparam("skipped"))
