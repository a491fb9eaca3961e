"""PostgreSQL 12 or later, by psycopg 3 unless the URL names another driver.

The clock is `statement_timestamp()`. With `clock_timestamp()` PostgreSQL could not use an index.
"""

from __future__ import annotations

import os
import re
import selectors
import tempfile
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, ClassVar

from sqlalchemy import ARRAY, Connection, String, any_, func, text
from sqlalchemy.dialects.postgresql import array, insert
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import Select

from psched.backends.common.connection_options import encryption_finding
from psched.backends.common.retries import RetryReason
from psched.backends.sql.bulk_statements import given_rows
from psched.backends.sql.dialect import INIT_PAUSE, Dialect, ExactText, now_ms
from psched.descriptor_shortage import is_shortage
from psched.errors import ConfigError, PoolerError
from psched.store import Finding

Steps = Generator[Any, Any, Any]
"""psycopg's protocol: the generator yields the events to wait for, and receives the events that are ready, or 0."""

_ASKED = 5
"""How often two connections are asked for their session. Once is not enough, because other clients may interfere."""

_OWN = Finding("pooler", True, "each connection has its own session")
_SHARED = Finding(
    "pooler",
    False,
    "two connections share one session of the database, although `pooler: session` is set",
    remedy="set the pooler to session mode (PgBouncer: pool_mode = session), or remove `pooler:`",
)
_POOLED = Finding(
    "pooler",
    True,
    "a pooler is in front of the server: psched keeps nothing in its sessions, and finds new rows only by polling",
)
_NO_POOLER = Finding(
    "pooler", True, "there is no pooler", warning=True, remedy="remove `pooler:`, so that new rows wake workers"
)
"""The finding of `psched doctor` if a pooler is configured, but there is none."""

_REFUSED = (
    "authentication failed for user", "no pg_hba.conf entry", "is not permitted to log in",
    "password authentication failed", "login rejected",  # from PgBouncer, with the SQLSTATE of a lost connection
)  # fmt: skip
_REFUSED_ROLE = re.compile(r'role ".*" does not exist')
_TURNED_AWAY = (*_REFUSED, '" does not exist')
"""Texts of refusals that may come before the server asks for a password. For these, `refusal` finds no SQLSTATE."""

_LOGIN_REFUSED = "28P01"
"""The SQLSTATE of a refused login."""

_VERIFY = {"full": "verify-full", "ca": "verify-ca", "none": "require"}

_USES_SSL = text("SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")
_DETERMINISTIC = text(
    "SELECT l.collisdeterministic FROM pg_attribute a JOIN pg_collation l ON l.oid = a.attcollation"
    " WHERE a.attrelid = to_regclass(:table) AND a.attname = :column"
)

_INVALID = text(
    "SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    " WHERE NOT i.indisvalid AND pg_table_is_visible(c.oid) AND c.relname = ANY(:names)"
)

_INDEXES = text(
    "SELECT t.relname, CASE WHEN i.indisvalid AND NOT i.indisprimary THEN ARRAY("
    "SELECT a.attname::text FROM unnest(i.indkey) WITH ORDINALITY k(number, place)"
    " LEFT JOIN pg_attribute a ON a.attrelid = t.oid AND a.attnum = k.number AND k.number > 0"
    " WHERE k.place <= i.indnkeyatts ORDER BY k.place) END"
    " FROM pg_class t LEFT JOIN pg_index i ON i.indrelid = t.oid"
    " WHERE t.relkind IN ('r', 'p') AND pg_table_is_visible(t.oid) AND t.relname = ANY(:names)"
)


@compiles(now_ms, "postgresql")
def _now_ms(element: now_ms, compiler: SQLCompiler, **options: Any) -> str:
    return "CAST(floor(extract(epoch FROM statement_timestamp()) * 1000) AS BIGINT)"


@compiles(ExactText, "postgresql")
def _exact_text(element: ExactText, compiler: DDLCompiler, **options: Any) -> str:
    return f'VARCHAR({element.length}) COLLATE "C"'


@compiles(given_rows, "postgresql")
def _given_rows(element: given_rows, compiler: SQLCompiler, **options: Any) -> str:
    rows = compiler.process(element.clauses, **options)
    fields = ", ".join(_field(compiler, f"value ->> {place}", *field) for place, field in enumerate(element.fields))
    return "".join(("(SELECT ", fields, " FROM json_array_elements(CAST(", rows, " AS JSON)) AS given_rows (value))"))


