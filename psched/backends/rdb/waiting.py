"""When something is due next: what whoever finds nothing to do sleeps by. Used in children and clients.

Of schedules the earliest row is the first of an index. A queue's rows are in order within each band only, so the first
rows of all bands are compared; one statement looks at those of the bands that are known, and for others in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
    func,
    select,
    union_all,
)

from psched.backends.rdb.claiming import type_parameters
from psched.backends.rdb.tables import USER_BAND
from psched.backends.sql.fields import LAST_SECOND
from psched.dialects.base import Dialect, now_ms
from psched.dialects.database import Database
from psched.dialects.given import Compiled
from psched.dialects.once import once

_LAST_MS = LAST_SECOND * 1000
_ABOVE_ALL = 2 * USER_BAND
_BELOW_ALL = -2 * USER_BAND


class DueTimes(Protocol):
    """Knows how long nothing will be due in one table. Safe to use from several threads."""

    def next_due(self, types: Collection[str] | None) -> float | None:
        """Return the seconds until something is due, 0.0 when it is; None when nothing is stored."""
        ...

    def never_due(self, most: int) -> list[str]:
        """Return keys of rows that psched never wrote so: they will never be due, or not in this calendar."""
        ...


class OneOrder:
    """Looks at the first row of an index on due, or with types on type and due."""

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._look_at(table)

    @once
    def _look_at(self, table: Table) -> None:
        self._table = table
        self._by_types: dict[int | None, Compiled] = {}

    def next_due(self, types: Collection[str] | None) -> float | None:
        """Return the seconds until something is due."""
        count = None if types is None else len(types)
        if count == 0:
            return None
        if count not in self._by_types:
            self._by_types[count] = Compiled(self._statement(count))
        statement, values = self._by_types[count], type_parameters(types)
        ((due, now),) = self._database.run_direct(lambda connection, _: statement.rows(connection, values))
        return max(0.0, (due - now) / 1000) if isinstance(due, int | float) else None

    def never_due(self, most: int) -> list[str]:
        """Return keys of rows due after the last year; on SQLite also of those whose due time is no number."""
        c = self._table.c
        beyond = select(c.key).where(c.due > _LAST_MS).order_by(c.due, c.key).limit(most)
        return list(self._database.run(lambda connection, _: connection.execute(beyond).scalars().all()))

    def _statement(self, type_count: int | None) -> Select[Any]:
        c = self._table.c
        firsts = [self._first()]
        if type_count is not None:
            firsts = [self._first(c.type == bindparam(f"type_{number}")) for number in range(type_count)]
        due = union_all(*(select(first.scalar_subquery().label("due")) for first in firsts)).subquery()
        columns: list[ColumnElement[Any]] = [func.min(due.c.due), now_ms()]
        return select(*columns)

    def _first(self, *conditions: ColumnElement[bool]) -> Select[Any]:
        c = self._table.c
        return select(c.due).where(*conditions).order_by(c.due, c.key).limit(1)


@dataclass
class _Found:
    """What one look at the bands of some types found: the earliest due times, and bands that were not known."""

    now: int
    heads: list[float] = field(default_factory=list)
    bands: dict[str | None, tuple[int, ...]] = field(default_factory=dict)
    more: bool = False

    @property
    def wait(self) -> float | None:
        return max(0.0, (min(self.heads) - self.now) / 1000) if self.heads else None


class ManyBands:
    """Looks at the first row of each band by an index on band and due, or with types on type, band and due.

    Databases do not jump from band to band by themselves, not all of them; so the bands that had rows last time are
    named in the statement, which also looks at the gaps between them. Only a new band costs a second statement.
    """

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._known: dict[str | None, tuple[int, ...]] = {}
        self._look_at(table)

    @once
    def _look_at(self, table: Table) -> None:
        self._table = table
        self._by_shape: dict[tuple[bool, int, int], Compiled] = {}

    def next_due(self, types: Collection[str] | None) -> float | None:
        """Return the seconds until something is due."""
        kinds: Sequence[str | None] = [None] if types is None else list(types)
        while kinds:
            found = self._look(kinds)
            self._known.update(found.bands)
            if not found.more:
                return found.wait
        return None

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

    def _look(self, kinds: Sequence[str | None]) -> _Found:
        known = _of_one_width([self._known.get(kind, ()) for kind in kinds])
        typed, width = kinds[0] is not None, len(known[0])
        shape = (typed, len(kinds), width)
        if shape not in self._by_shape:
            self._by_shape[shape] = Compiled(self._statement([width] * len(kinds), typed))
        statement, values = self._by_shape[shape], dict(_values(kinds, known))
        (row,) = self._database.run_direct(lambda connection, _: statement.rows(connection, values))
        now, *numbers = row
        found = _Found(now)
        for kind, bands in zip(kinds, known, strict=True):
            heads, gaps = numbers[: len(bands)], numbers[len(bands) : 2 * len(bands) + 1]
            numbers = numbers[2 * len(bands) + 1 :]
            new = [band for band in gaps if band is not None]
            live = [band for band, head in zip(bands, heads, strict=True) if head is not None]
            found.heads += [head for head in heads if isinstance(head, int | float)]
            found.bands[kind] = tuple(sorted([*live, *new]))
            found.more = found.more or bool(new)
        return found

    def _statement(self, shape: Sequence[int], typed: bool) -> Select[Any]:
        """Return the SELECT of the clock, and for each type its bands' first due times and the bands in its gaps."""
        c = self._table.c
        columns: list[ColumnElement[Any]] = [now_ms()]
        for number, count in enumerate(shape):
            of_type = [c.type == bindparam(f"type_{number}")] if typed else []
            bounds: list[ColumnElement[int]] = [bindparam(f"band_{number}_{place}") for place in range(-1, count + 1)]
            columns += [self._first(*of_type, c.band == bound) for bound in bounds[1:-1]]
            columns += [self._last(*of_type, c.band > low, c.band < high) for low, high in pairwise(bounds)]
        return select(*(column.label(f"column_{place}") for place, column in enumerate(columns)))

    def _first(self, *conditions: ColumnElement[bool]) -> ColumnElement[Any]:
        """Return the earliest due time. PostgreSQL would read all of them for a plain minimum."""
        c = self._table.c
        of_some = (*conditions, c.due.is_not(None))
        return select(c.due).where(*of_some).order_by(c.due, c.key).limit(1).scalar_subquery()

    def _last(self, *conditions: ColumnElement[bool]) -> ColumnElement[Any]:
        """Return the highest band."""
        c = self._table.c
        backwards = (c.band.desc(), c.due.desc(), c.key.desc())
        of_some = (*conditions, c.due.is_not(None))
        return select(c.band).where(*of_some).order_by(*backwards).limit(1).scalar_subquery()


