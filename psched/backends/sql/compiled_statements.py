"""Statements that SQLAlchemy compiles once and the driver executes. `bulk_statements.py` has those for many rows.

SQLAlchemy's own execution and pool take two to three times as much processor time: 73 instead of 24 microseconds for a
statement on SQLite, 485 instead of 145 on PostgreSQL (2026-11-22).

SQLAlchemy takes some 30 ms to build the SQL of a store. So all stores of a process on tables of the same names share
their statements (`cached`). Threads only add entries to shared objects and never change an entry, so they need no lock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

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
    """Execute the statements of `steps`, and return the result of `steps`.

    A driver's error is raised inside `steps`, where it can be caught.
    """
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
    """Decorate a method that sets attributes. It runs once for equal arguments; later objects get the same values."""

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
    """A statement in the driver's form: its text and the names of its parameters.

    `constants`: the values of the parameters that the statement itself sets, by name. `places`: the names in the order
    of the parameters; None if the driver takes parameters by name. `names`: all names.
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
        at each execution. That takes 0.1 ms (2026-11-29).
        """
        everything = {**self.constants, **values} if self.constants else values
        if self.places is None:
            return {name: everything[name] for name in self.names}
        return tuple(map(everything.__getitem__, self.places))


class Statement:
    """A statement that is compiled once for each kind of connection. Safe to use from several threads.

    `then`: a second statement for the same transaction, executed if the first statement changes a row; see
    `Database.change_row`.
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
        """Execute the statement for `keys`, at least one. Return the rows as `rows` does. See `execute_on`."""
        found: Sequence[Sequence[Any]] = execute_text(connection, *self.step_on(connection, keys, {})).fetchall()
        return found
