"""Queries that count rows up to a limit, so that no count reads a whole table."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from functools import reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa

from psched.backends.sql.compiled_statements import Statement
from psched.store.counts import Counted

_LIMIT, _SKIPPED = "limit_of_count", "skipped_in_count"


class Indexed(NamedTuple):
    """Rows that meet `conditions`, found by an index that begins with the columns `order`.

    Without `order` PostgreSQL may read the table from its beginning, although few rows there meet the conditions.
    `forced`: the index that MariaDB and MySQL must use. `least`: a limit for these rows alone. The lower of this limit
    and the limit for all rows applies.
    """

    conditions: Sequence[sa.ColumnElement[bool]] = ()
    order: Sequence[sa.ColumnElement[Any]] = ()
    forced: str | None = None
    least: int | None = None

    def bound(self, most: int) -> int:
        """Return the number up to which these rows are counted. `most`: the limit for all rows."""
        return most if self.least is None else min(most, self.least)


def capped(table: sa.Table, rows: Indexed, limit: int | sa.BindParameter[int]) -> sa.ScalarSelect[Any]:
    """Return a subquery of the number of rows, at most `limit`."""
    return sa.select(sa.func.count()).select_from(_rows(table, rows).limit(limit).subquery()).scalar_subquery()


def _rows(table: sa.Table, rows: Indexed) -> sa.Select[int]:
    one: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
    found = sa.select(one.label("one")).select_from(table).where(*rows.conditions).order_by(*rows.order)
    if rows.forced is not None:
        for dialect in ("mysql", "mariadb"):
            found = found.with_hint(table, f"FORCE INDEX ({rows.forced})", dialect)
    return found


class CappedCounts:
    """One statement that counts several kinds of rows.

    Keep the object: building the statement takes longer than executing the statement.
    """

    def __init__(self, table: sa.Table, wanted: Mapping[str, Sequence[Indexed]]) -> None:
        """`wanted`: for each kind, groups of rows whose numbers are added. The groups must not overlap."""
        self._names = tuple(wanted)
        self._wanted = {name: every for name, every in wanted.items() if every}
        columns = [_sum(table, every, place) for place, every in enumerate(self._wanted.values())]
        self._statement = Statement(sa.select(*columns)) if columns else None

    def read(
        self, connection: sa.Connection, most: int, values: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Counted]:
        """Return the number of rows of each kind, up to `most`. `values`: parameters of the conditions."""
        bounds = [every[0].bound(most) for every in self._wanted.values()]
        found: Sequence[int] = ()
        if self._statement is not None:
            limits = {f"{_LIMIT}_{place}": bound + 1 for place, bound in enumerate(bounds)}
            skipped = {f"{_SKIPPED}_{place}": bound for place, bound in enumerate(bounds)}
            (found,) = self._statement.rows(connection, {**values, **limits, **skipped})
        counted = dict(zip(self._wanted, map(Counted.up_to, bounds, found), strict=True))
        return {name: counted.get(name, Counted(0)) for name in self._names}


def _sum(table: sa.Table, groups: Sequence[Indexed], place: int) -> sa.ColumnElement[int]:
    """Return the number of rows in `groups`. If one of them has `limit` rows, return at least `limit`.

    The statement first looks for row number `limit` of each group. If there is such a row, the statement counts
    nothing. This test is faster than counting, because MariaDB copies the rows that it counts up to a limit.
    """
    limit = sa.bindparam(f"{_LIMIT}_{place}", type_=sa.Integer, required=True)
    skipped = sa.bindparam(f"{_SKIPPED}_{place}", type_=sa.Integer, required=True)
    beyond = [_rows(table, group).limit(1).offset(skipped).scalar_subquery() for group in groups]
    counts: list[sa.ColumnElement[int]] = [capped(table, group, limit) for group in groups]
    # not one CASE in another: SQLite refuses deep nesting
    number = sa.case(*((each.is_not(None), limit) for each in beyond), else_=reduce(operator.add, counts))
    return number.label(f"count_{place}")
