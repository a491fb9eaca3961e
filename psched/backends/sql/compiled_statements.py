"""Statements that SQLAlchemy compiles once and the driver executes, for one row or for many rows given as JSON.

SQLAlchemy's own execution and pool take two to three times as much processor time: 73 instead of 24 microseconds for a
statement on SQLite, 485 instead of 145 on PostgreSQL (2026-11-22).

SQLAlchemy takes some 30 ms to build the SQL of a store. So all stores of a process on tables of the same names share
their statements (`cached`). Threads only add entries to shared objects and never change an entry, so they need no lock.

A bulk statement takes a value that all rows share as a parameter, not from each row's JSON. Parsing the JSON costs a
database as much as the change itself, and MariaDB even more.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.functions import FunctionElement

from psched.backends.sql.dialect import Dialect, now_ms, now_once

_CACHED = 256
"""The maximum number of results that each cached function keeps. A process uses few tables."""

S = TypeVar("S")
T = TypeVar("T")
P = ParamSpec("P")

Steps = Generator[tuple[str, Any], Any, T]
"""Work as a generator of statements, usable on blocking and on asynchronous connections.

It yields the text and the parameters of each statement, and receives an answer with `rowcount` and `fetchall()`.
"""


class PooledConnection(sa.Connection):
    """SQLAlchemy's Connection. If `keeps_cursor`, it keeps one driver cursor for all compiled statements.

    A kept cursor holds the answer to the last statement only.
    """

    def __init__(self, engine: sa.Engine, keeps_cursor: bool) -> None:
        super().__init__(engine)
        self.kept_cursor: Any = self.connection.cursor() if keeps_cursor else None


def execute_text(connection: sa.Connection, text: str, parameters: Any = ()) -> Any:
    """Execute a compiled statement and return its cursor, with `rowcount`, `fetchone()` and `fetchall()`.

    On a caller's connection, and while tracers listen to SQLAlchemy's events, SQLAlchemy executes the statement.
    Otherwise the driver's cursor executes the statement. Raises DBAPIError.
    """
    if not isinstance(connection, PooledConnection):
        return connection.exec_driver_sql(text, parameters)
    events = connection.engine.dispatch
    if events.before_cursor_execute or events.after_cursor_execute:
        return connection.exec_driver_sql(text, parameters)
    cursor = connection.kept_cursor
    try:
        if cursor is None:
            cursor = connection.connection.cursor()
        cursor.execute(text, parameters)
    except connection.dialect.loaded_dbapi.Error as error:
        lost = connection.dialect.is_disconnect(error, connection.connection, cursor)
        raise wrapped(error, connection.dialect, text, lost) from error
    return cursor


def run_steps(connection: sa.Connection, steps: Steps[T]) -> T:
    """Execute the statements of `steps` and return the result of `steps`, which may catch the driver's errors."""
    try:
        statement = next(steps)
        while True:
            try:
                answer = execute_text(connection, *statement)
            except Exception as error:  # noqa: BLE001 – `steps` raises it again, or handles it
                statement = steps.throw(error)
            else:
                statement = steps.send(answer)
    except StopIteration as end:
        result: T = end.value
        return result


def wrapped(error: Any, dialect: Any, text: str | None = None, lost: bool = False) -> BaseException:
    """Return a driver's error in SQLAlchemy's form, without the parameters of the statement `text`.

    `lost`: whether the connection can no longer be used.
    """
    kind: Any = dialect.loaded_dbapi.Error
    options: dict[str, Any] = {"hide_parameters": True, "connection_invalidated": lost, "dialect": dialect}
    made: BaseException = DBAPIError.instance(text, None, error, kind, **options)
    return made


@lru_cache(_CACHED)
def table_named(make: Callable[..., sa.Table], name: str, *options: object) -> sa.Table:
    """Return the table that `make(metadata, name, *options)` makes: the same object for every store."""
    return make(sa.MetaData(), name, *options)


def cached(make: Callable[P, T], *parts: P.args, **named: P.kwargs) -> T:
    """Return `make(*parts)`, cached by its arguments.

    All stores of the process share the result, so it must not refer to objects of one store, such as connections.
    """
    made: T = _made(make, *parts, **named)
    return made


