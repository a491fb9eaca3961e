"""Statements that change or insert many rows, which are given as JSON in one parameter.

Values that all rows have in common are parameters of their own: to parse each row, member by member, costs a database
as much as the change itself, MariaDB even more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from sqlalchemy import (
    Column,
    ColumnClause,
    ColumnElement,
    FromClause,
    Insert,
    String,
    Table,
    Update,
    bindparam,
    column,
    insert,
    literal_column,
    null,
    select,
)
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.functions import FunctionElement

from psched.backends.sql.clock import now_ms, now_once
from psched.backends.sql.statement import CompiledStatement, Executing, Prepared, kind_of

_PREFIX = "given_"
"""Begins the name of each column and parameter that is given, so that none is a word of SQL."""

_ROWS = "given"
_KEY = "key"

_OFTEN = 8
"""How often the rows must have had the same in common for the statement to be built for that, where another will do."""

Told = Mapping[str, ColumnElement[Any]]
"""What is given of a row, by its names, as a statement uses it: with `key` the rows come in."""


class BulkUpdate:
    """A statement on given rows, built once for each choice of what these often have in common.

    To build and compile one takes as long as to settle a hundred rows. So where the one for rows without anything in
    common was compiled beforehand, it is used for a choice that comes rarely, or for the first time.
    """

    def __init__(self, types: Mapping[str, Any], build: Callable[[Told], Update | Insert]) -> None:
        """`types`: of what is given of each row, `key` among it."""
        self._types = types
        self._build = build
        self._texts: dict[tuple[str, ...], CompiledStatement] = {}
        self._rare: Counter[tuple[str, ...]] = Counter()

    def prepare(self, connection: Executing) -> None:
        """Compile the statement for rows without anything in common."""
        self._built(tuple(self._types)).prepare(connection)

    def execute(self, connection: Executing, rows: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> int:
        """Execute it on `rows`, which have a value for each of its names, and return how many rows it changed.

        `values`: further parameters. There has to be a row.
        """
        first = rows[0]
        differing = tuple([name for name in self._types if any(row[name] != first[name] for row in rows)])
        if differing not in self._texts and tuple(self._types) in self._texts:
            self._rare[differing] += 1
            differing = differing if self._rare[differing] > _OFTEN else tuple(self._types)
        names = [name for name in self._types if name == _KEY or name in differing]
        same = {f"{_PREFIX}{name}": first[name] for name in self._types if name not in names}
        return self._built(differing).execute(connection, {**values, **same, _ROWS: as_parameter(rows, names)})

    def _built(self, differing: tuple[str, ...]) -> CompiledStatement:
        if differing not in self._texts:
            self._texts[differing] = CompiledStatement(self._build(self._told(differing)))
        return self._texts[differing]

    def _told(self, differing: Sequence[str]) -> Told:
        """Return a column for the key and for what differs, and a parameter for the rest."""
        columns = {name: type_ for name, type_ in self._types.items() if name == _KEY or name in differing}
        rows = rows_in(_ROWS, [column(f"{_PREFIX}{name}", type_) for name, type_ in columns.items()])
        return {
            name: rows.c[f"{_PREFIX}{name}"] if name in columns else bindparam(f"{_PREFIX}{name}", type_=type_)
            for name, type_ in self._types.items()
        }


GivenRow = Mapping[str, str | int]
"""What is given of a new row, by the names of columns; what is not is NULL."""

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Values = Callable[[Mapping[str, ColumnElement[Any]], ColumnElement[int]], Mapping[str, ColumnElement[Any]]]
"""Makes the columns of a row out of what is given, and of the database's clock."""

_NEW = "new_"
_MOST_ROWS = 2000
_MOST_CHARACTERS = 500_000
"""How much one statement takes: MariaDB bounds its length, in which each character may be escaped twice."""


class Inserting(Protocol):
    """What an insertion needs of its database's dialect."""

    @classmethod
    def insert_new(cls, table: Table) -> Any:
        """Return an INSERT that leaves rows whose key exists as they are."""
        ...

    def insert_prepared(self, connection: Executing, ways: Ways, values: Mapping[str, Any]) -> int:
        """Insert rows whose keys are new and return how many; 0 when that is not known."""
        ...


class Ways(NamedTuple):
    """An INSERT that fails when a key exists, and one that leaves such rows as they are."""

    strict: Prepared
    lenient: Prepared


class given_rows(FunctionElement[str]):  # noqa: N801 – spelled like the SQL function it stands for
    """The rows of a parameter that `as_parameter` made: what a dialect compiles in its own way.

    A row is an array of the values of its `fields`, the value itself where there is one.
    `fields`: the names of the columns, in the order of the values, and their types.
    """

    type = String()
    inherit_cache = False

    def __init__(self, parameter: ColumnElement[str], fields: Sequence[ColumnClause[Any]]) -> None:
        super().__init__(parameter)
        self.fields = [(field.name, field.type) for field in fields]


