"""When something is due next: what whoever finds nothing to do sleeps by. Used in children and clients.

Of schedules the earliest row is the first of an index. A queue's rows are in order within each band only, so the first
rows of all bands are compared; one statement looks at those of the bands that are known, and for others in between.
However many types are asked for, they are told in one parameter: databases limit the columns and terms of a statement.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from sqlalchemy import (
    ColumnElement,
    Connection,
    FromClause,
    Select,
    Table,
    and_,
    bindparam,
    column,
    func,
    literal_column,
    select,
)

from psched.backends.common.row_reader import LAST_SECOND
from psched.backends.rdb.claiming import types_parameter
from psched.backends.rdb.schema import USER_BAND
from psched.backends.sql.base import Dialect, now_ms
from psched.backends.sql.bulk_statement import CompiledBulkUpdate, as_parameter, rows_in
from psched.backends.sql.database import Database
from psched.backends.sql.once import cached_on_class

_LAST_MS = LAST_SECOND * 1000
_ABOVE_ALL = 2 * USER_BAND
_BELOW_ALL = -2 * USER_BAND


@dataclass(frozen=True, slots=True)
class Look:
    """What a look at the earliest rows found.

    `wait`: the seconds until something is due, 0.0 when it is; None when nothing is stored. `first_types`: the types
    of the rows that are due and the first in their order, whatever types were asked for; none unless some were.
    """

    wait: float | None
    first_types: frozenset[Any] = frozenset()


class DueTimes(Protocol):
    """Knows how long nothing will be due in one table. Safe to use from several threads."""

    def look(self, types: Collection[str] | None) -> Look:
        """Find out when something is due, of some types only or of any."""
        ...

    def never_due(self, most: int) -> list[str]:
        """Return keys of rows that psched never wrote so: they will never be due, or not in this calendar."""
        ...


class OneOrder:
    """Looks at the first row of an index on due, or with types on type and due."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._look_at(table)

    @cached_on_class
    def _look_at(self, table: Table) -> None:
        self._table = table
        first = select(table.c.due).order_by(table.c.due, table.c.key).limit(1).scalar_subquery()
        self._of_any = CompiledBulkUpdate(select(first.label("due"), now_ms().label("now")))
        self._of_types = CompiledBulkUpdate(self._statement())

    def look(self, types: Collection[str] | None) -> Look:
        """Find out when something is due."""
        if types is None:
            ((due, now),) = self._database.run_direct(lambda connection, _: self._of_any.rows(connection, {}))
            return Look(_wait([due], now))
        if not types:
            return Look(None)
        values = {"types": types_parameter(tuple(types))}
        ((due, now, first_type),) = self._database.run_direct(
            lambda connection, _: self._of_types.rows(connection, values)
        )
        return Look(_wait([due], now), _types([first_type]))

    def never_due(self, most: int) -> list[str]:
        """Return keys of rows due after the last year; on SQLite also of those whose due time is no number."""
        c = self._table.c
        beyond = select(c.key).where(c.due > _LAST_MS).order_by(c.due, c.key).limit(most)
        return list(self._database.run(lambda connection, _: connection.execute(beyond).scalars().all()))

    def _statement(self) -> Select[Any]:
        """Return the SELECT of the earliest due time of :types, of the clock, and of the type that is due first."""
        c = self._table.c
        given = rows_in("types", [column("given_type", c.type.type)])
        of_type = _by_type(self._table, select(c.due).where(c.type == given.c.given_type))
        of_type = of_type.order_by(c.due, c.key).limit(1)
        earliest = select(func.min(of_type.correlate(given).scalar_subquery())).select_from(given)
        first = select(c.type).where(c.due <= now_ms()).order_by(c.due, c.key).limit(1)
        found = [("due", earliest.scalar_subquery()), ("now", now_ms()), ("first_type", first.scalar_subquery())]
        return select(*(each.label(name) for name, each in found))


