"""Query for the next due time; an idle poller sleeps until then.

The earliest schedule is the first row of an index. An index has a queue's rows in order within each band only, so the
first rows of all bands are compared; one statement reads them, and looks for new bands. The wanted types are one
parameter, since databases limit the columns and terms of a statement.
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
from psched.backends.sql.bulk_statement import as_parameter, rows_in
from psched.backends.sql.database import Database
from psched.backends.sql.once import cached_on_class
from psched.backends.sql.statement import CompiledStatement

_LAST_MS = LAST_SECOND * 1000
_ABOVE_ALL = 2 * USER_BAND
_BELOW_ALL = -2 * USER_BAND


@dataclass(frozen=True, slots=True)
class NextDue:
    """The answer to a query for the next due time.

    `wait`: seconds until a row is due, 0.0 when one is due; None without rows. `first_types`: with `types`, the types
    of the first due rows, wanted or not; else empty.
    """

    wait: float | None
    first_types: frozenset[Any] = frozenset()


class DueTimes(Protocol):
    """The due times of one table. Safe to use from several threads."""

    def next_due(self, types: Collection[str] | None) -> NextDue:
        """Return when the next row is due, of `types` only, or of any type."""
        ...

    def never_due(self, most: int) -> list[str]:
        """Return up to `most` keys of rows that can never be due: another program wrote their due times or bands."""
        ...


class ScheduleDueTimes:
    """Reads the first row of an index on due, or with types of an index on type and due."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._write_statements(table)

    @cached_on_class
    def _write_statements(self, table: Table) -> None:
        self._table = table
        first = select(table.c.due).order_by(table.c.due, table.c.key).limit(1).scalar_subquery()
        self._of_any = CompiledStatement(select(first.label("due"), now_ms().label("now")))
        self._of_types = CompiledStatement(self._statement())

    def next_due(self, types: Collection[str] | None) -> NextDue:
        if types is None:
            ((due, now),) = self._database.run_direct(lambda connection, _: self._of_any.rows(connection, {}))
            return NextDue(_wait([due], now))
        if not types:
            return NextDue(None)
        values = {"types": types_parameter(tuple(types))}
        ((due, now, first_type),) = self._database.run_direct(
            lambda connection, _: self._of_types.rows(connection, values)
        )
        return NextDue(_wait([due], now), _types([first_type]))

    def never_due(self, most: int) -> list[str]:
        """Return keys of rows due after the year 9999; SQLite sorts due times that are not numbers there, too."""
        c = self._table.c
        beyond = select(c.key).where(c.due > _LAST_MS).order_by(c.due, c.key).limit(most)
        return list(self._database.run(lambda connection, _: connection.execute(beyond).scalars().all()))

    def _statement(self) -> Select[Any]:
        """Return the SELECT of the earliest due time of :types, the clock, and the type of the first due row."""
        c = self._table.c
        wanted = rows_in("types", [column("wanted_type", c.type.type)])
        of_type = _by_type(self._table, select(c.due).where(c.type == wanted.c.wanted_type))
        of_type = of_type.order_by(c.due, c.key).limit(1)
        earliest = select(func.min(of_type.correlate(wanted).scalar_subquery())).select_from(wanted)
        first = select(c.type).where(c.due <= now_ms()).order_by(c.due, c.key).limit(1)
        found = [("due", earliest.scalar_subquery()), ("now", now_ms()), ("first_type", first.scalar_subquery())]
        return select(*(each.label(name) for name, each in found))