def _field(compiler: SQLCompiler, value: str, name: str, type_: Any) -> str:
    """Return a value of a row as a column.

    Texts are not cast to the column's type, because a cast would truncate them.
    """
    if isinstance(type_, String):
        return f"{value} AS {name}"
    return f"CAST({value} AS {compiler.dialect.type_compiler_instance.process(type_)}) AS {name}"


class PostgreSQLDialect(Dialect):
    name: ClassVar[str] = "postgresql"
    driver: ClassVar[str] = "psycopg"
    on_conflict_insert: ClassVar[Any] = staticmethod(insert)
    keeps_cursors: ClassVar[bool] = True
    """A kept cursor need not look up type conversions again. That saves a third of psycopg's time per statement
    (2026-11).
    """
    order_chooses_index: ClassVar[bool] = True
    nested_writes: ClassVar[bool] = True
    notifies: ClassVar[bool] = True
    object_options = ("row_factory", "cursor_factory", "connection_factory")
    conflict_codes = ("40001", "40P01", "55P03", "57014")
    lost_codes = ("25006", "25P03", "26000", "42P05", "57P01", "57P02", "57P03", "57P05")
    """SQLSTATEs that count as a lost connection. 25006: a demoted primary refuses to write. 26000 and 42P05: a pooler
    gave us another session. There our prepared statement is missing, or another statement has its name."""
    stale_plans = (("0A000", "plancache.c"), ("42804", "pl_exec.c"))
    """SQLSTATE and source file of the errors after another program has changed the type of a column. The session still
    has a plan for the old type: the plan of a prepared statement (0A000) or of a trigger (42804)."""
    duplicate_codes = ("23505",)
    missing_table_codes = ("42P01",)
    existing_codes = ("42P07", "42701", "42710", "23505")
    """SQLSTATEs for an object that already exists. 23505: two processes created the same object at the same time, and
    the catalogue refused the second row.
    """

    @contextmanager
    def init_lock(self, connect: Callable[[], Any]) -> Iterator[None]:
        """Hold an advisory lock in a transaction. Such a lock also works behind a pooler.

        Each attempt is a short transaction, because building an index waits for all open transactions, even for one
        that waits for this lock.
        """
        with closing(connect()) as connection, connection.cursor() as cursor:
            while True:
                cursor.execute("BEGIN")
                cursor.execute("SELECT pg_try_advisory_xact_lock(hashtext('psched init'))")
                if cursor.fetchone()[0]:
                    break
                cursor.execute("ROLLBACK")
                time.sleep(INIT_PAUSE)
            yield

    def execute_alone(self, connection: Connection, sql: str) -> None:
        if not self.shares_sessions:
            return super().execute_alone(connection, sql)
        from psycopg import ClientCursor  # noqa: PLC0415 – another driver may be installed instead

        driver: Any = connection.connection.dbapi_connection
        with ClientCursor(driver) as cursor:  # unlike `TransactionCursor`, sends no settings first
            cursor.execute(sql)
        return None

    def indexed_columns(
        self, connection: Connection, tables: Collection[str]
    ) -> Mapping[str, Collection[tuple[str | None, ...]]]:
        """Read the catalogue by one statement. SQLAlchemy sends three, and builds objects for all results."""
        found: dict[str, set[tuple[str | None, ...]]] = {}
        for table, columns in connection.execute(_INDEXES, {"names": list(tables)}):
            of_table = found.setdefault(table, set())
            if columns is not None:
                of_table.add(tuple(columns))
        return found

    def invalid_indexes(self, connection: Connection, names: Collection[str]) -> Collection[str]:
        return connection.execute(_INVALID, {"names": list(names)}).scalars().all()

    def engine_options(self) -> dict[str, Any]:
        """Return the options for connecting. libpq's timeouts detect a dead network, but not a server that hangs."""
        arguments: dict[str, Any] = {
            "connect_timeout": max(2, round(self.timeouts.connect)),  # libpq takes whole seconds, at least 2
            "tcp_user_timeout": round(self.timeouts.read * 1000),
            "keepalives_idle": 15,
            "keepalives_interval": 5,
            "keepalives_count": 3,
            **self._tls_arguments(),
        }
        if self._is_psycopg and "prepare_threshold" in self.url.query:  # psycopg needs a number, not text
            arguments["prepare_threshold"] = _count("prepare_threshold", self.url.query["prepare_threshold"])
        # otherwise psycopg's SQLAlchemy dialect reads the catalogue
        own = {"use_native_hstore": False} if self._is_psycopg else {}
        return {"connect_args": arguments, **own}

    def connect(self, driver: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return a connection of the driver.

        With psycopg, the error of a refused login gets the SQLSTATE that libpq omits.
        """
        if not self._is_psycopg:
            return super().connect(driver, arguments, options)
        import psycopg  # noqa: PLC0415 – another driver may be installed instead

        try:
            return psycopg.connect(*arguments, **options)
        except psycopg.OperationalError as error:
            is_known = error.sqlstate is not None or self.is_refused(error)
            if not is_known:
                error.sqlstate = refusal(error, self.timeouts.connect)
            raise
        except OSError as error:  # psycopg also needs a descriptor to wait for the server
            if is_shortage(error):
                raise psycopg.OperationalError(str(error)) from error
            raise

    def prepare(self, connection: Any) -> None:
        """Set up the session. Behind a pooler, set up each transaction, because other clients may share the session.

        The planner must read few rows by an index, even in a table that was never analysed or has changed since. So
        other plans are disabled, except for `long_reads`. A disabled plan looks so expensive that PostgreSQL would
        compile it, and a compilation takes 100 ms. So jit is disabled, too.
        """
        settings = {
            "statement_timeout": f"{self.timeouts.statement * 1000:.0f}",
            "lock_timeout": f"{self.timeouts.lock * 1000:.0f}",
            "idle_in_transaction_session_timeout": f"{self.timeouts.read * 1000:.0f}",
            "jit": "off",
        }
        if not self.long_reads:
            settings |= dict.fromkeys(("enable_seqscan", "enable_bitmapscan", "enable_sort"), "off")
        if self._is_psycopg:
            _bound_waiting(connection, self.timeouts.read)
        if self.pooler == "transaction" or (self.pooler == "auto" and _is_pooled(connection)):
            self._use_transactions(connection, settings | ({"transaction_read_only": "on"} if self.read_only else {}))
            return
        settings["default_transaction_isolation"] = "'read committed'"
        if self.read_only:
            settings["default_transaction_read_only"] = "on"
        with connection.cursor() as cursor:
            # a prepared statement cannot have several SETs
            unprepared = {"prepare": False} if self._is_psycopg else {}
            cursor.execute("; ".join(f"SET {name} = {value}" for name, value in settings.items()), **unprepared)

    def _use_transactions(self, connection: Any, settings: Mapping[str, str]) -> None:
        if not self._is_psycopg:
            connection.close()
            raise PoolerError(
                "a connection pooler needs the driver psycopg: write postgresql:// instead of "
                f"{self.url.drivername}:// in `url:`, or connect to PostgreSQL directly"
            )
        from psched.backends.sql.transaction_pooling import use_transactions  # noqa: PLC0415 – imports psycopg

        use_transactions(connection, settings)
        # the dialect is frozen, but a pooler is found only after connecting
        object.__setattr__(self, "shares_sessions", True)

    @staticmethod
    def code(error: BaseException | None) -> str | None:
        """Return the SQLSTATE. psycopg 2 calls it `pgcode`."""
        state: str | None = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        return state

    def retry_reason(self, error: DBAPIError) -> RetryReason | None:
        """See `Dialect.retry_reason`. An error while connecting, such as a refused connection, has no SQLSTATE."""
        state = self.code(error.orig)
        if state is None:
            is_temporary = isinstance(error, OperationalError) and not _is_turned_away(error)
            return RetryReason.LOST if is_temporary else None
        if state[:2] in ("08", "53") or self.is_stale(error):
            return RetryReason.LOST
        return super().retry_reason(error)

    def is_stale(self, error: DBAPIError) -> bool:
        return (self.code(error.orig), _source_file(error.orig)) in self.stale_plans

    def is_refused(self, error: BaseException) -> bool:
        state = self.code(error)
        if state is not None:
            return state[:2] == "28" or state == "42501"  # 42501: privilege missing
        text = str(error)
        return "FATAL:" in text and (any(words in text for words in _REFUSED) or bool(_REFUSED_ROLE.search(text)))

    @classmethod
    def by_index(cls, column: ColumnElement[Any], value: ColumnElement[Any]) -> ColumnElement[bool]:
        # Only a lookup in an index can do this. For a plain equality, a session that plans a statement while the table
        # is small would read the whole table, and keep this plan until the next ANALYZE. In a table that had grown to
        # 60,000 rows, settling 50 runs took 50 ms instead of 2 (2026-11-29).
        return column == any_(array([value]))

    @classmethod
    def among(cls, column: ColumnElement[Any], keys: Select[Any]) -> ColumnElement[bool]:
        # A plain IN may select the keys again for each row, and so lock far more rows.
        return column == any_(func.array(keys.scalar_subquery(), type_=ARRAY(column.type)))

    def locating(self, table: str) -> str:
        # The table's oid differs between servers, and between the schemas of a search_path.
        return f"SELECT current_database(), CAST(to_regclass('\"{table}\"') AS BIGINT)"

    def too_old(self, connection: Connection) -> str | None:
        found = connection.dialect.server_version_info or (0,)
        return None if found >= (12,) else f"{self.version(connection)} is too old: PostgreSQL 12 or later is needed"

    def pooler_finding(self, run: Callable[..., Any], connect: Callable[[], Any]) -> Finding | None:
        if self.pooler == "session":
            with closing(connect()) as first, closing(connect()) as second:
                ours, other = first.dbapi_connection, second.dbapi_connection
                return _SHARED if any(_session_of(ours) == _session_of(other) for _ in range(_ASKED)) else _OWN
        if run(lambda connection, _: _is_pooled(connection.connection.dbapi_connection)):
            return _POOLED
        return _NO_POOLER if self.pooler == "transaction" else None

    def encryption(self, connection: Connection) -> Finding | None:
        if self._is_psycopg:
            driver: Any = connection.connection.dbapi_connection
            link = driver.pgconn
            encrypted, host = bool(link.ssl_in_use), link.host.decode()
            options = {option.keyword.decode(): option.val for option in link.info if option.val}
            mode, trusted = options.get("sslmode", b"prefer").decode(), "sslrootcert" in options
        else:
            encrypted, host = bool(connection.execute(_USES_SSL).scalar()), self.url.host or ""
            mode, trusted = str(self.url.query.get("sslmode")), "sslrootcert" in self.url.query
        verify = "full" if mode == "verify-full" else "ca" if mode == "verify-ca" or trusted else "none"
        return encryption_finding(encrypted, verify, host, self.tls)

    def key_problem(self, connection: Connection, table: str, column: str) -> str | None:
        # Only some ICU collations are nondeterministic.
        deterministic = connection.execute(_DETERMINISTIC, {"table": table, "column": column}).scalar()
        if deterministic is False:
            return (
                f"column {column} of {table} has a collation under which different keys are equal; stop the workers "
                f'and run: ALTER TABLE "{table}" ALTER COLUMN "{column}" TYPE VARCHAR(255) COLLATE "C"'
            )
        return None

    @property
    def can_listen(self) -> bool:
        return self._is_psycopg and self.pooler != "transaction" and not self.shares_sessions

    @property
    def _is_psycopg(self) -> bool:
        return self.url.get_driver_name() == "psycopg"

    def _tls_arguments(self) -> dict[str, Any]:
        tls = self.tls
        if tls is None:
            return {}
        if tls.ca is None and tls.verify == "ca":
            raise ConfigError("tls: verify: ca needs the certificates to trust; set tls.ca")
        trusted = "system" if tls.ca is None and tls.verify == "full" else tls.ca
        arguments = {"sslmode": _VERIFY[tls.verify], "sslcert": tls.cert, "sslkey": tls.key, "sslrootcert": trusted}
        return {name: value for name, value in arguments.items() if value is not None}


def _count(name: str, given: object) -> int:
    """Return a whole number that an option of the URL sets. Raises ConfigError."""
    if not re.fullmatch(r"[0-9]{1,9}", str(given)):
        raise ConfigError(f"url: {name} must be a whole number ≥ 0, got {given!r}")
    return int(str(given))


def _source_file(error: BaseException | None) -> str | None:
    """Return the file of PostgreSQL's source that raised `error`; None if the driver does not tell."""
    return getattr(getattr(error, "diag", None), "source_file", None)


def _is_turned_away(error: DBAPIError) -> bool:
    """Return whether the message of `error` says that the server refuses this user. libpq reports no code."""
    return "FATAL:" in str(error.orig) and any(words in str(error.orig) for words in _TURNED_AWAY)


def _is_pooled(connection: Any) -> bool:
    """Return whether a new connection leads to a pooler instead of a PostgreSQL server.

    At login a server sends the process number of the session, for cancel requests. A pooler answers the login itself
    and invents this number, so it differs from pg_backend_pid(). Only psycopg 2 and 3 expose the number. With other
    drivers a pooler is not detected.
    """
    sent = getattr(getattr(connection, "info", None), "backend_pid", None)
    return sent is not None and sent != _session_of(connection)


def _session_of(connection: Any) -> int:
    """Return the process number of the session that serves a driver's connection now."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return int(cursor.fetchone()[0])


def _bound_waiting(connection: Any, seconds: float) -> None:
    """Limit the wait for an answer to `seconds`. Neither libpq nor psycopg does this for a server that hangs."""
    wait = connection.wait

    def bounded_wait(steps: Steps, *arguments: Any, **options: Any) -> Any:
        return wait(bounded(steps), *arguments, **options)

    def bounded(steps: Steps) -> Steps:
        end = time.monotonic() + seconds
        try:
            wanted = next(steps)
            while True:
                ready = yield wanted
                if not ready and time.monotonic() > end:
                    connection.close()
                    raise connection.OperationalError(f"the server did not answer within {seconds:g} s")
                wanted = steps.send(ready)
        except StopIteration as stop:
            return stop.value

    connection.wait = bounded_wait


_STATE = re.compile(rb'^B\t\d+\tErrorResponse\t.*? C "([0-9A-Z]{5})" ', re.MULTILINE)


def refusal(error: Any, seconds: float) -> str | None:
    """Return the SQLSTATE of the refused login that psycopg's `error` reports, or None.

    If the server asked for a password, and the URL has one, logs in again and reads the SQLSTATE from libpq's trace. A
    server that is down, starting or full does not ask for a password. Takes at most `seconds`, plus the time to resolve
    names. Raises no error of the driver.
    """
    attempt = error.pgconn
    if attempt is None:
        return None
    if attempt.needs_password:  # the server asked for a password, and the URL has none: no answer followed
        return _LOGIN_REFUSED
    if not attempt.used_password:
        return None
    from psycopg import Error  # noqa: PLC0415 – another driver may be installed instead

    with _private_file() as record:
        with suppress(Error):  # for example if this libpq has no trace
            _try_again(_conninfo(attempt), record.fileno(), time.monotonic() + seconds)
        record.seek(0)
        states = _STATE.findall(record.read())
    return states[-1].decode() if states else None


def _private_file() -> Any:
    """Return a file that only this user can open, in memory if possible, because it may contain a password."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("psched"), "r+b")
    return tempfile.TemporaryFile()


def _conninfo(attempt: Any) -> bytes:
    from psycopg.conninfo import make_conninfo  # noqa: PLC0415 – another driver may be installed instead

    given = {option.keyword.decode(): option.val.decode() for option in attempt.info if option.val}
    return make_conninfo("", **given).encode()


def _try_again(conninfo: bytes, record: int, end: float) -> None:
    from psycopg import pq  # noqa: PLC0415 – another driver may be installed instead

    connection = pq.PGconn.connect_start(conninfo)
    try:
        connection.trace(record)
        connection.set_trace_flags(pq.Trace.SUPPRESS_TIMESTAMPS)
        while (step := connection.connect_poll()) in (pq.PollingStatus.READING, pq.PollingStatus.WRITING):
            reading = step == pq.PollingStatus.READING
            if not _is_ready(connection.socket, selectors.EVENT_READ if reading else selectors.EVENT_WRITE, end):
                return
    finally:
        connection.untrace()  # flushes the trace to the file
        connection.finish()


def _is_ready(socket: int, event: int, end: float) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(socket, event)
        return bool(selector.select(max(0.0, end - time.monotonic())))
