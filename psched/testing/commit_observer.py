"""Observes the commits of a process: SQLAlchemy, Django, and the drivers sqlite3, psycopg, PyMySQL and mysqlclient.

SQLAlchemy and Django commit through these drivers. A commit is a call of `commit()`, the statement COMMIT that ends a
transaction, or any statement that writes in autocommit mode. Only connections of the process that calls `observe` are
observed, and connections of sqlite3 only if they are opened after that call.
"""

from __future__ import annotations

import inspect
import linecache
import re
import sqlite3
import sys
import sysconfig
import traceback
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, Literal, Protocol, cast

Phase = Literal["before", "after"]


class Observer(Protocol):
    def __call__(self, phase: Phase, statement: str) -> None:
        """Called before and after each commit, in the thread of the commit.

        `statement`: COMMIT, or a statement in autocommit mode.
        """


_WORD = re.compile(r"(?:\s+|--[^\n]*\n|/\*.*?\*/|\()*([a-zA-Z]*)", re.DOTALL)
_COMMITS = frozenset({"COMMIT", "END"})
_BEGINS = frozenset({"BEGIN", "START"})
_READS = frozenset(
    {"DECLARE", "DESCRIBE", "EXPLAIN", "FETCH", "LISTEN", "PRAGMA", "RELEASE", "ROLLBACK"}
    | {"SAVEPOINT", "SELECT", "SET", "SHOW", "UNLISTEN", "USE", "VALUES"}
)
"""First words of statements that commit nothing in autocommit mode."""

_Commits = Callable[..., str | None]
"""Takes the arguments of a driver's method. Returns the result of `_commit_of` for the statement in these arguments."""


def observe(observer: Observer) -> None:
    """Call `observer` at each commit of this process from now on.

    The observer cannot be removed, so call this function in a forked process.
    """
    _observe_sqlite(observer)
    for module, install in _DRIVERS.items():
        if module in sys.modules:
            install(sys.modules[module], observer)
        else:
            sys.meta_path.insert(0, _AfterImport(module, install, observer))


class _AfterImport:
    """A finder for sys.meta_path that calls `install` after `module` was imported."""

    def __init__(self, module: str, install: Callable[[Any, Observer], None], observer: Observer) -> None:
        self._module = module
        self._install = install
        self._observer = observer

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != self._module:
            return None
        sys.meta_path.remove(cast("Any", self))
        from importlib.util import find_spec  # noqa: PLC0415 – sys.meta_path must be as it was

        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: Any) -> None:
                execute(module)
                self._install(module, self._observer)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def first_word(statement: object) -> str:
    """Return the first word of a statement in capitals. Skips comments and parentheses before it."""
    found = _WORD.match(_text(statement))
    return found[1].upper() if found else ""


def _text(statement: object) -> str:
    return statement.decode(errors="replace") if isinstance(statement, bytes) else str(statement)


def writes(statement: object) -> bool:
    """Return whether a statement may write. In autocommit mode such a statement commits."""
    word = first_word(statement)
    return bool(word) and word not in _READS and word not in _BEGINS and word not in _COMMITS


def _commit_of(statement: object, in_transaction: bool, autocommits: bool) -> str | None:
    """Return "COMMIT" if `statement` commits a transaction, or None if it commits nothing.

    If `statement` is a write in autocommit mode, return its text.
    """
    word = first_word(statement)
    if word in _COMMITS:
        return "COMMIT" if in_transaction else None
    if autocommits and not in_transaction and writes(statement):
        return " ".join(_text(statement).split())
    return None


def _observed(method: Callable[..., Any], commits: _Commits, observer: Observer) -> Callable[..., Any]:
    """Return a function that calls `method`, and calls `observer` before and after a commit."""
    if inspect.iscoroutinefunction(method):

        @wraps(method)
        async def observed_coroutine(*args: Any, **kwargs: Any) -> Any:
            statement = commits(*args, **kwargs)
            if statement is None:
                return await method(*args, **kwargs)
            observer("before", statement)
            result = await method(*args, **kwargs)
            observer("after", statement)
            return result

        return observed_coroutine

    @wraps(method)
    def observed(*args: Any, **kwargs: Any) -> Any:
        statement = commits(*args, **kwargs)
        if statement is None:
            return method(*args, **kwargs)
        observer("before", statement)
        result = method(*args, **kwargs)
        observer("after", statement)
        return result

    return observed


def _replace(owner: type, names: tuple[str, ...], commits: _Commits, observer: Observer) -> None:
    for name in names:
        if name in vars(owner) or hasattr(owner, name):
            setattr(owner, name, _observed(getattr(owner, name), commits, observer))


