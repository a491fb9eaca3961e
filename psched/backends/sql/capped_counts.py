"""Counts rows up to a bound, so that no count reads a whole table or a whole backlog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import sqlalchemy as sa

from psched.store.reads import Counted


class Indexed(NamedTuple):
    """Rows that meet `conditions`, found by an index that begins with the columns `order`.

    Without the order PostgreSQL may read the table from its beginning, where all rows may be others. `forced`: the
    index that MariaDB and MySQL are told to use.
    """

    conditions: Sequence[sa.ColumnElement[bool]] = ()
    order: Sequence[sa.ColumnElement[Any]] = ()
    forced: str | None = None


def capped(table: sa.Table, rows: Indexed, most: int) -> sa.ScalarSelect[Any]:
    """Return the subquery of the number of rows, at most `most` + 1."""
    one: sa.ColumnElement[int] = sa.literal_column("1", sa.Integer)
    some = sa.select(one.label("one")).select_from(table).where(*rows.conditions).order_by(*rows.order).limit(most + 1)
    if rows.forced is not None:
        for dialect in ("mysql", "mariadb"):
            some = some.with_hint(table, f"FORCE INDEX ({rows.forced})", dialect)
    return sa.select(sa.func.count()).select_from(some.subquery()).scalar_subquery()


def counts(
    connection: sa.Connection,
    table: sa.Table,
    wanted: Mapping[str, Sequence[Indexed]],
    most: int,
    values: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Counted]:
    """Return how many rows there are of each kind, up to `most`, by one statement with the parameters `values`.

    A value of `wanted` is a sequence of alternatives, of which no row meets two.
    """
    named = [(name, capped(table, rows, most)) for name, every in wanted.items() for rows in every]
    found = dict.fromkeys(wanted, 0)
    if named:
        columns = [subquery.label(f"count_{place}") for place, (_, subquery) in enumerate(named)]
        for (name, _), number in zip(named, connection.execute(sa.select(*columns), values).one(), strict=True):
            found[name] += number
    return {name: Counted.up_to(most, number) for name, number in found.items()}
