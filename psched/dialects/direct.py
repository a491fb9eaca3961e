"""A pooled connection that is spoken to by the driver's own cursor. Used in children and clients.

For single statements whose text is known: what SQLAlchemy does around each costs a client more than the driver does.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Dialect, PoolProxiedConnection
from sqlalchemy.exc import DBAPIError


class Direct:
    """Has of SQLAlchemy's Connection what a prepared statement needs, and raises the same errors."""

    def __init__(self, connection: PoolProxiedConnection, dialect: Dialect) -> None:
        self._connection = connection
        self.dialect = dialect

    def exec_driver_sql(self, text: str, parameters: Any) -> Any:
        """Execute a statement; returns the driver's cursor. Raises DBAPIError."""
        cursor = None
        try:
            cursor = self._connection.cursor()
            cursor.execute(text, parameters)
        except self.dialect.loaded_dbapi.Error as error:
            lost = self.dialect.is_disconnect(error, self._connection, cursor)
            raise wrapped(error, self.dialect, text, lost) from error
        return cursor


def wrapped(error: Any, dialect: Dialect, text: str | None = None, lost: bool = False) -> BaseException:
    """Return a driver's error as SQLAlchemy raises it, without the statement's parameters."""
    kind: Any = dialect.loaded_dbapi.Error
    options: dict[str, Any] = {"hide_parameters": True, "connection_invalidated": lost, "dialect": dialect}
    made: BaseException = DBAPIError.instance(text, None, error, kind, **options)
    return made