def _make(make: Callable[..., Any], *parts: Any, **named: Any) -> Any:
    return make(*parts, **named)


_made: Callable[..., Any] = lru_cache(_CACHED)(_make)


def cached_on_class(build: Callable[Concatenate[S, P], None]) -> Callable[Concatenate[S, P], None]:
    """Decorate a method that sets attributes.

    The method runs once for equal arguments; later objects get the same values.
    """

    def attributes(kind: type[S], *parts: P.args, **named: P.kwargs) -> dict[str, Any]:
        blank = object.__new__(kind)  # so that no attribute refers to a caller's object
        build(blank, *parts, **named)
        return vars(blank)

    shared: Callable[..., dict[str, Any]] = lru_cache(_CACHED)(attributes)

    @wraps(build)
    def set_attributes(self: S, /, *parts: P.args, **named: P.kwargs) -> None:
        vars(self).update(shared(type(self), *parts, **named))

    return set_attributes


class Compilable(Protocol):
    """A connection for which a statement can be compiled, such as SQLAlchemy's."""

    @property
    def dialect(self) -> sa.Dialect: ...


@dataclass(frozen=True, slots=True)
class CompiledText:
    """A statement in the driver's form: its text, the names of its parameters, and their constant values.

    `places`: the names in the order of the parameters; None if the driver takes parameters by name. `names`: all names.
    """

    text: str
    places: tuple[str, ...] | None
    names: tuple[str, ...]
    constants: Mapping[str, Any]

    @classmethod
    def of(cls, statement: sa.UpdateBase | sa.SelectBase, connection: Compilable, keys: int = 0) -> CompiledText:
        compiled: Any = statement.compile(dialect=connection.dialect)
        constants = {name: bind.effective_value for bind, name in compiled.bind_names.items() if not bind.required}
        values = {**dict.fromkeys(compiled.bind_names.values()), **constants, **({"keys": [""] * keys} if keys else {})}
        expanded = compiled.construct_expanded_state(values, escape_names=False)
        places = None if expanded.positiontup is None else tuple(expanded.positiontup)
        return cls(expanded.statement, places, tuple(expanded.parameters), constants)

    def parameters(self, values: Mapping[str, Any]) -> Any:
        """Return the parameters in the driver's form.

        Values that the statement does not use are left out. With more than 50 values psycopg would parse the statement
        at each execution, which takes 0.1 ms (2026-11-29).
        """
        everything = {**self.constants, **values} if self.constants else values
        if self.places is None:
            return {name: everything[name] for name in self.names}
        return tuple(map(everything.__getitem__, self.places))