@compiles(given_rows)
def _given_rows(element: given_rows, compiler: SQLCompiler, **options: Any) -> str:
    raise NotImplementedError(f"given_rows on {compiler.dialect.name}")


class BulkInsert:
    """New rows of one table, whose keys are its primary key. Built once."""

    def __init__(
        self,
        dialect: type[Inserting],
        table: Table,
        given: Sequence[Column[Any]],
        values: Values,
        further: Callable[[Insert], Insert] | None = None,
    ) -> None:
        """`given`: what is told of each row, which `values` makes its columns of.

        `further` makes of an INSERT a statement that does more with each of its new rows, and counts as many.
        """
        self._dialect = dialect
        self._table = table
        self._given = given
        self._values = values
        self._further = further
        self._ways: dict[tuple[object, ...], Ways] = {}

    def execute(
        self, dialect: Inserting, connection: Executing, rows: Sequence[GivenRow], values: Mapping[str, Any]
    ) -> int:
        """Insert those of `rows` whose keys are new, and return how many; fewer, where that is not known.

        `values`: further parameters. In a transaction of the caller's, unless it is one row.
        """
        done = 0
        for page in _pages(rows):
            same = page[0] if len(page) == 1 else _same(page)
            told = {_NEW + name: value for name, value in same.items()}
            differing: tuple[str, ...] = ()
            if len(page) > 1:
                differing = tuple(sorted(set().union(*page) - same.keys()))
                told["new_rows"] = as_parameter(page, differing)
            ways = self._prepared(connection, tuple(same), differing)
            done += dialect.insert_prepared(connection, ways, {**told, **values})
        return done

    def _prepared(self, connection: Executing, same: Sequence[str], differing: Sequence[str]) -> Ways:
        """Return the statements for rows of which that is told, as the connection's driver takes them.

        Who submits says little of each task: so nothing is sent for the rest, and what is the `same` for all rows is
        sent once. Nothing is `differing` in a single row.
        """
        kind = (*kind_of(connection), same, differing)
        if kind not in self._ways:
            statements = self._many(same, differing) if differing else self._single(same)
            self._ways[kind] = Ways(*(Prepared.of(self._whole(statement), connection) for statement in statements))
        return self._ways[kind]

    def _whole(self, statement: Insert) -> Insert:
        return statement if self._further is None else self._further(statement)

    def _parameters(self, told: Collection[str]) -> dict[str, ColumnElement[Any]]:
        return {
            field.name: bindparam(_NEW + field.name, type_=field.type) if field.name in told else null()
            for field in self._given
        }

    def _single(self, told: Collection[str]) -> tuple[Insert, Insert]:
        values = self._values(self._parameters(told), now_ms())
        return insert(self._table).values(values), self._dialect.insert_new(self._table).values(values)

    def _many(self, same: Collection[str], differing: Collection[str]) -> tuple[Insert, Insert]:
        types = {field.name: field.type for field in self._given}
        rows = rows_in("new_rows", [column(_NEW + name, types[name]) for name in differing])
        columns = {name: rows.c[_NEW + name] for name in differing}
        values = self._values({**self._parameters(same), **columns}, now_once())
        told = select(*values.values()).select_from(rows)
        chosen = told.where(literal_column("1 = 1"))  # else SQLite takes ON CONFLICT for a join's
        names = list(values)
        return (
            insert(self._table).from_select(names, chosen),
            self._dialect.insert_new(self._table).from_select(names, chosen),
        )


def rows_in(parameter: str, columns: Sequence[ColumnClause[Any]]) -> FromClause:
    """Return what stands in FROM for the rows in a parameter that `as_parameter` made, and has these columns."""
    return given_rows(bindparam(parameter, type_=String), columns).table_valued(*columns, name="given")


def as_parameter(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return of `rows` what they have by these names as the parameter of `given_rows`.

    Of a single name that is an array of values: arrays of one are taken apart once more, each.
    """
    if len(names) == 1:
        (name,) = names
        return _ENCODER.encode([row.get(name) for row in rows])
    return _ENCODER.encode(list(zip(*([row.get(name) for row in rows] for name in names), strict=True)))


def _same(page: Sequence[GivenRow]) -> GivenRow:
    """Return what all rows have in common; their keys differ."""
    count = len(page)
    return {name: value for name, value in page[0].items() if [row.get(name) for row in page].count(value) == count}


def _pages(rows: Sequence[GivenRow]) -> list[list[GivenRow]]:
    """Return the rows in their order, as many to a page as one statement takes."""
    pages: list[list[GivenRow]] = []
    page: list[GivenRow] = []
    size = 0
    for row in rows:
        length = len(str(row["data"]))
        if page and (len(page) >= _MOST_ROWS or size + length > _MOST_CHARACTERS):
            pages.append(page)
            page, size = [], 0
        page.append(row)
        size += length
    return [*pages, page] if page else pages
