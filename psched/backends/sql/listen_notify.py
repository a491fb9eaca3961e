"""PostgreSQL wakes idle workers: triggers that NOTIFY, and a connection that LISTENs.

The triggers notify when any client makes a row due within some seconds; the notification arrives when that commits. Its
payload is an equals sign and the row's type. PostgreSQL commits transactions that notify one after another.
"""

from __future__ import annotations

import secrets
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from sqlalchemy import DDL, Connection, Table, text
from sqlalchemy.sql.elements import TextClause

from psched.store import Accepts

HORIZON = 10_000
"""Milliseconds: who is called looks this often without being called, and so need not be told of what is due later."""

_LONGEST_CHANNEL = 63
_FATAL = 7
"""libpq's PGRES_FATAL_ERROR."""

_NOW = "CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT)"

_MUTEX = text("SELECT pg_advisory_xact_lock(hashtext('psched bell'))")
_PRESENT = text("SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass(quote_ident(:table)) AND tgname = :name")
_PROOF = text(
    "SELECT pg_notify(:channel, :token) WHERE EXISTS (SELECT FROM pg_trigger"
    " WHERE tgrelid = to_regclass(quote_ident(:table)) AND tgname = :name)"
)
_TRIGGER = "psched_ring"

_STEPS = (
    (
        "CREATE OR REPLACE FUNCTION psched_ring() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_notify(TG_ARGV[0], '=' || NEW.type); RETURN NULL; END $$"
    ),
    (
        "CREATE OR REPLACE FUNCTION psched_ring_new() RETURNS trigger LANGUAGE plpgsql AS"  # noqa: S608 – constants
        " $$ BEGIN PERFORM pg_notify(TG_ARGV[0], '=' || type) FROM (SELECT DISTINCT type FROM fresh"
        f" WHERE status = 'waiting' AND due <= {_NOW} + {HORIZON}) AS types; RETURN NULL; END $$"
    ),
    (
        "CREATE TRIGGER psched_ring_new AFTER INSERT ON %(fullname)s REFERENCING NEW TABLE AS fresh"
        " FOR EACH STATEMENT EXECUTE FUNCTION psched_ring_new('%(channel)s')"
    ),
    (
        f"CREATE TRIGGER {_TRIGGER} AFTER UPDATE OF due ON %(fullname)s FOR EACH ROW"
        f" WHEN (NEW.status = 'waiting' AND NEW.due <= {_NOW} + {HORIZON})"
        " EXECUTE FUNCTION psched_ring('%(channel)s')"
    ),
)
"""The triggers that notify for the rows of a table; the names are quoted by SQLAlchemy."""


class Connections(Protocol):
    """What a bell needs of its database."""

    def dedicated(self) -> Any:
        """Return a new connection of the pool's that belongs to the pool no more."""
        ...

    def execute(self, statement: TextClause, values: dict[str, Any]) -> Any:
        """Execute a statement on another connection and return its first value."""
        ...


def channel_of(table: str) -> str:
    """Return the channel of notifications for the rows of `table`."""
    return f"psched_{table}"[:_LONGEST_CHANNEL]


def has_triggers(connection: Connection, table: str) -> bool:
    """Return whether the table has the triggers that notify."""
    return bool(connection.execute(_PRESENT, {"table": table, "name": _TRIGGER}).scalar())


def create_triggers(connection: Connection, table: Table) -> None:
    """Create the triggers that notify. Call in a transaction; two processes that do so at once take turns."""
    connection.execute(_MUTEX)
    if not has_triggers(connection, table.name):
        for step in _STEPS:
            ddl = DDL(step, context={"channel": channel_of(table.name)})  # type: ignore[no-untyped-call]
            connection.execute(ddl.against(table))


class ListenWakeup:
    """A `Bell` by LISTEN, for psycopg 3. It speaks libpq's asynchronous commands, so that `disarm` need not wait.

    It is proven when it has heard a ring of its own that was sent from another connection: a pooler that gives each
    transaction another session takes LISTEN and never delivers anything.
    """

    def __init__(self, table: str, connections: Connections, patience: float, accepts: Accepts | None = None) -> None:
        """Connects to nothing yet. `patience`: seconds the server may take for an answer.

        `accepts`: tells for which types it rings; None: for all.
        """
        self._accepts = accepts
        self.proven = False
        self._table = table
        self._channel = channel_of(table)
        self._connections = connections
        self._patience = patience
        self._token = secrets.token_hex(8)
        self._connection: Any = None
        self._listening = self._asked = self._heard = False

    def arm(self, seconds: float) -> None:
        """Listen from now on. Raises the driver's errors."""
        if self._connection is None:
            self._connection = self._connections.dedicated()
            self.proven = self._asked = False
        if not self._listening:
            self._heard = False
            self._try(lambda: self._command("LISTEN"))
            self._listening = True
        if not self._asked:
            names = {"channel": self._channel, "token": self._token, "table": self._table, "name": _TRIGGER}
            self._connections.execute(_PROOF, names)
            self._asked = True

    def fileno(self) -> int:
        """Return the descriptor of its connection."""
        return int(self._pgconn.socket)

    def rang(self) -> bool:
        """Return whether it has rung since the last call."""
        self._try(self._collect)
        heard, self._heard = self._heard, False
        return heard

    def disarm(self) -> None:
        """Listen no more; the server's answer is read when it is armed again."""
        if self._connection is None or not self._listening:
            return
        self._listening = False
        with suppress(Exception):  # a connection that is lost does not ring either; arming it will tell
            self._send("UNLISTEN")

    def close(self) -> None:
        """Close its connection; idempotent."""
        connection, self._connection = self._connection, None
        self._listening = self.proven = False
        if connection is not None:
            connection.close()

    @property
    def _pgconn(self) -> Any:
        return self._connection.dbapi_connection.pgconn

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException:
            self.close()
            raise

    def _command(self, verb: str) -> None:
        self._await_answers()
        self._send(verb)
        self._await_answers()

    def _send(self, verb: str) -> None:
        name = self._channel.replace('"', '""')
        self._pgconn.send_query(f'{verb} "{name}"'.encode())
        self._pgconn.flush()

    def _await_answers(self) -> None:
        """Read the answers to all that was sent. Raises the driver's OperationalError."""
        end = time.monotonic() + self._patience
        self._collect()
        while self._pgconn.is_busy():
            self._pgconn.flush()
            left = end - time.monotonic()
            if left <= 0:
                raise self._error(f"the server has not answered for {self._patience:g} s")
            poll = select.poll()
            poll.register(self._pgconn.socket, select.POLLIN)
            poll.poll(left * 1000)
            self._collect()
        while (result := self._pgconn.get_result()) is not None:
            if result.status == _FATAL:
                raise self._error(result.error_message.decode(errors="replace"))

    def _collect(self) -> None:
        """Take what has arrived. Never waits."""
        self._pgconn.consume_input()
        while (notice := self._pgconn.notifies()) is not None:
            told = notice.extra.decode(errors="replace")
            if told.startswith("="):
                self._heard = self._heard or self._accepts is None or self._accepts(told[1:])
            elif told == self._token:
                self.proven = True

    def _error(self, words: str) -> Exception:
        error: Exception = self._connection.dbapi_connection.OperationalError(words)
        return error
