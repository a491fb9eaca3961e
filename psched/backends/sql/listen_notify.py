"""Wakes idle workers by LISTEN and NOTIFY of PostgreSQL: triggers notify, and `ListenWakeup` receives.

The triggers notify when a client makes a row due within a few seconds. The notification arrives after the commit. Its
payload is an equals sign and the row's type. PostgreSQL commits transactions with notifications one at a time.
"""

from __future__ import annotations

import logging
import secrets
import select
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from sqlalchemy import DDL, Connection, Table, text
from sqlalchemy.exc import DBAPIError

from psched.backends.sql.database import Database
from psched.error_messages import one_line
from psched.errors import PoolerError
from psched.store import Accepts

log = logging.getLogger(__name__)

HORIZON = 10_000
"""A row that is due more than this many milliseconds from now causes no notification. An idle worker finds such a row
by polling.
"""

_LONGEST_CHANNEL = 63
_FATAL = 7
"""libpq's PGRES_FATAL_ERROR."""

_NOW = "CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT)"

_LOCK = text("SELECT pg_advisory_xact_lock(hashtext('psched triggers'))")
_HAS_TRIGGER = text(
    "SELECT count(*) FROM pg_trigger WHERE tgrelid = to_regclass(quote_ident(:table)) AND tgname = :name"
)
_NOTIFY_OURSELVES = text(
    "SELECT pg_notify(:channel, :token) WHERE EXISTS (SELECT FROM pg_trigger"
    " WHERE tgrelid = to_regclass(quote_ident(:table)) AND tgname = :name)"
)
_NOTIFY = text("SELECT pg_notify(:channel, :content)")
_TRIGGER = "psched_notify"

_STEPS = (
    (
        "CREATE OR REPLACE FUNCTION psched_notify() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_notify(TG_ARGV[0], '=' || NEW.type); RETURN NULL; END $$"
    ),
    (
        "CREATE OR REPLACE FUNCTION psched_notify_new() RETURNS trigger LANGUAGE plpgsql AS"  # noqa: S608 – constants
        " $$ BEGIN PERFORM pg_notify(TG_ARGV[0], '=' || type) FROM (SELECT DISTINCT type FROM fresh"
        f" WHERE status = 'waiting' AND due <= {_NOW} + {HORIZON}) AS types; RETURN NULL; END $$"
    ),
    (
        "CREATE TRIGGER psched_notify_new AFTER INSERT ON %(fullname)s REFERENCING NEW TABLE AS fresh"
        " FOR EACH STATEMENT EXECUTE FUNCTION psched_notify_new('%(channel)s')"
    ),
    (
        f"CREATE TRIGGER {_TRIGGER} AFTER UPDATE OF due ON %(fullname)s FOR EACH ROW"
        f" WHEN (NEW.status = 'waiting' AND NEW.due <= {_NOW} + {HORIZON})"
        " EXECUTE FUNCTION psched_notify('%(channel)s')"
    ),
)
"""Statements that create the triggers of a table. SQLAlchemy quotes the names."""


def channel_of(table: str) -> str:
    return f"psched_{table}"[:_LONGEST_CHANNEL]


def has_triggers(database: Database, table: str) -> bool:
    return bool(database.scalar(_HAS_TRIGGER, {"table": table, "name": _TRIGGER}))


def create_triggers(database: Database, table: Table) -> None:
    """Create the missing triggers of `table`. Logs a warning if the user lacks the privilege."""

    def work(connection: Connection, _: bool) -> None:
        with database.transaction(connection):
            connection.execute(_LOCK)  # two processes must not create the triggers at the same time
            if connection.execute(_HAS_TRIGGER, {"table": table.name, "name": _TRIGGER}).scalar():
                return
            for step in _STEPS:
                ddl = DDL(step, context={"channel": channel_of(table.name)})  # type: ignore[no-untyped-call]
                connection.execute(ddl.against(table))

    try:
        database.run(work)
    except DBAPIError as error:
        if database.retry_reason(error) is not None:
            raise
        words = "table %s: LISTEN/NOTIFY triggers could not be created: %s; workers find due rows by polling only"
        log.warning(words, table.name, one_line(error))


