"""A pooled connection that is spoken to by the driver's own cursor. Used in children and clients.

For statements whose text is known: what SQLAlchemy does around each costs a client more than the driver does.
"""

from __future__ import annotations

from typing import Any, cast

from sqlalchemy import Connection, Engine, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError

from psched.dialects.pairs import Executing


class Direct:
    """Has of SQLAlchemy's Connection what a prepared statement needs, and raises the same errors."""

    def __init__(self, connection: PoolProxiedConnection, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine
        self._whole: Connection | None = None
        self.dialect = engine.dialect

    @property
    def whole(self) -> Connection:
        """The same connection as SQLAlchemy has it, for statements that it has to compile."""
        if self._whole is None:
            self._whole = Connection(self._engine, self._connection)
        return self._whole

    def exec_driver_sql(self, text: str, parameters: Any = ()) -> Any:
        """Execute a statement; returns the driver's cursor. Raises DBAPIError."""
        cursor = None
        try:
            cursor = self._connection.cursor()
            cursor.execute(text, parameters)
        except self.dialect.loaded_dbapi.Error as error:
            lost = self.dialect.is_disconnect(error, self._connection, cursor)
            raise wrapped(error, self.dialect, text, lost) from error
        return cursor

    def invalidate(self) -> None:
        """Close the driver's connection, which the pool is not to have again."""
        (self._connection if self._whole is None else self._whole).invalidate()

    def close(self) -> None:
        """Give the connection back to the pool."""
        (self._connection if self._whole is None else self._whole).close()


def whole(connection: Executing) -> Connection:
    """Return SQLAlchemy's Connection of what executes prepared statements."""
    return connection if isinstance(connection, Connection) else cast("Direct", connection).whole


def wrapped(error: Any, dialect: Any, text: str | None = None, lost: bool = False) -> BaseException:
    """Return a driver's error as SQLAlchemy raises it, without the statement's parameters."""
    kind: Any = dialect.loaded_dbapi.Error
    options: dict[str, Any] = {"hide_parameters": True, "connection_invalidated": lost, "dialect": dialect}
    made: BaseException = DBAPIError.instance(text, None, error, kind, **options)
    return made