class TypeHeads:
    """Looks at the first row of each type, of a queue's in each band, by an index that begins with type (and band).

    Where a database does not skip from group to group by itself, each step looks for the first row behind a group.
    """

    def __init__(self, database: Database, table: Table) -> None:
        self._database = database
        self._write_statement(type(database.dialect), table)
        self._due: frozenset[str] | None = None

    @once
    def _write_statement(self, dialect: type[Dialect], table: Table) -> None:
        statement = _grouped(table) if dialect.groups_by_index else _stepping(dialect, table)
        self._statement = Compiled(statement)

    def due_by_type(self) -> Mapping[str, float]:
        """Return the seconds until something of each type is due, 0.0 when it is."""
        rows = self._database.run_direct(lambda connection, _: self._statement.rows(connection, {}))
        heads: dict[str, float] = {}
        for type_, due, now in rows:
            if isinstance(type_, str) and isinstance(due, int | float):  # SQLite may hold anything there
                wait = max(0.0, (due - now) / 1000)
                heads[type_] = min(wait, heads.get(type_, wait))
        self._due = frozenset(type_ for type_, wait in heads.items() if wait == 0)
        return heads

    def is_crowded(self, types: Collection[str] | None) -> bool:
        """Tell whether rows of other types were due at the last look, or nobody has looked yet."""
        due = self._due
        return types is not None and (due is None or not due <= frozenset(types))


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


def _of_one_width(known: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """Return the bands of each type and, up to a power of two of the same number, a band that no row is in.

    So statements are few, whichever types have rows: one for each choice of numbers would fill the memory.
    """
    most = max(len(bands) for bands in known)
    width = 1 << (most - 1).bit_length() if most else 0
    return [(*bands, *[_ABOVE_ALL] * (width - len(bands))) for bands in known]


def _values(kinds: Sequence[str | None], known: Sequence[tuple[int, ...]]) -> Iterator[tuple[str, Any]]:
    for number, (kind, bands) in enumerate(zip(kinds, known, strict=True)):
        if kind is not None:
            yield f"type_{number}", kind
        for place, band in enumerate((_BELOW_ALL, *bands, _ABOVE_ALL), start=-1):
            yield f"band_{number}_{place}", band