class ManyBands:
    """Looks at the first row of each band by an index on band and due, or with types on type, band and due.

    Databases do not jump from band to band by themselves, not all of them; so the bands that had rows last time are
    named in the statement, which also looks at the gaps between them. Only a new band costs a second statement.
    """

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._known: tuple[int, ...] = ()
        self._look_at(table)

    @cached_on_class
    def _look_at(self, table: Table) -> None:
        self._table = table
        self._by_shape: dict[tuple[int, bool], CompiledBulkUpdate] = {}

    def look(self, types: Collection[str] | None) -> Look:
        """Find out when something is due."""
        if types is not None and not types:
            return Look(None)
        while True:
            bands = self._known
            width = 1 << (len(bands) - 1).bit_length() if bands else 0
            found = self._columns(width, bands, types)
            now, heads, gaps = found[0], found[1 : width + 1], found[width + 1 : 2 * width + 2]
            of_types = found[2 * width + 2 :]
            new = [band for band in gaps if band is not None]
            live = [band for band, head in zip(bands, heads, strict=False) if head is not None]
            self._known = tuple(sorted([*live, *new]))
            if not new:
                break
        return Look(_wait(heads if types is None else of_types[:1], now), _types(of_types[1:]))

    def never_due(self, most: int) -> list[str]:
        """Return keys of rows in no band that is looked at; in each band, of those that are never due."""
        c = self._table.c
        lowest, highest = -USER_BAND // 2, USER_BAND + USER_BAND // 2

        def work(connection: Connection, uncertain: bool) -> list[str]:
            found: list[str] = []

            def look_at(*conditions: ColumnElement[bool]) -> None:
                of_some = select(c.key).where(*conditions).order_by(c.band, c.due, c.key).limit(most - len(found))
                found.extend(connection.execute(of_some).scalars())

            band = connection.execute(select(func.max(c.band)).where(c.band <= highest)).scalar()
            look_at(c.band > highest)
            look_at(c.band < lowest)
            while band is not None and len(found) < most:
                look_at(c.band == band, c.due.is_(None))
                look_at(c.band == band, c.due > _LAST_MS)
                band = connection.execute(select(func.max(c.band)).where(c.band < band)).scalar()
            return found

        return self._database.run(work)

    def _columns(self, width: int, bands: Sequence[int], types: Collection[str] | None) -> Sequence[Any]:
        """Return the only row of `_statement`; where fewer bands are known, one that no row is in comes repeatedly."""
        shape = (width, types is not None)
        if shape not in self._by_shape:
            self._by_shape[shape] = CompiledBulkUpdate(self._statement(*shape))
        statement = self._by_shape[shape]
        padded = (_BELOW_ALL, *bands, *[_ABOVE_ALL] * (width - len(bands) + 1))
        values: dict[str, Any] = {f"band_{place}": band for place, band in enumerate(padded, start=-1)}
        if types is not None:
            values["types"] = types_parameter(tuple(types))
            values["bands"] = as_parameter([{"given_band": band} for band in bands], ["given_band"])
        (row,) = self._database.run_direct(lambda connection, _: statement.rows(connection, values))
        return row

    def _statement(self, width: int, typed: bool) -> Select[Any]:
        """Return the SELECT of the clock, of so many bands' first due times, and of the bands in the gaps.

        With types also of the earliest due time of :types in :bands, and of the type that is due first in each band.
        """
        c = self._table.c
        bounds: list[ColumnElement[int]] = [bindparam(f"band_{place}") for place in range(-1, width + 1)]
        backwards = (c.band.desc(), c.due.desc(), c.key.desc())
        columns: list[ColumnElement[Any]] = [now_ms()]
        columns += [self._first(select(c.due).where(c.band == bound), c.due, c.key) for bound in bounds[1:-1]]
        columns += [
            self._first(select(c.band).where(c.band > low, c.band < high), *backwards) for low, high in pairwise(bounds)
        ]
        if typed:
            due = select(c.type).where(c.due <= now_ms())
            columns.append(self._earliest_of_types())
            columns += [self._first(due.where(c.band == bound), c.due, c.key) for bound in bounds[1:-1]]
        return select(*(each.label(f"column_{place}") for place, each in enumerate(columns)))

    def _earliest_of_types(self) -> ColumnElement[Any]:
        c = self._table.c
        types = rows_in("types", [column("given_type", c.type.type)])
        bands = rows_in("bands", [column("given_band", c.band.type)]).alias("given_bands")
        of_both = select(c.due).where(c.type == types.c.given_type, c.band == bands.c.given_band)
        head = self._first(_by_type(self._table, of_both), c.due, c.key, outer=(types, bands))
        return select(func.min(head)).select_from(types.join(bands, literal_column("1 = 1"))).scalar_subquery()

    def _first(
        self, wanted: Select[Any], *order: ColumnElement[Any], outer: Sequence[FromClause] = ()
    ) -> ColumnElement[Any]:
        """Return what the first row has of those that are ever due. PostgreSQL would read all of them for a minimum.

        `outer`: what its conditions name of the statement around it.
        """
        limited = wanted.where(self._table.c.due.is_not(None)).order_by(*order).limit(1)
        return (limited.correlate(*outer) if outer else limited).scalar_subquery()