def _observe_sqlite(observer: Observer) -> None:
    """Observe sqlite3 by subclasses of its connection and cursor, because its classes themselves cannot be changed."""
    connect = sqlite3.connect
    kinds: dict[type, type] = {}

    def autocommits(connection: sqlite3.Connection) -> bool:
        return connection.isolation_level is None or getattr(connection, "autocommit", -1) is True

    def of_commit(connection: sqlite3.Connection, *_: object) -> str | None:
        return "COMMIT" if connection.in_transaction else None

    def of_exit(connection: sqlite3.Connection, error: object = None, *_: object) -> str | None:
        return of_commit(connection) if error is None else None

    def of_execute(cursor: sqlite3.Cursor, statement: object = "", *_: object) -> str | None:
        connection = cursor.connection
        # Without autocommit, only INSERT, UPDATE, DELETE and REPLACE begin a transaction.
        alone = first_word(statement) not in {"INSERT", "UPDATE", "DELETE", "REPLACE"}
        legacy = getattr(connection, "autocommit", -1) == -1
        return _commit_of(statement, connection.in_transaction, autocommits(connection) or (alone and legacy))

    def of_script(cursor: sqlite3.Cursor, *_: object) -> str | None:
        return "a script"

    def cursor_kind(kind: type) -> type:
        if kind not in kinds:
            made = kinds[kind] = type(kind.__name__, (kind,), {})
            _replace(made, ("execute", "executemany"), of_execute, observer)
            _replace(made, ("executescript",), of_script, observer)
        return kinds[kind]

    def connection_kind(kind: type) -> type:
        if kind not in kinds:

            def cursor(self: Any, factory: type = sqlite3.Cursor) -> Any:
                return kind.cursor(self, cursor_kind(factory))  # type: ignore[attr-defined]

            def shortcut(name: str) -> Callable[..., Any]:
                return lambda self, *arguments: getattr(self.cursor(), name)(*arguments)

            names = ("execute", "executemany", "executescript")
            made = kinds[kind] = type(
                kind.__name__, (kind,), {"cursor": cursor, **{name: shortcut(name) for name in names}}
            )
            _replace(made, ("commit",), of_commit, observer)
            _replace(made, ("__exit__",), of_exit, observer)
        return kinds[kind]

    @wraps(connect)
    def observed_connect(*args: Any, factory: type = sqlite3.Connection, **options: Any) -> Any:
        return connect(*args, factory=connection_kind(factory), **options)

    sqlite3.connect = observed_connect
    sqlite3.dbapi2.connect = observed_connect


def _observe_psycopg(psycopg: Any, observer: Observer) -> None:
    idle = psycopg.pq.TransactionStatus.IDLE

    def of_commit(connection: Any, *_: object) -> str | None:
        return None if connection.info.transaction_status == idle else "COMMIT"

    def of_execute(cursor: Any, statement: object = "", *_: object, **__: object) -> str | None:
        connection = cursor.connection
        text = statement.as_string(connection) if hasattr(statement, "as_string") else statement
        return _commit_of(text, of_commit(connection) is not None, connection.autocommit)

    def of_exit(transaction: Any, error: object = None, *_: object) -> str | None:
        is_committed = error is None and not transaction.savepoint_name and not transaction.force_rollback
        return of_commit(transaction.connection) if is_committed else None

    for connection in (psycopg.Connection, psycopg.AsyncConnection):
        _replace(connection, ("commit",), of_commit, observer)
    for cursor in (psycopg.Cursor, psycopg.AsyncCursor):
        _replace(cursor, ("execute", "executemany"), of_execute, observer)
    _replace(psycopg.Transaction, ("__exit__",), of_exit, observer)
    _replace(psycopg.AsyncTransaction, ("__aexit__",), of_exit, observer)


def _observe_pymysql(pymysql: Any, observer: Observer) -> None:
    in_transaction = pymysql.constants.SERVER_STATUS.SERVER_STATUS_IN_TRANS

    def of_commit(connection: Any) -> str | None:
        return "COMMIT" if connection.server_status & in_transaction else None

    def of_query(connection: Any, statement: object, *_: object, **__: object) -> str | None:
        return _commit_of(statement, of_commit(connection) is not None, connection.get_autocommit())

    _replace(pymysql.connections.Connection, ("commit",), of_commit, observer)
    _replace(pymysql.connections.Connection, ("query",), of_query, observer)


def _observe_mysqlclient(connections: Any, observer: Observer) -> None:
    """Observe mysqlclient. Every `commit()` counts, because this driver does not show whether a transaction is open."""
    begun: set[int] = set()
    """Connections in autocommit mode that have an open transaction."""

    def of_commit(connection: Any) -> str | None:
        begun.discard(id(connection))
        return "COMMIT"

    def of_rollback(connection: Any) -> str | None:
        begun.discard(id(connection))
        return None

    def of_query(connection: Any, statement: object) -> str | None:
        autocommits = connection.get_autocommit()
        in_transaction = id(connection) in begun or not autocommits
        if autocommits and first_word(statement) in _BEGINS:
            begun.add(id(connection))
        elif first_word(statement) in {*_COMMITS, "ROLLBACK"}:
            begun.discard(id(connection))
        return _commit_of(statement, in_transaction, autocommits)

    _replace(connections.Connection, ("commit",), of_commit, observer)
    _replace(connections.Connection, ("rollback",), of_rollback, observer)
    _replace(connections.Connection, ("query",), of_query, observer)


_DRIVERS: dict[str, Callable[[Any, Observer], None]] = {
    "psycopg": _observe_psycopg,
    "pymysql": _observe_pymysql,
    "MySQLdb.connections": _observe_mysqlclient,
}
"""Module → function that observes its connections."""

_LIBRARIES = tuple(str(Path(sysconfig.get_path(name))) for name in ("stdlib", "purelib", "platlib"))
_PSCHED = str(Path(__file__).parents[1])


def users_line() -> str | None:
    """Return the innermost line of the application on the stack, such as `tasks.py:31: session.commit()`.

    Returns None if only libraries are on the stack, as in a thread of aiosqlite.
    """
    for frame, number in traceback.walk_stack(None):
        file = frame.f_code.co_filename
        if not file.startswith((*_LIBRARIES, _PSCHED, "<")):
            return f"{_short(file)}:{number}: {linecache.getline(file, number).strip()}"
    return None


def _short(file: str) -> str:
    path = Path(file)
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else file
