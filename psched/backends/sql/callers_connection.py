"""Submits tasks in the caller's transaction, on the caller's connection.

SQLAlchemy's sessions and the connections of Django and the drivers are recognised by the names of their classes, so
that none of these modules is imported. psched executes statements with cursors of its own. The caller's transaction,
settings, row factories and cursors stay as they are. On connections of psycopg, nothing is prepared on the server.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from copy import copy
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Dialect

from psched.async_methods import run_in_thread
from psched.backends.sql.compiled_statements import Compilable, PooledConnection, Steps, execute_text, run_steps
from psched.backends.sql.database import Database
from psched.error_messages import shown
from psched.errors import NotSupportedError

T = TypeVar("T")

_SESSIONS = ("sqlalchemy.orm.session.Session", "sqlalchemy.orm.scoping.scoped_session")
_POOLED = "sqlalchemy.pool.base.PoolProxiedConnection"
_ASYNC_SQLALCHEMY = (
    "sqlalchemy.ext.asyncio.engine.AsyncConnection",
    "sqlalchemy.ext.asyncio.session.AsyncSession",
    "sqlalchemy.ext.asyncio.scoping.async_scoped_session",
)

PARAMSTYLES = ("format", "named", "numeric", "numeric_dollar", "pyformat", "qmark")
"""The parameter styles of PEP 249, and `$1` as in asyncpg."""


class Compiler(NamedTuple):
    """Stands in for a connection, to compile a statement when there is no connection."""

    dialect: Dialect


class Answer(NamedTuple):
    rowcount: int
    rows: Sequence[Sequence[Any]]

    def fetchall(self) -> Sequence[Sequence[Any]]:
        return self.rows


@dataclass(frozen=True)
class Driver:
    """How to execute a statement on a driver's connection.

    `database`: the name of the dialect; None if the connection's attribute `vendor` holds the name. `options`:
    arguments for a cursor's `execute`.
    """

    database: str | None
    paramstyle: str
    cursor: Callable[[Any], Any]
    options: Mapping[str, Any] = field(default_factory=dict)


def _sqlite_cursor(connection: Any) -> Any:
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor


def _cursor_class(module: str) -> Callable[[Any], Any]:
    return lambda connection: connection.cursor(import_module(module).Cursor)


def _psycopg_cursor(name: str) -> Callable[[Any], Any]:
    def cursor(connection: Any) -> Any:
        psycopg = import_module("psycopg")
        return getattr(psycopg, name)(connection, row_factory=psycopg.rows.tuple_row)

    return cursor


_UNPREPARED = {"prepare": False}  # the next statement may run in another session, behind a pooler

_DJANGO = Driver(None, "format", lambda connection: connection.cursor())
_DRIVERS = {
    "psycopg.Connection": Driver("postgresql", "pyformat", _psycopg_cursor("Cursor"), _UNPREPARED),
    "pymysql.connections.Connection": Driver("mysql", "format", _cursor_class("pymysql.cursors")),
    "MySQLdb.connections.Connection": Driver("mysql", "format", _cursor_class("MySQLdb.cursors")),
    "sqlite3.Connection": Driver("sqlite", "qmark", _sqlite_cursor),
    "django.db.backends.base.base.BaseDatabaseWrapper": _DJANGO,
    "django.utils.connection.ConnectionProxy": _DJANGO,
}
_ASYNC_PSYCOPG = "psycopg.AsyncConnection"
_ASYNC_DRIVERS = {
    _ASYNC_PSYCOPG: Driver("postgresql", "pyformat", _psycopg_cursor("AsyncCursor"), _UNPREPARED),
    "asyncpg.connection.Connection": Driver("postgresql", "numeric_dollar", lambda connection: connection),
    "asyncpg.pool.PoolConnectionProxy": Driver("postgresql", "numeric_dollar", lambda connection: connection),
}


@dataclass(frozen=True)
class DriverConnection:
    """A connection of a driver or of Django, for `run_steps`. `dialect`: compiles statements for this connection."""

    given: Any
    driver: Driver
    dialect: Dialect

    def exec_driver_sql(self, text: str, parameters: Any = ()) -> Answer:
        with closing(self.driver.cursor(self.given)) as cursor:
            cursor.execute(text, *([parameters] if parameters else []), **self.driver.options)
            return Answer(cursor.rowcount, _texts(cursor.fetchall()) if cursor.description else ())


@dataclass(frozen=True)
class AsyncDriverConnection:
    """A connection whose statements are awaited. `dialect`: compiles statements for this connection."""

    given: Any
    driver: Driver
    dialect: Dialect

    async def run_steps(self, steps: Steps[T]) -> T:
        """Execute the statements of `steps` and return the result of `steps`, as `run_steps` does."""
        try:
            statement = next(steps)
            while True:
                try:
                    answer = await self._execute(*statement)
                except Exception as error:  # noqa: BLE001 – `steps` raises it again, or handles it
                    statement = steps.throw(error)
                else:
                    statement = steps.send(answer)
        except StopIteration as end:
            result: T = end.value
            return result

    async def _execute(self, text: str, parameters: Any) -> Answer:
        if self.driver is _ASYNC_DRIVERS[_ASYNC_PSYCOPG]:
            async with self.driver.cursor(self.given) as cursor:
                await cursor.execute(text, parameters, **self.driver.options)
                return Answer(cursor.rowcount, await cursor.fetchall() if cursor.description else ())
        if text.startswith("SELECT"):
            rows = [tuple(row) for row in await self.given.fetch(text, *parameters)]
            return Answer(len(rows), rows)
        status = await self.given.execute(text, *parameters)
        return Answer(int(status.rpartition(" ")[2]), ())


def _texts(rows: Sequence[Sequence[Any]]) -> Sequence[Sequence[Any]]:
    """Return the rows with text decoded, because the connection may return text as bytes."""
    return [tuple(value.decode() if isinstance(value, bytes) else value for value in row) for row in rows]


def _names(given: object) -> list[str]:
    """Return the full names of an object's class and its bases; for a proxy, those of the object behind it."""
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in given.__class__.__mro__]


