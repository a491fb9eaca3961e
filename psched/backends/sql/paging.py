"""Reads the rows of a table that pass a filter, page by page, ordered by due time or key."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import operators
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import GenericFunction

from psched.backends.common.rows import BATCH, UndecodableText
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import met_by_few
from psched.payload import MAX_BATCH_SIZE, count_within

_LONGEST_KEY = 255


class stored_bytes(GenericFunction[int]):  # noqa: N801
    """The number of bytes in a column of text or bytes; 0 for NULL. For a text on SQLite, the number of characters."""

    type = sa.Integer()
    inherit_cache = True


@compiles(stored_bytes)
def _stored_bytes(element: stored_bytes, compiler: SQLCompiler, **options: Any) -> str:
    # On PostgreSQL octet_length, unlike length, need not read a large value. SQLite has octet_length only since 3.43.
    name = "length" if compiler.dialect.name == "sqlite" else "octet_length"
    return f"coalesce({name}({compiler.process(element.clauses, **options)}), 0)"


class ByKeys:
    """A SELECT of the rows with given keys. On SQLite a key may be bytes."""

    def __init__(self, rows: sa.Select[Any], key: sa.Column[Any]) -> None:
        keys: sa.ColumnElement[Any] = sa.bindparam("keys", expanding=True)
        self._key = key.name
        self._statement = rows.where(key.in_(keys))
        # SQLite finds a text that is not UTF-8 only by a cast, which reads the whole table. Few tables hold such keys.
        self._of_bytes = rows.where(sa.cast(key, sa.LargeBinary).in_(keys))

    def read(
        self, connection: sa.Connection, keys: Sequence[Any], values: Mapping[str, Any] = MappingProxyType({})
    ) -> list[sa.RowMapping]:
        """Return the existing rows in the order of `keys`."""
        of_bytes = [key for key in keys if isinstance(key, bytes)]
        others = [key for key in keys if not isinstance(key, bytes)] if of_bytes else keys
        rows: dict[Any, sa.RowMapping] = {}
        for statement, some in ((self._statement, others), (self._of_bytes, of_bytes)):
            if some:
                found = connection.execute(statement, {**values, "keys": some}).mappings().all()
                rows.update((row[self._key], row) for row in found)
        return [rows[key] for key in keys if key in rows]


class RowsByKeys:
    """Reads rows by their keys. One statement reads at most 16 MB of stored data, or one larger row."""

    def __init__(self, rows: sa.Select[Any], key: sa.Column[Any]) -> None:
        self._key = key.name
        parts = [stored_bytes(key.table.c[name]) for name in ("data", "result") if name in key.table.c]
        self._sizes = ByKeys(sa.select(key, sum(parts[1:], parts[0]).label("bytes")), key)
        self._rows = ByKeys(rows, key)

    def read(self, database: Database, keys: Sequence[Any]) -> Iterator[sa.RowMapping]:
        """Yield the existing rows in the order of `keys`."""
        sized = _read(database, self._sizes, keys)
        while sized:
            count = count_within([row["bytes"] for row in sized], MAX_BATCH_SIZE, 1)
            yield from _read(database, self._rows, [row[self._key] for row in sized[:count]])
            sized = sized[count:]


def _read(database: Database, statement: ByKeys, keys: Sequence[Any]) -> Sequence[sa.RowMapping]:
    return database.run(lambda connection, _: statement.read(connection, keys))


class OrderedPages:
    """A SELECT ordered by some columns and read page by page."""

    def __init__(
        self,
        rows: sa.Select[Any],
        order: Mapping[str, sa.ColumnElement[Any]],
        page_size: int,
        in_parts: bool = False,
        same: Sequence[sa.ColumnElement[Any]] = (),
        equals: _Equals = operator.eq,
    ) -> None:
        """`order`: the columns by their names in `rows`. Together their values must be unique.

        `in_parts`: whether two statements read a page after the first: one statement for the rows with the same first
        value as the last row, and one for the rows after those. With one statement, PostgreSQL and SQLite read all rows
        with this first value again for each page. Many schedules may be due at the same time. `same`: columns that have
        the same value in all rows, and precede `order` in the index. `equals` returns the condition that a column has a
        value.
        """
        self._order = order
        self._page_size = page_size
        self._first = rows.order_by(*same, *order.values()).limit(page_size)
        parts = _parts_that_follow(order, equals) if in_parts else [_follows(order, {})]
        self._next = [self._first.where(part) for part in parts]

    def pages(
        self,
        read: Callable[[sa.Select[Any], Mapping[str, Any]], Sequence[sa.RowMapping]],
        begin: Sequence[Any] = (),
    ) -> Iterator[Sequence[sa.RowMapping]]:
        """Yield the rows of each page.

        `read`: executes the SELECT of one page. `begin`: the values of `order` in the row before the first page.
        """
        statements = self._next if begin else [self._first]
        after = {f"after_{name}": value for name, value in zip(self._order, begin, strict=False)}
        while True:
            page: list[sa.RowMapping] = []
            for statement in statements:
                if len(page) < self._page_size:
                    page += read(statement, after)
            page = page[: self._page_size]
            if page:
                yield page
            if len(page) < self._page_size:
                return
            last = {name: page[-1][name] for name in self._order}
            after = {f"after_{name}": value for name, value in last.items() if value is not None}
            # Only SQLite stores invalid UTF-8, and NULL in a column that forbids NULL.
            is_invalid = any(value is None or isinstance(value, UndecodableText) for value in last.values())
            statements = [self._first.where(_follows(self._order, last))] if is_invalid else self._next


_Equals = Callable[[sa.ColumnElement[Any], sa.ColumnElement[Any]], sa.ColumnElement[bool]]


def _parts_that_follow(order: Mapping[str, sa.ColumnElement[Any]], equals: _Equals) -> Iterator[sa.ColumnElement[bool]]:
    """Yield a condition for the rows with the same first value as the last row, and one for the rows after those."""
    (name, column), *others = order.items()
    after: sa.ColumnElement[Any] = sa.bindparam(f"after_{name}", type_=column.type)
    if others:
        yield sa.and_(equals(column, after), _follows(dict(others), {}))
    yield column > after


def _follows(order: Mapping[str, sa.ColumnElement[Any]], last: Mapping[str, Any]) -> sa.ColumnElement[bool]:
    """Return the condition that a row follows `last`. If `last` is empty, any row with valid values follows."""
    (name, column), *others = order.items()
    if last.get(name, "") is None:  # NULL sorts before any value
        return sa.or_(column.is_not(None), _follows(dict(others), last))
    after: sa.ColumnElement[Any] = sa.bindparam(f"after_{name}")
    if isinstance(last.get(name), UndecodableText):  # SQLite's driver would send a BLOB, which sorts after any text
        after = sa.cast(sa.bindparam(f"after_{name}", type_=sa.LargeBinary), sa.Text)
    if not others:
        return column > after
    # `column >= after` stands alone: MariaDB uses an index for it, but not for (due, key) > (…, …).
    return sa.and_(column >= after, sa.or_(column > after, sa.and_(column == after, _follows(dict(others), last))))


FEW = 10_000
"""The maximum number of rows that are sorted in Python after a filter. If only one page is read, the maximum is a tenth
of this number. If more rows pass the filter, the database reads the index that has the wanted order, and filters its
rows."""


_PASSES = "passes"
"""The column that tells whether a row meets the conditions."""


def read_pages(
    database: Database,
    rows: sa.Select[Any],
    key: sa.Column[Any],
    due: sa.Column[Any] | None = None,
    conditions: Sequence[sa.ColumnElement[bool]] = (),
    after: Sequence[Any] = (),
    page_size: int | None = None,
    filter_order: Sequence[sa.ColumnElement[Any]] = (),
    few_conditions: Sequence[sa.ColumnElement[bool]] | None = None,
    is_filter_ordered: bool = False,
    same: Sequence[sa.ColumnElement[Any]] = (),
) -> Iterator[sa.RowMapping]:
    """Yield the rows of the SELECT `rows` that meet `conditions`, ordered by due time and key; without `due`, by key.

    For each page, one statement reads the keys from an index, and others read the rows with these keys. If one
    statement read the rows in this order, MariaDB would sort the whole table.

    `after`: due time and key (without `due`, the key) of the row after which to begin. `page_size`: see `page` in
    `TaskFilter`. `filter_order`: the columns of the index that finds the rows for `conditions`; without it PostgreSQL
    may read the whole table. `few_conditions`: those of `conditions` that this index can check without reading rows;
    None: all of them. `is_filter_ordered`: whether this index has the wanted order, and so can be read page by page.
    `same`: columns that have the same value in all rows that meet `conditions`, and precede the order in this index.
    """
    order = {"key": key} if due is None else {"due": due, "key": key}
    keys = sa.select(*(column.label(name) for name, column in order.items())).where(*conditions)
    # With the conditions and the keys in one WHERE, PostgreSQL reads all rows that meet the conditions for each page.
    whole = RowsByKeys(rows.add_columns(sa.and_(*conditions).label(_PASSES)) if conditions else rows, key)
    few = FEW if page_size is None else FEW // 10
    size = BATCH if page_size is None else min(page_size, BATCH)
    found = None
    if conditions and not is_filter_ordered:
        by_index = map(_served_by_index, conditions if few_conditions is None else few_conditions)
        passing = sa.select(*keys.selected_columns).where(*by_index)
        found = _few(database, passing.order_by(*filter_order), after, few)
    in_parts = not database.dialect.finds_ranges_in_or
    equals: _Equals = operator.eq if same else database.dialect.by_index  # one index must serve the whole order
    pages: Iterable[Sequence[Any]] = (
        OrderedPages(keys, order, size, in_parts, same, equals).pages(database.rows, after)
        if found is None
        else [found[first : first + size] for first in range(0, len(found), size)]
    )
    for page in pages:
        for row in whole.read(database, [row["key"] for row in page]):
            if not conditions or row[_PASSES]:  # another process may have changed the row
                yield row


def _few(database: Database, keys: sa.Select[Any], after: Sequence[Any], few: int) -> Sequence[sa.RowMapping] | None:
    """Read at most `few` rows and sort them. Return the rows after `after`.

    Return None if `keys` finds more than `few` rows, or if a value cannot be compared, because SQLite stores values of
    any type. `keys`: a query for the rows that pass a filter; it uses the filter's index.
    """
    found = database.rows(keys.limit(few + 1), {})
    if len(found) > few:
        return None
    places = [(tuple(row.values()), row) for row in found]
    if not all(isinstance(value, str | int) for place, _ in places for value in place):
        return None
    places.sort(key=itemgetter(0))
    return [row for place, row in places if place > tuple(after)]


def _served_by_index(condition: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Return the condition. If it excludes NULL, an index that leaves out NULL shall serve it.

    SQLite would read the whole table instead if no row was NULL when SQLite gathered statistics.
    """
    excludes_null = isinstance(condition, sa.BinaryExpression) and condition.operator is operators.is_not
    return met_by_few(condition) if excludes_null else condition


def begins_with(key: sa.Column[Any], prefix: str) -> sa.ColumnElement[bool]:
    """Return the condition that a key begins with `prefix`. The condition is a range, so that an index can be used."""
    last = prefix + "\U0010ffff" * (_LONGEST_KEY - len(prefix))
    return key.between(prefix, last)
