"""When something is due next: what whoever finds nothing to do sleeps by. Used in children and clients.

Of schedules the earliest row is the first of an index. A queue's rows are in order within each band only; its bands are
jumped over one by one, so that a backlog of thousands costs no more than a single row.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from sqlalchemy import BigInteger, ColumnElement, FromClause, Select, Table, bindparam, cast, func, select, union_all

from psched.backends.rdb.claiming import type_parameters
from psched.dialects.base import Dialect, now_ms
from psched.dialects.database import Database

Earliest = Callable[..., Select[Any]]
"""Returns the SELECT of the earliest due time of the rows that meet the conditions: one row, perhaps NULL."""


class DueTimes:
    """Asks one table how long nothing will be due. Safe to use from several threads."""

    def __init__(self, database: Database, earliest: Earliest) -> None:
        self._database = database
        self._earliest = earliest
        self._by_types: dict[int | None, Select[Any]] = {}

    def next_due(self, types: Collection[str] | None) -> float | None:
        """Return the seconds until something is due, 0.0 when it is; None when nothing is stored."""
        if types is not None and not types:
            return None
        count = None if types is None else len(types)
        if count not in self._by_types:
            self._by_types[count] = self._statement(count)
        statement, values = self._by_types[count], type_parameters(types)
        wait = self._database.run(lambda connection, _: connection.execute(statement, values).scalar())
        return None if wait is None else max(0.0, wait / 1000)

    def _statement(self, type_count: int | None) -> Select[Any]:
        if type_count is None:
            due = self._earliest().scalar_subquery()
        else:
            parts = [self._earliest(bindparam(f"type_{number}")) for number in range(type_count)]
            together = union_all(*(select(part.scalar_subquery().label("due")) for part in parts)).subquery()
            due = select(func.min(together.c.due)).scalar_subquery()
        return select(cast(due, BigInteger) - now_ms())


def in_order(table: Table) -> Earliest:
    """Return how to find the earliest row by an index on due, or with a type on type and due."""
    c = table.c

    def earliest(type_: ColumnElement[str] | None = None) -> Select[Any]:
        return select(c.due).where(*_of_type(table, type_)).order_by(c.due, c.key).limit(1)

    return earliest


def by_bands(dialect: Dialect, table: Table) -> Earliest:
    """Return how to find the earliest row by an index on band and due, or with a type on type, band and due."""

    def earliest(type_: ColumnElement[str] | None = None) -> Select[Any]:
        heads = (_grouped(table, type_) if dialect.loose_scan else _jumped(table, type_)).subquery()
        return select(func.min(heads.c.due))

    return earliest


def _grouped(table: Table, type_: ColumnElement[str] | None) -> Select[Any]:
    """Select the earliest due time of each band, where the database jumps from group to group by itself."""
    c = table.c
    return select(func.min(c.due).label("due")).where(*_of_type(table, type_), c.band.is_not(None)).group_by(c.band)


def _jumped(table: Table, type_: ColumnElement[str] | None) -> Select[Any]:
    """Select the earliest due time of each band, jumping from one to the next below it by recursion."""
    top, lower, row = table.alias(), table.alias(), table.alias()
    bands = (select(func.max(top.c.band).label("band")).where(*_of_type(top, type_), top.c.band.is_not(None))).cte(
        recursive=True
    )
    below = select(func.max(lower.c.band)).where(*_of_type(lower, type_), lower.c.band < bands.c.band)
    bands = bands.union_all(select(below.scalar_subquery()).where(bands.c.band.is_not(None)))
    head = select(func.min(row.c.due)).where(*_of_type(row, type_), row.c.band == bands.c.band)
    return select(head.scalar_subquery().label("due")).select_from(bands)


def _of_type(table: FromClause, type_: ColumnElement[str] | None) -> list[ColumnElement[bool]]:
    return [] if type_ is None else [table.c.type == type_]
