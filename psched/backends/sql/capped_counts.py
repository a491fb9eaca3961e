"""Counts rows up to a bound, so that no count reads a whole table or a whole backlog."""

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

    Without the order PostgreSQL may read the table from its beginning, where all rows may be others. `forced`: the
    index that MariaDB and MySQL are told to use. `least`: a bound that may be below that of the other rows.
    """

    conditions: Sequence[sa.ColumnElement[bool]] = ()
    order: Sequence[sa.ColumnElement[Any]] = ()
    forced: str | None = None
    least: int | None = None

    def bound(self, most: int) -> int:
        """Return the number up to which these rows are counted."""
        return most if self.least is None else min(most, self.least)


def capped(table: sa.Table, rows: Indexed, limit: int | sa.BindParameter[int]) -> sa.ScalarSelect[Any]:
    """Return the subquery of the number of rows, at most `limit`."""
    one: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
    some = sa.select(one.label("one")).select_from(table).where(*rows.conditions).order_by(*rows.order).limit(limit)
    if rows.forced is not None:
        for dialect in ("mysql", "mariadb"):
            some = some.with_hint(table, f"FORCE INDEX ({rows.forced})", dialect)
    return sa.select(sa.func.count()).select_from(some.subquery()).scalar_subquery()


class CappedCounts:
    """One statement that counts several kinds of rows. Building it takes longer than the database needs to count."""

    def __init__(self, table: sa.Table, wanted: Mapping[str, Sequence[Indexed]]) -> None:
        """Each value of `wanted` is a sequence of alternatives with the same bound; no row meets two of them."""
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
        """Return how many rows there are of each kind, up to `most`. `values`: parameters of the conditions."""
        found = dict.fromkeys(self._wanted, 0)
        bounds = {name: every[0].bound(most) for name, every in self._wanted.items() if every}
        if self._statement is not None:
            limits = {f"{_LIMIT}_{place}": bounds[name] + 1 for place, (name, _) in enumerate(self._named)}
            (numbers,) = self._statement.rows(connection, {**values, **limits})
            for (name, _), number in zip(self._named, numbers, strict=True):
                found[name] += number
        return {name: Counted.up_to(bounds.get(name, most), number) for name, number in found.items()}