class Statement:
    """A statement that is compiled once for each kind of connection. Safe to use from several threads.

    `then`: a second statement for the same transaction, executed if this one changes a row; see `Database.change_row`.
    """

    def __init__(self, statement: sa.UpdateBase | sa.SelectBase, then: sa.Insert | None = None) -> None:
        self._statement = statement
        self.then = None if then is None else Statement(then)
        self._compiled: dict[tuple[object, ...], CompiledText] = {}

    def prepare(self, connection: Compilable, keys: int = 0) -> CompiledText:
        """Return the statement in the form of the connection's driver. Compiles it at the first call.

        `keys`: the number of values of the expanding parameter `keys`, or 0 if the statement has no such parameter.
        """
        dialect: Any = connection.dialect
        quote = dialect.identifier_preparer.initial_quote  # MySQL quotes names as the session's sql_mode demands
        is_mariadb = getattr(dialect, "is_mariadb", False)
        kind = (dialect.name, dialect.driver, dialect.paramstyle, quote, is_mariadb, dialect.server_version_info, keys)
        if kind not in self._compiled:
            if self.then is not None:
                self.then.prepare(connection)
            self._compiled[kind] = CompiledText.of(self._statement, connection, keys)
        return self._compiled[kind]

    def execute(self, connection: sa.Connection, values: Mapping[str, Any]) -> int:
        compiled = self.prepare(connection)
        changed: int = execute_text(connection, compiled.text, compiled.parameters(values)).rowcount
        return changed

    def execute_on(self, connection: sa.Connection, keys: Sequence[str], values: Mapping[str, Any]) -> int:
        """Execute the statement on `keys`, at least one, and return the number of changed rows.

        The statement is compiled only for numbers of keys that are powers of two. The last key is repeated until the
        number of keys is a power of two. Repeated keys cost a server less than one more compiled statement costs a
        client.
        """
        changed: int = execute_text(connection, *self.step_on(connection, keys, values)).rowcount
        return changed

    def step(self, connection: Compilable, values: Mapping[str, Any]) -> tuple[str, Any]:
        """Return the text and the parameters of the statement in the form of the connection's driver."""
        compiled = self.prepare(connection)
        return compiled.text, compiled.parameters(values)

    def step_on(self, connection: Compilable, keys: Sequence[str], values: Mapping[str, Any]) -> tuple[str, Any]:
        """Return the text and the parameters of the statement for the rows `keys`; see `execute_on`."""
        count = 1 << (len(keys) - 1).bit_length()
        compiled = self.prepare(connection, count)
        padded = {f"keys_{place}": key for place, key in enumerate([*keys, *[keys[-1]] * (count - len(keys))], 1)}
        return compiled.text, compiled.parameters({**values, **padded})

    def rows(self, connection: sa.Connection, values: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
        """Execute the statement, and return the rows in the driver's form."""
        found: Sequence[Sequence[Any]] = execute_text(connection, *self.step(connection, values)).fetchall()
        return found

    def rows_on(self, connection: sa.Connection, keys: Sequence[str]) -> Sequence[Sequence[Any]]:
        """Execute the statement for `keys` (at least one), and return the rows as `rows` does; see `execute_on`."""
        found: Sequence[Sequence[Any]] = execute_text(connection, *self.step_on(connection, keys, {})).fetchall()
        return found


GivenColumns = Mapping[str, sa.ColumnElement[Any]]
"""The given values of a row by name, as expressions of a bulk statement."""

_PREFIX = "given_"
"""Prefix of the names of given columns and parameters, so that no such name is a keyword of SQL."""

_ROWS = "given"
_KEY = "key"

_OFTEN = 8
"""How often rows must have equal values in the same columns before a statement is built for this set of columns."""


class BulkUpdate:
    """An UPDATE or INSERT for many rows, with the values of each row.

    A column in which all rows have the same value is a shared column. Its value is sent once, as a parameter; the
    values of the other columns are sent as JSON. A statement is built for each set of shared columns. Building and
    compiling a statement takes as long as settling a hundred rows. So a set that is rare uses the statement without
    shared columns, if `prepare` has compiled that one. A single row has a statement of its own, without JSON, which
    takes less processor time: 13 % on SQLite and PostgreSQL, and 40 % on MariaDB (2026-11-22).
    """

    def __init__(
        self, types: Mapping[str, Any], build: Callable[[GivenColumns, sa.ColumnElement[int]], sa.Update | sa.Insert]
    ):
        """`types`: the types of a row's values by name, including `key`.

        `build` makes the statement from the given values and the clock.
        """
        self._types = types
        self._parameters = {name: _PREFIX + name for name in types}
        self._build = build
        self._statements: dict[tuple[str, ...], Statement] = {}
        self._rare: Counter[tuple[str, ...]] = Counter()

    def prepare(self, connection: sa.Connection, one_row: bool = True) -> None:
        """Compile the statement for rows that share no value and, if `one_row`, the statement for one row."""
        if one_row:
            self._statement(()).prepare(connection)
        self._statement(tuple(self._types)).prepare(connection)

    def execute(self, connection: sa.Connection, rows: Sequence[Mapping[str, Any]], values: Mapping[str, Any]) -> int:
        """Execute the statement on `rows`, at least one, and return the number of changed rows.

        Each row has a value for each name in `types`. `values`: other parameters of the statement.
        """
        if len(rows) == 1:
            return self._statement(()).execute(connection, {**values, **self.parameters(rows[0])})
        names = self._names(rows)
        same = {parameter: rows[0][name] for name, parameter in self._parameters.items() if name not in names}
        return self._statement(names).execute(connection, {**values, **same, _ROWS: as_parameter(rows, names)})

    def parameters(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return the parameters of the statement for one row."""
        return {parameter: row[name] for name, parameter in self._parameters.items()}

    def given(self) -> dict[str, sa.ColumnElement[Any]]:
        """Return the values of one row, as parameters."""
        return {name: sa.bindparam(parameter, type_=self._types[name]) for name, parameter in self._parameters.items()}

    def on_one_row(self) -> sa.Update | sa.Insert:
        return self._build(self.given(), now_ms())

    def _names(self, rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        """Return the names of the values to send for each row: the key, and the values that differ."""
        everything, count = tuple(self._types), len(rows)
        # Counting is twice as fast as `any` with a generator (2026-11-23).
        names = tuple(
            [
                name
                for name in self._types
                if name == _KEY or (values := [row[name] for row in rows]).count(values[0]) < count
            ]
        )
        if names not in self._statements and everything in self._statements:
            self._rare[names] += 1
            return names if self._rare[names] > _OFTEN else everything
        return names

    def _statement(self, names: tuple[str, ...]) -> Statement:
        """Return the statement for rows that differ in `names`; the statement for one row if `names` is empty."""
        if names not in self._statements:
            rows = [sa.column(self._parameters[name], self._types[name]) for name in names]
            listed = dict(zip(names, rows_in(_ROWS, rows).c, strict=True)) if names else {}
            build = self._build({**self.given(), **listed}, now_once()) if names else self.on_one_row()
            self._statements[names] = Statement(build)
        return self._statements[names]


GivenRow = Mapping[str, Any]
"""The given values of a new row by column name. Columns without a value become NULL."""

Values = Callable[[GivenColumns, sa.ColumnElement[int]], GivenColumns]
"""Computes the columns of a row from its given values and the database's clock."""

_MOST_ROWS = 2000
"""The maximum number of rows of one INSERT."""
_MOST_CHARACTERS = 500_000
"""The maximum number of characters of the values of one INSERT. MariaDB limits the length of a statement, and escaping
may double this length."""


class BulkInsert:
    """INSERTs of new rows into one table.

    A column for which no row has a value is left out. A column in which all rows have the same value is shared: its
    value is sent once. A statement is built once for each combination of given columns and shared columns.
    """

    def __init__(
        self,
        dialect: type[Dialect],
        table: sa.Table,
        given: Sequence[sa.Column[Any]],
        values: Values,
        further: Callable[[sa.Insert], sa.Insert] | None = None,
    ) -> None:
        """`given`: the columns that a row may have. `values`: computes the row from these columns.

        `further` extends an INSERT by more work on each new row. The row count must stay the same.
        """
        self._dialect = dialect
        self._table = table
        self._types = {field.name: field.type for field in given}
        self._values = values
        self._further = further
        self._statements = cache(self._build)

    def execute(self, connection: sa.Connection, rows: Sequence[GivenRow], values: Mapping[str, Any]) -> int:
        """Insert the rows whose keys are new, and return their number.

        The number may be too small if the server does not count new rows. `values`: other parameters. Needs a
        transaction of the caller for more than one row.
        """
        return run_steps(connection, self.steps(connection, rows, values))

    def steps(self, connection: Compilable, rows: Sequence[GivenRow], values: Mapping[str, Any]) -> Steps[int]:
        """Do what `execute` does, as steps for connections like `connection`."""
        inserted = 0
        for page in _pages(rows):
            inserted += yield from self._insert(connection, page, values)
        return inserted

    def sql(self, connection: Compilable, row: GivenRow, values: Mapping[str, Any]) -> tuple[str, Any]:
        """Return one statement that inserts `row` if its key is new.

        If the key exists, the row count is 0. If the server does not count new rows, the statement fails instead, and
        changes nothing else in the transaction.
        """
        (strict, lenient), parameters = self._page([row], values)
        return (lenient if self._dialect.counts_new_rows else strict).step(connection, parameters)

    def _page(
        self, page: Sequence[GivenRow], values: Mapping[str, Any]
    ) -> tuple[tuple[Statement, Statement], Mapping[str, Any]]:
        """Return the statements of `_build` and their parameters for a page of rows."""
        same = page[0] if len(page) == 1 else _same(page)
        differing = () if len(page) == 1 else tuple(sorted(set().union(*page) - same.keys()))
        parameters = {**{_PREFIX + name: value for name, value in same.items()}, **values}
        if differing:
            parameters[_ROWS] = as_parameter(page, differing)
        return self._statements(tuple(same), differing), parameters

    def _insert(self, connection: Compilable, page: Sequence[GivenRow], values: Mapping[str, Any]) -> Steps[int]:
        (strict, lenient), parameters = self._page(page, values)
        if self._dialect.counts_new_rows:
            inserted: int = (yield lenient.step(connection, parameters)).rowcount
            return inserted
        try:
            inserted = (yield strict.step(connection, parameters)).rowcount
        except Exception as error:  # the failed INSERT has changed nothing, and the transaction can go on
            if not self._dialect.is_duplicate_key(error):
                raise
            if len(page) > 1:
                yield lenient.step(connection, parameters)
            return 0
        return inserted

    def _build(self, same: Collection[str], differing: Collection[str]) -> tuple[Statement, Statement]:
        """Return an INSERT that fails if a key exists, and an INSERT that skips rows whose keys exist.

        `same`: the columns that all rows share. `differing`: the other columns; empty for a single row.
        """
        rows = rows_in(_ROWS, [sa.column(_PREFIX + name, self._types[name]) for name in differing])
        given: dict[str, sa.ColumnElement[Any]] = {name: sa.null() for name in self._types}
        given |= {name: sa.bindparam(_PREFIX + name, type_=self._types[name]) for name in same}
        given |= {name: rows.c[_PREFIX + name] for name in differing}
        inserts = [sa.insert(self._table), self._dialect.insert_new(self._table)]
        if differing:
            values = self._values(given, now_once())
            # Without a condition SQLite reads ON CONFLICT as the ON of a join.
            chosen = sa.select(*values.values()).select_from(rows).where(sa.literal_column("1 = 1"))
            inserts = [each.from_select(list(values), chosen) for each in inserts]
        else:
            values = self._values(given, now_ms())
            inserts = [each.values(values) for each in inserts]
        strict, lenient = [Statement(each if self._further is None else self._further(each)) for each in inserts]
        return strict, lenient


def _same(page: Sequence[GivenRow]) -> GivenRow:
    """Return the columns whose values are equal in all rows, with these values."""
    count = len(page)
    return {name: value for name, value in page[0].items() if [row.get(name) for row in page].count(value) == count}


def _pages(rows: Sequence[GivenRow]) -> list[list[GivenRow]]:
    """Split the rows, in their order, into pages. One statement inserts one page."""
    pages: list[list[GivenRow]] = []
    size = 0
    for row in rows:
        length = len(row["data"])
        if not pages or len(pages[-1]) >= _MOST_ROWS or size + length > _MOST_CHARACTERS:
            pages.append([])
            size = 0
        pages[-1].append(row)
        size += length
    return pages


class given_rows(FunctionElement[str]):  # noqa: N801 – spelled like the SQL function it stands for
    """The rows in a parameter that `as_parameter` made. Each dialect compiles this construct in its own way.

    Each row is an array of values. `fields`: the names and types of the columns.
    """

    type = sa.String()
    inherit_cache = False

    def __init__(self, parameter: sa.ColumnElement[str], fields: Sequence[sa.ColumnClause[Any]]) -> None:
        super().__init__(parameter)
        self.fields = [(field.name, field.type) for field in fields]


def rows_in(parameter: str, columns: Sequence[sa.ColumnClause[Any]]) -> sa.FromClause:
    """Return the rows in a parameter that `as_parameter` made, as a FROM clause with these columns."""
    return given_rows(sa.bindparam(parameter, type_=sa.String), columns).table_valued(*columns, name="given")


_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def as_parameter(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    """Return the values of `rows` as JSON, in the order of `names`: the parameter of `given_rows`."""
    return _ENCODER.encode(list(zip(*([row.get(name) for row in rows] for name in names), strict=True)))


def column_as_parameter(values: Iterable[Any]) -> str:
    """Return the parameter of `given_rows` for rows with one column."""
    return _ENCODER.encode(list(zip(values)))
