"""Queries for due times. An idle poller sleeps until the next due time.

A queue's index is ordered by band before due time, so the first due row of each band must be found. Some databases
cannot skip from band to band in an index. So a query names the bands that had rows last time, reads the first row of
each, and looks for new bands between them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cache, reduce
from typing import Any

import sqlalchemy as sa

from psched.backends.common.rows import LAST_SECOND
from psched.backends.rdb.schema import ABOVE_ALL_BANDS, USER_BAND, highest_band, of_type, wanted_types
from psched.backends.sql.bulk_statements import column_as_parameter, rows_in
from psched.backends.sql.compiled_statements import Statement, cached_on_class
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import Dialect, now_ms

_AT_ONCE = 128
"""The maximum number of SELECTs in a UNION. SQLite allows 500."""
_LAST_MS = LAST_SECOND * 1000


class DueTimes:
    """The due times of one table. Safe to use from several threads."""

    def __init__(self, database: Database, table: sa.Table) -> None:
        self._database = database
        self._bands: tuple[int, ...] = ()
        """The bands that had rows at the last query, highest first; empty for schedules."""
        self._due_types: frozenset[Any] | None = None
        """The types of the due rows that the last query by type found; None before the first query."""
        self._write_statements(type(database.dialect), table)

    @cached_on_class
    def _write_statements(self, dialect: type[Dialect], table: sa.Table) -> None:
        self._dialect = dialect
        self._table = table
        self._of_bands = cache(self._build)
        self._by_type = Statement(_first_of_each_type(dialect, table))

    def next_due(self, types: Collection[str] | None) -> float | None:
        """Return the seconds until a row is due, or None if there is no row.

        `types`: only rows of these types; None: all.
        """
        if types is not None and not types:
            return None
        rows = self._database.run(lambda connection, _: self._in_each_band(connection, types))
        if types:
            self._due_types = frozenset(row[2] for row in rows) - {None}
        return _wait([row[-1] for row in rows], rows[0][0])

    def others_may_be_due(self, types: Collection[str]) -> bool:
        """Return whether the last query by type found due rows of other types. True before the first query.

        A query sees only the first due row of each band. So it may miss a row of another type until the worker has
        taken the earlier rows of its own types.
        """
        return self._due_types is None or not self._due_types <= frozenset(types)

    def by_type(self) -> Mapping[str, float]:
        """Return, for each type, the seconds until a row is due."""
        rows = self._database.run(lambda connection, _: self._by_type.rows(connection, {}))
        waits: dict[str, float] = {}
        for type_, due, now in rows:
            if isinstance(type_, str) and (wait := _wait([due], now)) is not None:  # SQLite columns may hold any value
                waits[type_] = min(wait, waits.get(type_, wait))
        self._due_types = frozenset(type_ for type_, wait in waits.items() if wait == 0)
        return waits

    def types_in_order(self) -> list[str]:
        """Return the types of rows that have a due time, the type with the earliest due time first."""
        earliest: dict[str, int] = {}
        for type_, due, _ in self._database.run(lambda connection, _: self._by_type.rows(connection, {})):
            if isinstance(type_, str) and isinstance(due, int):  # SQLite columns may hold any value
                earliest[type_] = min(due, earliest.get(type_, due))
        return sorted(earliest, key=lambda name: (earliest[name], name))

    def bands(self, connection: sa.Connection) -> tuple[int, ...]:
        """Return the bands that have rows, the highest first."""
        rows = self._in_each_band(connection, None)
        return tuple(sorted({row[1] for row in rows} - {None}, reverse=True))

    def never_due(self, most: int) -> list[str]:
        """Return up to `most` keys of rows that can never be due. Another program wrote their due times or bands."""
        c = self._table.c
        too_late = c.due > _LAST_MS  # on SQLite, values that are not numbers sort after all numbers

        def work(connection: sa.Connection, uncertain: bool) -> list[str]:
            conditions = [too_late]
            if "band" in c:
                conditions = [c.band > USER_BAND + USER_BAND // 2, c.band < -USER_BAND // 2]
                for band in self.bands(connection):
                    conditions += [sa.and_(c.band == band, c.due.is_(None)), sa.and_(c.band == band, too_late)]
            parts = [sa.select(c.key).where(each).order_by(c.due, c.key).limit(most) for each in conditions]
            if not self._database.dialect.limits_in_unions:
                parts = [sa.select(*part.subquery().c) for part in parts]
            keys: list[str] = []
            for start in range(0, len(parts), _AT_ONCE):
                first, *others = parts[start : start + _AT_ONCE]
                keys += connection.execute(first.union_all(*others) if others else first).scalars()
            return keys[:most]

        return self._database.run(work)

    def _in_each_band(self, connection: sa.Connection, types: Collection[str] | None) -> Sequence[Sequence[Any]]:
        """Execute the statement of `_build`, and once more if it finds a new band. Return its rows."""
        while True:
            bands = self._bands
            known = (*bands, ABOVE_ALL_BANDS)
            parts = [known[start : start + _AT_ONCE] for start in range(0, len(known), _AT_ONCE)]
            rows = [row for part in parts for row in self._in_bands(connection, part, types)]
            found = {row[1] for row in rows} - {None}
            is_complete = found <= set(bands)
            self._bands = tuple(sorted(found if is_complete else found.union(bands), reverse=True))
            if is_complete:
                return rows

    def _in_bands(
        self, connection: sa.Connection, bands: Sequence[int], types: Collection[str] | None
    ) -> Sequence[Sequence[Any]]:
        count = 1 << (len(bands) - 1).bit_length()
        padded = (*bands, *[ABOVE_ALL_BANDS] * (count - len(bands)))
        values: dict[str, Any] = {f"band_{place}": band for place, band in enumerate(padded)}
        if types is not None:
            known = [band for band in bands if band != ABOVE_ALL_BANDS]
            values |= {"types": column_as_parameter(types), "bands": column_as_parameter(known)}
        return self._of_bands(count, types is not None).rows(connection, values)

    def _build(self, count: int, of_types: bool) -> Statement:
        """Return a statement that returns one row for each of the bands :band_0, :band_1, and so on.

        The columns of a row are:

        - the clock
        - the next lower band that has rows
        - the due time of the first row in the band; with `of_types` the type of that row, if the row is due
        - only with `of_types`: the earliest due time of :types in :bands, in the first row of the answer; NULL in the
          other rows.
        """
        c = self._table.c
        rows = []
        for place in range(count):
            below: sa.ColumnElement[Any] = sa.null()
            in_band: list[sa.ColumnElement[bool]] = []
            if "band" in c:
                band = sa.bindparam(f"band_{place}", type_=sa.Integer)
                below = highest_band(self._table, c.band < band)
                in_band = [c.band == band]
            if of_types:
                first_type = self._first(c.type, *in_band, c.due <= now_ms()).scalar_subquery()
                rows.append(sa.select(now_ms(), below, first_type, sa.null() if place else self._earliest_of_types()))
            else:
                rows.append(sa.select(now_ms(), below, self._first(c.due, *in_band).scalar_subquery()))
        return Statement(sa.union_all(*rows))

    def _earliest_of_types(self) -> sa.ColumnElement[Any]:
        c = self._table.c
        types = wanted_types(self._table)
        wanted: list[sa.FromClause] = [types]
        conditions: list[sa.ColumnElement[bool]] = [c.due.is_not(None)]
        if "band" in c:
            bands = rows_in("bands", [sa.column("wanted_band", c.band.type)]).alias("wanted_bands")
            wanted.append(bands)
            conditions.append(c.band == bands.c.wanted_band)
        due = sa.select(c.due).where(*conditions).limit(1)
        first = of_type(self._dialect, due, self._table, types.c.wanted_type).correlate(*wanted).scalar_subquery()
        every = reduce(lambda left, right: left.join(right, sa.true()), wanted)
        return sa.select(sa.func.min(first)).select_from(every).scalar_subquery()

    def _first(self, value: sa.ColumnElement[Any], *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
        """Return a SELECT of `value` from the row with the earliest due time.

        With min() PostgreSQL would read all rows.
        """
        c = self._table.c
        return sa.select(value).where(*conditions, c.due.is_not(None)).order_by(c.due, c.key).limit(1)


def _first_of_each_type(dialect: type[Dialect], table: sa.Table) -> sa.Select[Any]:
    """Return a SELECT of the type and due time of the first row of each type in each band, and of the clock.

    If GROUP BY cannot skip from group to group in an index, the SELECT is recursive. Each step finds the first row of
    the next band of the same type, or else of the next type.
    """
    names = [name for name in ("type", "band") if name in table.c]
    if dialect.groups_by_index:
        groups = [table.c[name] for name in names]
        first_rows = sa.select(*groups, sa.func.min(table.c.due).label("due")).group_by(*groups).subquery()
        return sa.select(first_rows.c.type, first_rows.c.due, now_ms())

    def first(rows: sa.FromClause, *conditions: sa.ColumnElement[bool]) -> sa.Select[Any]:
        groups = [rows.c[name] for name in names]
        in_index = [rows.c.band.is_not(None)] if "band" in rows.c else []
        wanted = sa.select(rows.c.key, *groups, rows.c.due).where(*in_index, *conditions)
        return wanted.order_by(*groups, rows.c.due, rows.c.key).limit(1)

    found = sa.select(first(table).subquery("earliest")).cte("first_rows", recursive=True)
    next_keys = []
    # With (type, band) > (…, …) SQLite would read all rows of a type to find the next band.
    for place in reversed(range(len(names))):
        further = table.alias(f"further_{place}")
        same = [further.c[name] == found.c[name] for name in names[:place]]
        next_row = first(further, *same, further.c[names[place]] > found.c[names[place]])
        next_keys.append(next_row.with_only_columns(further.c.key).correlate(found).scalar_subquery())
    row = table.alias("row")
    key = sa.select(sa.func.coalesce(*next_keys, sa.null()))  # SQLite's coalesce needs at least two arguments
    step = sa.select(row.c.key, *(row.c[name] for name in names), row.c.due)
    found = found.union_all(step.select_from(found.join(row, dialect.among(row.c.key, key))))
    return sa.select(found.c.type, found.c.due, now_ms())


def _wait(dues: Iterable[Any], now: int) -> float | None:
    """Return the seconds until the earliest of these due times.

    Ignores values that are not numbers. SQLite may hold such values.
    """
    earliest = min((due for due in dues if isinstance(due, int | float)), default=None)
    return None if earliest is None else max(0.0, (earliest - now) / 1000)