def send_notification(database: Database, channel: str, content: str) -> None:
    """Send `content` to the programs that now listen to `channel`."""
    database.scalar(_NOTIFY, {"channel": channel, "content": content})


class ListenWakeup:
    """A `Wakeup` by LISTEN, for psycopg 3. It uses libpq's asynchronous commands, so that `stop_listening` never waits.

    Because the table may lack the triggers, a `ListenWakeup` sends itself a notification on another connection. The
    `ListenWakeup` is `proven` when that notification arrives.
    """

    covers_all_hosts = True

    def __init__(self, database: Database, table: str, accepts: Accepts | None = None) -> None:
        """Opens no connection. `accepts`: returns whether to wake for a type; None: wake for all types."""
        self._accepts = accepts
        self.proven = False
        self._table = table
        self._channel = channel_of(table)
        self._database = database
        self._token = secrets.token_hex(8)
        self._connection: Any = None
        self._listening = self._asked = self._notified = False

    def listen(self, seconds: float) -> None:
        if self._connection is None:
            self._connection = self._connected()
            self.proven = self._asked = False
        if not self._listening:
            self._notified = False
            self._try(self._listen)
            self._listening = True
        if not self._asked:
            names = {"channel": self._channel, "token": self._token, "table": self._table, "name": _TRIGGER}
            self._database.scalar(_NOTIFY_OURSELVES, names)
            self._asked = True

    def fileno(self) -> int:
        return int(self._pgconn.socket)

    def is_notified(self) -> bool:
        self._try(self._collect)
        notified, self._notified = self._notified, False
        return notified

    def stop_listening(self) -> None:
        """Send the command that stops listening. `listen` reads the server's answer."""
        if self._connection is None or not self._listening:
            return
        self._listening = False
        with suppress(Exception):  # a lost connection sends no notifications anyway; `listen` raises its error
            self._send("UNLISTEN")

    def close(self) -> None:
        connection, self._connection = self._connection, None
        self._listening = self.proven = False
        if connection is not None:
            connection.close()

    def _connected(self) -> Any:
        connection = self._database.dedicated()
        if self._database.dialect.can_listen:
            return connection
        connection.close()
        raise PoolerError(
            "a connection pooler is now in front of this PostgreSQL, so workers find new rows only by polling; connect "
            "to PostgreSQL directly"
        )

    @property
    def _pgconn(self) -> Any:
        return self._connection.dbapi_connection.pgconn

    def _try(self, step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException:
            self.close()
            raise

    def _listen(self) -> None:
        self._await_answers()
        self._send("LISTEN")
        self._await_answers()

    def _send(self, verb: str) -> None:
        name = self._channel.replace('"', '""')
        self._pgconn.send_query(f'{verb} "{name}"'.encode())
        self._pgconn.flush()

    def _await_answers(self) -> None:
        """Read the answers to all commands. Raises the driver's OperationalError."""
        seconds = self._database.dialect.timeouts.read
        end = time.monotonic() + seconds
        self._collect()
        while self._pgconn.is_busy():
            self._pgconn.flush()
            left = end - time.monotonic()
            if left <= 0:
                raise self._error(f"the server did not answer within {seconds:g} s")
            poll = select.poll()
            poll.register(self._pgconn.socket, select.POLLIN)
            poll.poll(left * 1000)
            self._collect()
        while (result := self._pgconn.get_result()) is not None:
            if result.status == _FATAL:
                raise self._error(result.error_message.decode(errors="replace"))

    def _collect(self) -> None:
        """Read the notifications that have arrived, without waiting."""
        self._pgconn.consume_input()
        while (notification := self._pgconn.notifies()) is not None:
            payload = notification.extra.decode(errors="replace")
            if payload.startswith("="):
                self._notified = self._notified or self._accepts is None or self._accepts(payload[1:])
            elif payload == self._token:
                self.proven = True

    def _error(self, words: str) -> Exception:
        error: Exception = self._connection.dbapi_connection.OperationalError(words)
        return error