class TypeHeads:
    """Looks at the first row of each type, of a queue's in each band, by an index that begins with type (and band).

    Where a database does not skip from group to group by itself, each step looks for the first row behind a group.
    """

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._write_statement(type(database.dialect), table)

    @cached_on_class
    def _write_statement(self, dialect: type[Dialect], table: Table) -> None:
        statement = _grouped(table) if dialect.groups_by_index else _stepping(dialect, table)
        self._statement = CompiledBulkUpdate(statement)

    def due_by_type(self) -> Mapping[str, float]:
        """Return the seconds until something of each type is due, 0.0 when it is."""
        rows = self._database.run_direct(lambda connection, _: self._statement.rows(connection, {}))
        heads: dict[str, float] = {}
        for type_, due, now in rows:
            if isinstance(type_, str) and isinstance(due, int | float):  # SQLite may hold anything there
                wait = max(0.0, (due - now) / 1000)
                heads[type_] = min(wait, heads.get(type_, wait))
        return heads


def _groups(rows: FromClause) -> list[ColumnElement[Any]]:
    """Return the columns by which rows are told apart before their due times are compared."""
    return [rows.c[name] for name in ("type", "band") if name in rows.c]


def _live(rows: FromClause) -> list[ColumnElement[bool]]:
    """Return the condition that a row is in the index, which has no retired tasks."""
    return [rows.c.band.is_not(None)] if "band" in rows.c else []


def _grouped(table: Table) -> Select[Any]:
    """Return the SELECT of each type with the earliest due time in each of its bands, and of the clock."""
    groups = _groups(table)
    heads = select(*groups, func.min(table.c.due).label("due")).group_by(*groups).subquery()
    return select(heads.c.type, heads.c.due, now_ms())


def _stepping(dialect: type[Dialect], table: Table) -> Select[Any]:
    """Return the same SELECT as steps from one group's first row to the next one's."""

    def ordered(rows: FromClause) -> Select[Any]:
        wanted = select(rows.c.key, *_groups(rows), rows.c.due).where(*_live(rows))
        return wanted.order_by(*_groups(rows), rows.c.due, rows.c.key).limit(1)

    heads = select(ordered(table).subquery("earliest")).cte("heads", recursive=True)
    row = table.alias("row")
    # SQLite reads all rows of a type to find the next band by a comparison of pairs.
    further = [table.alias("further")]
    beyond = [further[0].c.type > heads.c.type]
    if "band" in table.c:
        further.insert(0, table.alias("same"))
        beyond.insert(0, and_(further[0].c.type == heads.c.type, further[0].c.band > heads.c.band))
    found = zip(further, beyond, strict=True)
    keys = [ordered(rows).with_only_columns(rows.c.key).where(where).correlate(heads) for rows, where in found]
    key = keys[0] if len(keys) == 1 else select(func.coalesce(*(each.scalar_subquery() for each in keys)))
    step = select(row.c.key, *_groups(row), row.c.due).select_from(heads.join(row, dialect.among(row.c.key, key)))
    heads = heads.union_all(step)
    return select(heads.c.type, heads.c.due, now_ms())


def _by_type(table: Table, wanted: Select[Any]) -> Select[Any]:
    """Return `wanted` so that MariaDB and MySQL use the index that begins with type, which is told by another table.

    They would read a whole band for a type without rows.
    """
    return wanted.with_hint(table, f"FORCE INDEX ({table.name}_type_due)", "mysql")


def _wait(dues: Iterable[Any], now: int) -> float | None:
    """Return the seconds until the earliest of these due times; SQLite may hold anything there."""
    earliest = min((due for due in dues if isinstance(due, int | float)), default=None)
    return None if earliest is None else max(0.0, (earliest - now) / 1000)


def _types(found: Iterable[Any]) -> frozenset[Any]:
    return frozenset(type_ for type_ in found if type_ is not None)
