"""The ledger of schedules in `rdb`: reading it, and trimming what is old. Used in children and clients.

Each statement follows an index: the occurrences of a key stand together, failures and the rest each by their ends.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, ColumnElement, RowMapping, Select, Table, bindparam, or_, select

from psched.backends.rdb.schedule_rows import optional_whole, read_policy, read_rule
from psched.backends.rdb.tables import milliseconds
from psched.backends.sql.fields import Fields
from psched.dialects.database import Database
from psched.dialects.once import once
from psched.ledger import Change, LedgerFilter, LedgerRow

_PAGE = 500
"""Rows read at once."""


class RdbLedger:
    """`Ledger` in two tables beside the schedules'."""

    def __init__(self, database: Database, ledger: Table, changes: Table) -> None:
        self._database = database
        self._write_questions(ledger, changes)

    @once
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


def read_row(row: Mapping[Any, Any]) -> LedgerRow:
    """Return a stored entry."""
    fields = Fields(row)
    return LedgerRow(
        key=fields.text("key"),
        scheduled_time=int(fields.seconds("scheduled_time", 1000)),
        fence=fields.number("fence"),
        version=fields.number("version"),
        outcome=fields.text("outcome"),
        detail=fields.optional_text("detail"),
        last=optional_whole(fields, "last_time"),
        count=None if row["occurrences"] is None else fields.number("occurrences"),
        extra=fields.number("extra") == 1,
        previous=optional_whole(fields, "previous"),
        attempts=fields.number("attempts"),
        node=fields.optional_text("node"),
        started=fields.optional_seconds("started", 1000),
        ended=fields.seconds("ended", 1000),
        error=fields.optional_text("error"),
        reckoning=fields.text("reckoning"),
    )


def read_change(row: Mapping[Any, Any]) -> Change:
    """Return a stored change."""
    fields = Fields(row)
    return Change(
        key=fields.text("key"),
        version=fields.number("version"),
        at=fields.seconds("changed", 1000),
        action=fields.text("action"),
        node=fields.optional_text("node"),
        type=fields.text("type"),
        rule=read_rule(fields),
        policy=read_policy(fields),
        pending=optional_whole(fields, "pending"),
        first=int(fields.seconds("first_time", 1000)),
        due=fields.seconds("due", 1000),
        reckoning=fields.optional_text("reckoning"),
        paused_from=fields.optional_seconds("paused_from", 1000),
        paused_until=fields.optional_seconds("paused_until", 1000),
    )


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