def _find(drivers: Mapping[str, T], given: object) -> T | None:
    return next((drivers[name] for name in _names(given) if name in drivers), None)


class CallersConnections:
    """Runs steps on a caller's connection, after a check that the connection reaches the queue's table."""

    def __init__(self, database: Database, table: str) -> None:
        self._database = database
        self._table = table
        self._locating = database.dialect.locating(table)
        self._known: Sequence[Any] | None = None

    def run(self, given: Any, steps: Callable[[Compilable], Steps[T]]) -> T:
        """Run `steps(connection)` and return its result. Raises NotSupportedError for an unusable connection."""
        if isinstance(given, PooledConnection):
            return run_steps(given, steps(given))
        connection = self._blocking(given)
        return run_steps(connection, self._checked(connection, steps))

    async def run_async(self, given: Any, steps: Callable[[Compilable], Steps[T]]) -> T:
        """Do what `run` does, for a connection whose statements are awaited."""
        names = _names(given)
        driver = _find(_ASYNC_DRIVERS, given)
        if driver is None and not any(name in _ASYNC_SQLALCHEMY for name in names):
            if isinstance(given, Connection) or not {*_DRIVERS, *_SESSIONS, _POOLED}.isdisjoint(names):
                raise NotSupportedError(
                    f"connection: {names[0]} blocks the event loop; call `submit` instead of `asubmit`, or pass an "
                    "AsyncSession, an AsyncConnection, or a connection of asyncpg"
                )
            raise self._unknown(given)
        await run_in_thread(self._location)
        if driver is None:
            result: T = await given.run_sync(self.run, steps)
            return result
        connection = AsyncDriverConnection(given, driver, self._compiler(driver, given))
        return await connection.run_steps(self._checked(connection, steps))

    def sql(self, paramstyle: str | None, make: Callable[[Compilable], tuple[str, Any]]) -> tuple[str, Any]:
        """Return the text and the parameters of the statement that `make(connection)` returns.

        `paramstyle`: a style of `PARAMSTYLES`; None: the style of psched's own driver. Raises ValueError for another
        style.
        """
        style = self._database.compiler.paramstyle if paramstyle is None else paramstyle
        if style not in PARAMSTYLES:
            raise ValueError(f"paramstyle must be one of {', '.join(PARAMSTYLES)}, got {shown(paramstyle)}")
        return make(Compiler(self._in_style(style)))

    def _blocking(self, given: Any) -> Any:
        """Return the blocking connection that `given` is or holds: SQLAlchemy's Connection, or a DriverConnection."""
        if any(name in _ASYNC_SQLALCHEMY for name in _names(given)) or _find(_ASYNC_DRIVERS, given) is not None:
            raise NotSupportedError(
                f"connection: {_names(given)[0]} is asynchronous; call `await queue.asubmit(…)` instead of `submit`"
            )
        connection = given.connection() if any(name in _SESSIONS for name in _names(given)) else given
        if isinstance(connection, Connection):
            self._check_kind(connection.dialect.name)
            return connection
        used = given.dbapi_connection if _POOLED in _names(given) else given
        if used is None:
            raise NotSupportedError("connection: it is already closed; submit before closing it, or open another one")
        driver = _find(_DRIVERS, used)
        if driver is None:
            raise self._unknown(used)
        return DriverConnection(used, driver, self._compiler(driver, used))

    def _compiler(self, driver: Driver, given: Any) -> Dialect:
        self._check_kind(given.vendor if driver.database is None else driver.database)
        self._location()  # connects, and so learns the server's version
        return self._in_style(driver.paramstyle)

    def _in_style(self, paramstyle: str) -> Dialect:
        """Return SQLAlchemy's dialect of the queue's database, for parameters in this style."""
        dialect: Any = copy(self._database.compiler)
        dialect.paramstyle, dialect.positional = paramstyle, paramstyle not in ("named", "pyformat")
        # the caller's session may quote names in another way than psched's
        dialect.identifier_preparer = dialect.preparer(dialect)
        compiler: Dialect = dialect
        return compiler

    def _check_kind(self, name: str) -> None:
        ours = self._database.dialect
        if name.replace("mariadb", "mysql") != ours.name:
            raise NotSupportedError(
                f"connection: it belongs to a {name} database, but the table {self._table} is in {ours.name}; submit "
                "without `connection`, or keep the table in that database"
            )
        if ours.ephemeral:
            raise NotSupportedError(
                f"connection: the table {self._table} is in memory, where only the queue's own connection reaches it; "
                "submit without `connection`, or keep the table in a file"
            )

    def _checked(self, connection: Compilable, steps: Callable[[Compilable], Steps[T]]) -> Steps[T]:
        """Run `steps`, if the connection reaches the queue's table."""
        answer = yield self._locating, ()
        found = _location_in(answer.fetchall())
        if found != self._location():
            self._known = None  # the table may have been created again
            if found != (ours := self._location()):
                raise NotSupportedError(self._mismatch(found, ours))
        return (yield from steps(connection))

    def _location(self) -> Sequence[Any]:
        """Return which database and table psched's own connections reach."""
        if self._known is None:
            self._known = self._database.run(lambda own, _: _location_in(execute_text(own, self._locating).fetchall()))
        return self._known

    def _mismatch(self, found: Sequence[Any], ours: Sequence[Any]) -> str:
        theirs, own = shown(found[0], 300), shown(ours[0], 300)
        if theirs != own:
            return (
                f"connection: it is on the database {theirs}, but the table {self._table} of the queue is in {own}; "
                "submit without `connection`, or keep the table in that database"
            )
        return (
            f"connection: in its session the name {self._table} does not mean the table of the queue; its server, its "
            f"database {theirs}, its temporary tables or its search_path differ; submit without `connection`, or "
            "configure that table"
        )

    def _unknown(self, given: object) -> NotSupportedError:
        return NotSupportedError(
            "connection: expected an SQLAlchemy Connection or Session, a Django connection, or a connection of "
            f"psycopg, asyncpg, PyMySQL, mysqlclient or sqlite3 on the queue's database, got {_names(given)[0]}; with "
            "another driver, execute the statement that `submit_sql` returns"
        )


def _location_in(rows: Sequence[Sequence[Any]]) -> tuple[Any, ...]:
    """Return the one row that `Dialect.locating` selects, with symbolic links in a path resolved."""
    [(name, *more)] = rows
    return (os.path.realpath(name) if isinstance(name, str) and name.startswith("/") else name, *more)