class QueueDueTimes:
    """Reads the first row of each band by an index on band and due, or with types on type, band and due.

    Not all databases skip from band to band in an index. So the statement names the bands that had rows last time, and
    looks for new bands between them; only a new band costs a second statement.
    """

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._known: tuple[int, ...] = ()
        self._write_statements(table)

    @cached_on_class
    def _write_statements(self, table: Table) -> None:
        self._table = table
        self._by_shape: dict[tuple[int, bool], CompiledStatement] = {}

    def next_due(self, types: Collection[str] | None) -> NextDue:
        if types is not None and not types:
            return NextDue(None)
        while True:
            bands = self._known
            width = 1 << (len(bands) - 1).bit_length() if bands else 0
            found = self._columns(width, bands, types)
            now, first_dues, gaps = found[0], found[1 : width + 1], found[width + 1 : 2 * width + 2]
            of_types = found[2 * width + 2 :]
            new = [band for band in gaps if band is not None]
            live = [band for band, due in zip(bands, first_dues, strict=False) if due is not None]
            self._known = tuple(sorted([*live, *new]))
            if not new:
                break
        return NextDue(_wait(first_dues if types is None else of_types[:1], now), _types(of_types[1:]))

    def never_due(self, most: int) -> list[str]:
        """Return keys of rows outside of all possible bands, and in each band of rows that are never due."""
        c = self._table.c
        lowest, highest = -USER_BAND // 2, USER_BAND + USER_BAND // 2

        def work(connection: Connection, uncertain: bool) -> list[str]:
            found: list[str] = []

            def add_keys(*conditions: ColumnElement[bool]) -> None:
                of_some = select(c.key).where(*conditions).order_by(c.band, c.due, c.key).limit(most - len(found))
                found.extend(connection.execute(of_some).scalars())

            band = connection.execute(select(func.max(c.band)).where(c.band <= highest)).scalar()
            add_keys(c.band > highest)
            add_keys(c.band < lowest)
            while band is not None and len(found) < most:
                add_keys(c.band == band, c.due.is_(None))
                add_keys(c.band == band, c.due > _LAST_MS)
                band = connection.execute(select(func.max(c.band)).where(c.band < band)).scalar()
            return found

        return self._database.run(work)

    def _columns(self, width: int, bands: Sequence[int], types: Collection[str] | None) -> Sequence[Any]:
        """Return the row of `_statement`; with fewer than `width` bands, an impossible band is repeated."""
        shape = (width, types is not None)
        if shape not in self._by_shape:
            self._by_shape[shape] = CompiledStatement(self._statement(*shape))
        statement = self._by_shape[shape]
        padded = (_BELOW_ALL, *bands, *[_ABOVE_ALL] * (width - len(bands) + 1))
        values: dict[str, Any] = {f"band_{place}": band for place, band in enumerate(padded, start=-1)}
        if types is not None:
            values["types"] = types_parameter(tuple(types))
            values["bands"] = as_parameter([{"wanted_band": band} for band in bands], ["wanted_band"])
        (row,) = self._database.run_direct(lambda connection, _: statement.rows(connection, values))
        return row

    def _statement(self, width: int, typed: bool) -> Select[Any]:
        """Return the SELECT of the clock, the first due times of `width` bands, and a band in each gap between them.

        If `typed` also of the earliest due time of :types in :bands, and the type of the first due row in each band.
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
        types = rows_in("types", [column("wanted_type", c.type.type)])
        bands = rows_in("bands", [column("wanted_band", c.band.type)]).alias("wanted_bands")
        of_both = select(c.due).where(c.type == types.c.wanted_type, c.band == bands.c.wanted_band)
        first = self._first(_by_type(self._table, of_both), c.due, c.key, outer=(types, bands))
        return select(func.min(first)).select_from(types.join(bands, literal_column("1 = 1"))).scalar_subquery()

    def _first(
        self, wanted: Select[Any], *order: ColumnElement[Any], outer: Sequence[FromClause] = ()
    ) -> ColumnElement[Any]:
        """Return the value of `wanted` in the first row that is not retired. For min() PostgreSQL would read all rows.

        `outer`: the tables of the outer statement that `wanted` refers to.
        """
        limited = wanted.where(self._table.c.due.is_not(None)).order_by(*order).limit(1)
        return (limited.correlate(*outer) if outer else limited).scalar_subquery()


class DueTimesByType:
    """Reads the first row of each type, in a queue of each type and band, by an index that begins with these columns.

    A database that cannot skip from group to group in an index does so by a recursive statement.
    """

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._write_statement(type(database.dialect), table)

    @cached_on_class
    def _write_statement(self, dialect: type[Dialect], table: Table) -> None:
        statement = _grouped(table) if dialect.groups_by_index else _stepping(dialect, table)
        self._statement = CompiledStatement(statement)

    def waits(self) -> Mapping[str, float]:
        """Return the seconds until a row of each type is due, 0.0 when one is due."""
        rows = self._database.run_direct(lambda connection, _: self._statement.rows(connection, {}))
        waits: dict[str, float] = {}
        for type_, due, now in rows:
            if isinstance(type_, str) and isinstance(due, int | float):  # SQLite columns may hold any value
                wait = max(0.0, (due - now) / 1000)
                waits[type_] = min(wait, waits.get(type_, wait))
        return waits


def _groups(rows: FromClause) -> list[ColumnElement[Any]]:
    """Return the columns that the index has before due."""
    return [rows.c[name] for name in ("type", "band") if name in rows.c]


def _not_retired(rows: FromClause) -> list[ColumnElement[bool]]:
    """Return the condition that a row is in the index."""
    return [rows.c.band.is_not(None)] if "band" in rows.c else []


def _grouped(table: Table) -> Select[Any]:
    """Return the SELECT of each type, the earliest due time in each of its bands, and the clock."""
    groups = _groups(table)
    first_rows = select(*groups, func.min(table.c.due).label("due")).group_by(*groups).subquery()
    return select(first_rows.c.type, first_rows.c.due, now_ms())


def _stepping(dialect: type[Dialect], table: Table) -> Select[Any]:
    """Return the same SELECT as a recursive statement: from the first row of a group to that of the next group."""

    def ordered(rows: FromClause) -> Select[Any]:
        wanted = select(rows.c.key, *_groups(rows), rows.c.due).where(*_not_retired(rows))
        return wanted.order_by(*_groups(rows), rows.c.due, rows.c.key).limit(1)

    first_rows = select(ordered(table).subquery("earliest")).cte("heads", recursive=True)
    row = table.alias("row")
    # For (type, band) > (…, …) SQLite would read all rows of a type to find the next band.
    further = [table.alias("further")]
    beyond = [further[0].c.type > first_rows.c.type]
    if "band" in table.c:
        further.insert(0, table.alias("same"))
        beyond.insert(0, and_(further[0].c.type == first_rows.c.type, further[0].c.band > first_rows.c.band))
    found = zip(further, beyond, strict=True)
    keys = [ordered(rows).with_only_columns(rows.c.key).where(where).correlate(first_rows) for rows, where in found]
    key = keys[0] if len(keys) == 1 else select(func.coalesce(*(each.scalar_subquery() for each in keys)))
    step = select(row.c.key, *_groups(row), row.c.due).select_from(first_rows.join(row, dialect.among(row.c.key, key)))
    first_rows = first_rows.union_all(step)
    return select(first_rows.c.type, first_rows.c.due, now_ms())


def _by_type(table: Table, wanted: Select[Any]) -> Select[Any]:
    """Return `wanted` with a hint: MariaDB and MySQL would read a whole band for a type without rows."""
    return wanted.with_hint(table, f"FORCE INDEX ({table.name}_type_due)", "mysql")


def _wait(dues: Iterable[Any], now: int) -> float | None:
    """Return the seconds until the earliest of these due times; SQLite columns may hold any value."""
    earliest = min((due for due in dues if isinstance(due, int | float)), default=None)
    return None if earliest is None else max(0.0, (earliest - now) / 1000)


def _types(found: Iterable[Any]) -> frozenset[Any]:
    return frozenset(type_ for type_ in found if type_ is not None)
