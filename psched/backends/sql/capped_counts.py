"""Counts rows up to a limit, so that no count reads a whole table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa

from psched.backends.sql.compiled_statements import Statement
from psched.store.counts import Counted

_LIMIT = "limit_of_count"


class Indexed(NamedTuple):
    """Rows that meet `conditions`, found by an index that begins with the columns `order`.

    Without `order` PostgreSQL may read the table from its beginning, although few rows there meet the conditions.
    `forced`: the index that MariaDB and MySQL must use. `least`: a limit for these rows alone, if it is lower.
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
    one: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
    some = sa.select(one.label("one")).select_from(table).where(*rows.conditions).order_by(*rows.order).limit(limit)
    if rows.forced is not None:
        for dialect in ("mysql", "mariadb"):
            some = some.with_hint(table, f"FORCE INDEX ({rows.forced})", dialect)
    return sa.select(sa.func.count()).select_from(some.subquery()).scalar_subquery()


class CappedCounts:
    """One statement that counts several kinds of rows. Keep it: it takes longer to build than to execute."""

    def __init__(self, table: sa.Table, wanted: Mapping[str, Sequence[Indexed]]) -> None:
        """`wanted`: for each kind, groups of rows whose numbers are added. No row may be in two groups."""
        self._wanted = wanted
        self._named = [(name, rows) for name, every in wanted.items() for rows in every]
        limits = [
            sa.bindparam(f"{_LIMIT}_{place}", type_=sa.Integer, required=True) for place in range(len(self._named))
        ]
        columns = [
            capped(table, rows, limit).label(f"count_{place}")
            for place, ((_, rows), limit) in enumerate(zip(self._named, limits, strict=True))
        ]
        self._statement = Statement(sa.select(*columns)) if columns else None

    def read(
        self, connection: sa.Connection, most: int, values: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Counted]:
        """Return the number of rows of each kind, up to `most`. `values`: parameters of the conditions."""
        found = dict.fromkeys(self._wanted, 0)
        bounds = {name: every[0].bound(most) for name, every in self._wanted.items() if every}
        if self._statement is not None:
            limits = {f"{_LIMIT}_{place}": bounds[name] + 1 for place, (name, _) in enumerate(self._named)}
            (numbers,) = self._statement.rows(connection, {**values, **limits})
            for (name, _), number in zip(self._named, numbers, strict=True):
                found[name] += number
        return {name: Counted.up_to(bounds.get(name, most), number) for name, number in found.items()}
