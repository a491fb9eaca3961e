"""Statements for PostgreSQL behind a pooler, such as PgBouncer, that may give each transaction another session.

Nothing outlives a transaction: each transaction gets its settings by SET LOCAL, and no statement is prepared on the
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from psycopg import ClientCursor, Connection, Error
from psycopg.adapt import Dumper
from psycopg.pq import TransactionStatus

from psched.errors import PoolerError


class TransactionCursor(ClientCursor[Any]):
    """Sends the settings of a transaction and its first statement as one message, to save a round trip.

    PostgreSQL executes the statements of one message in one transaction. If the last statement is BEGIN, a transaction
    stays open.
    """

    def __init__(self, connection: Connection[Any], *, settings: str, **options: Any) -> None:
        super().__init__(connection, **options)
        self._settings = settings

    def execute(self, query: Any, params: Any = None, **options: Any) -> TransactionCursor:
        if self.connection.pgconn.transaction_status != TransactionStatus.IDLE:
            super().execute(query, params, **options)
            return self
        super().execute(f"{self._settings}; {query}", params, **options)
        while self.nextset():  # skip to the answer of the last statement
            pass
        return self


class IntLiteral(Dumper):
    """Writes negative numbers in parentheses: `-2147483648::INTEGER` would be the negation of a number out of range."""

    def dump(self, obj: int) -> bytes:
        return b"%d" % obj

    def quote(self, obj: int) -> bytes:
        return b"(%d)" % obj if obj < 0 else b"%d" % obj


def use_transactions(connection: Any, settings: Mapping[str, str]) -> None:
    """Make the cursors of a new connection `TransactionCursor`s.

    Raises PoolerError if the pooler forbids transactions.
    """
    local = "".join(f"; SET LOCAL {name} = {value}" for name, value in settings.items())
    text = f"SET TRANSACTION ISOLATION LEVEL READ COMMITTED{local}"
    connection.adapters.register_dumper(int, IntLiteral)
    connection.cursor_factory = partial(TransactionCursor, settings=text)
    try:
        for statement in ("BEGIN", "ROLLBACK"):
            connection.execute(statement)
    except Error as error:
        if "transaction blocks not allowed" not in str(error):
            raise
        connection.close()
        raise PoolerError(
            "the connection pooler in front of this PostgreSQL allows no transactions; set its pool_mode = transaction "
            "(PgBouncer), or connect to PostgreSQL directly"
        ) from error
