"""A pooled connection that executes statements with the driver's own cursor.

For compiled statements: SQLAlchemy's own work on each costs a client more than the driver's.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar, cast

from sqlalchemy import Connection, Engine, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError

from psched.backends.sql.statement import Executing

_CURSOR = "psched cursor"
"""What a connection's cursor is called among the things that belong to it, and go with it when it is lost."""


class RawConnection:
    """Has of SQLAlchemy's Connection what a prepared statement needs, and raises the same errors."""

    def __init__(self, engine: Engine, keeps_cursor: bool = False) -> None:
        """Take a connection of the pool. Raises what the driver does.

        `keeps_cursor`: all statements on this connection have one cursor, and so the answer of the last one only.
        """
        self._pool = engine.pool
        self._connection: PoolProxiedConnection = engine.raw_connection()
        self._engine = engine
        self._keeps_cursor = keeps_cursor
        self._whole: Connection | None = None
        self.dialect = engine.dialect

    @property
    def can_be_kept(self) -> bool:
        """Whether it need not be given back: not to a pool that is gone, nor to what SQLAlchemy has of it."""
        return self._whole is None and self._engine.pool is self._pool

    @property
    def as_sqlalchemy(self) -> Connection:
        """The same connection as SQLAlchemy has it, for statements that it has to compile."""
        if self._whole is None:
            self._whole = Connection(self._engine, self._connection)
        return self._whole

    def exec_driver_sql(self, text: str, parameters: Any = ()) -> Any:
        """Execute a statement; returns the driver's cursor, to be read before the next one. Raises DBAPIError."""
        cursor = None
        try:
            cursor = self._kept_cursor() if self._keeps_cursor else self._connection.cursor()
            cursor.execute(text, parameters)
        except self.dialect.loaded_dbapi.Error as error:
            lost = self.dialect.is_disconnect(error, self._connection, cursor)
            raise wrapped(error, self.dialect, text, lost) from error
        return cursor

    def _kept_cursor(self) -> Any:
        kept = self._connection.info
        if _CURSOR not in kept:
            kept[_CURSOR] = self._connection.cursor()
        return kept[_CURSOR]

    def invalidate(self) -> None:
        """Close the driver's connection, which the pool is not to have again; idempotent."""
        if self._whole is not None:
            self._whole.invalidate()
        elif self._connection.is_valid:
            self._connection.invalidate()

    def close(self) -> None:
        """Give the connection back to the pool; close it when the pool is gone, as nothing else would."""
        if self._engine.pool is not self._pool:
            self.invalidate()
        (self._connection if self._whole is None else self._whole).close()


def as_sqlalchemy(connection: Executing) -> Connection:
    """Return SQLAlchemy's Connection of what executes prepared statements."""
    return connection if isinstance(connection, Connection) else cast("RawConnection", connection).as_sqlalchemy


def wrapped(error: Any, dialect: Any, text: str | None = None, lost: bool = False) -> BaseException:
    """Return a driver's error as SQLAlchemy raises it, without the statement's parameters."""
    kind: Any = dialect.loaded_dbapi.Error
    options: dict[str, Any] = {"hide_parameters": True, "connection_invalidated": lost, "dialect": dialect}
    made: BaseException = DBAPIError.instance(text, None, error, kind, **options)
    return made


T = TypeVar("T")


class IdleConnections:
    """Keeps connections that are the pool's all the same: whoever asks the pool is first given what is kept.

    Safe to use from several threads.
    """

    def __init__(self, most: int) -> None:
        """`most`: connections that are kept."""
        self._most = most
        self._idle: deque[RawConnection] = deque()
        self._lock = threading.Lock()
        self._asking = 0

    def take(self, connect: Callable[[], RawConnection]) -> RawConnection:
        """Return one that was kept, else what `connect` gets from the pool."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.asking(connect)

    def keep(self, direct: RawConnection) -> None:
        """Keep a connection for the next statement, unless a thread waits for the pool."""
        if not direct.can_be_kept or len(self._idle) >= self._most:
            direct.close()
            return
        self._idle.append(direct)
        if self._asking or not self._most:  # looked at last: who begins to ask from now on sees what is kept
            self.give_back()

    def asking(self, ask: Callable[[], T]) -> T:
        """Return what `ask` gets from the pool, which has everything that is kept until then."""
        with self._lock:
            self._asking += 1
        try:
            self.give_back()
            return ask()
        finally:
            with self._lock:
                self._asking -= 1

    def close(self) -> None:
        """Keep nothing from now on; idempotent."""
        self._most = 0
        self.give_back()

    def anew(self) -> IdleConnections:
        """Return one like this that keeps nothing yet."""
        return IdleConnections(self._most)

    def give_back(self) -> None:
        """Give all that is kept back to the pool."""
        while True:
            try:
                direct = self._idle.pop()
            except IndexError:
                return
            direct.close()
