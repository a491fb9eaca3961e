"""MariaDB 10.6 and MySQL 8.0.17 or later, by PyMySQL unless the URL names another driver.

`UTC_TIMESTAMP(3)` is the clock: it is constant within a statement and independent of the session's time zone.
"""

from __future__ import annotations

import math
import os
import ssl
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar
from weakref import WeakSet

from sqlalchemy import ColumnElement, Connection, Double, Select, Table, cast, func, text
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler

from psched.backends.common.connection_options import Tls, encryption_finding
from psched.backends.common.retries import RetryReason
from psched.backends.sql.bulk_statements import given_rows
from psched.backends.sql.dialect import INIT_PAUSE, Dialect, ExactText, LongText, now_ms
from psched.backends.sql.host_wakeup import socket_name
from psched.descriptor_shortage import is_shortage
from psched.errors import ConfigError
from psched.store import Finding

_CONFLICTS = {1020, 1205, 1213, 1317, 1969, 3024, 3101}
"""Error codes: row changed since it was read, lock wait timeout, deadlock, interrupted statement, statement timeouts of
MariaDB and of MySQL, and a rollback by group replication at commit.
"""

_LOST = {
    1040, 1203, 1226,  # too many connections: in all, of this user, per hour
    1047, 1180,  # a Galera node outside its cluster; an error during a commit
    1053, 1927,  # server shutting down; connection killed
    1158, 1159, 1160, 1161,  # network errors that the server noticed
    1021, 1026, 1114,  # disk full: the server's, a file's or a table's
    1290, 1792, 1836,  # read only: the server may be a demoted primary
    # errors of the client: not connected, broken handshake or TLS
    2002, 2003, 2006, 2012, 2013, 2014, 2026, 2055, 4031,
}  # fmt: skip

_CANNOT_CONNECT = 2003

_REFUSED = {
    1044, 1045, 1698,  # no right to the database; wrong password; refused by the plugin
    1129, 1130,  # host blocked after too many errors, or not allowed to connect
    1142, 1143, 1227, 1370,  # no right to a table, a column, a statement or a routine
    1820, 1862, 3118, 3955, 4150, 4151,  # password expired; account locked or blocked
}  # fmt: skip


@compiles(now_ms, "mysql")
def _now_ms(element: now_ms, compiler: SQLCompiler, **options: Any) -> str:
    return "(TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(3)) DIV 1000)"


@compiles(ExactText, "mysql")
def _exact_text(element: ExactText, compiler: DDLCompiler, **options: Any) -> str:
    # utf8mb4_bin would ignore trailing spaces.
    collation = "utf8mb4_nopad_bin" if compiler.dialect.is_mariadb else "utf8mb4_0900_bin"  # type: ignore[attr-defined]
    return f"VARCHAR({element.length}) CHARACTER SET utf8mb4 COLLATE {collation}"


@compiles(LongText, "mysql")
def _long_text(element: LongText, compiler: DDLCompiler, **options: Any) -> str:
    return "LONGTEXT"


@compiles(given_rows, "mysql")
def _given_rows(element: given_rows, compiler: SQLCompiler, **options: Any) -> str:
    types = compiler.dialect.type_compiler_instance
    fields = (f"{name} {types.process(type_)} PATH '$[{place}]'" for place, (name, type_) in enumerate(element.fields))
    return f"JSON_TABLE({compiler.process(element.clauses, **options)}, '$[*]' COLUMNS ({', '.join(fields)}))"


_BEGIN = (
    "BEGIN NOT ATOMIC DECLARE done INT; DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;"
    " START TRANSACTION; "
)
_THEN = "; SET done = ROW_COUNT(); IF done = 1 THEN "
_END = "; END IF; COMMIT; SELECT done; END"
"""The texts before, between and after two statements that are executed as one statement; see `joined`."""


_SQL_MODE = "'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO', IF(@@sql_mode LIKE '%ANSI_QUOTES%', ',ANSI_QUOTES', '')"
"""The SQL mode of each session. ANSI_QUOTES keeps the server's setting, because SQLAlchemy has already read it."""

_VERIFY = {"full": "VERIFY_IDENTITY", "ca": "VERIFY_CA", "none": "REQUIRED"}
"""mysqlclient's `ssl_mode` for each value of `tls.verify`."""


@dataclass(frozen=True, eq=False)
class MySQLDialect(Dialect):
    name: ClassVar[str] = "mysql"
    driver: ClassVar[str] = "pymysql"
    begin: ClassVar[str] = "START TRANSACTION"
    returning: ClassVar[bool] = False
    partial_indexes: ClassVar[bool] = False
    groups_by_index: ClassVar[bool] = True
    finds_ranges_in_or: ClassVar[bool] = True
    compound_statements: ClassVar[bool] = True
    waits_block_others: ClassVar[bool] = True
    counts_new_rows: ClassVar[bool] = False
    object_options = ("cursorclass",)
    conflict_codes = _CONFLICTS
    lost_codes = _LOST
    duplicate_codes = (1062,)
    missing_table_codes = (1146,)
    existing_codes = (1050, 1060, 1061, 1062)  # existing table, column, index, row
    offline_codes = (1845, 1846)

    _connections: WeakSet[Any] = field(default_factory=WeakSet, init=False)

    def abandon_connections(self) -> None:
        """Redirect mysqlclient's connections to /dev/null, because freeing a connection ends its session."""
        if not self._connections:
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        for connection in self._connections:
            with suppress(Exception):  # a closed connection raises an error
                os.dup2(nowhere, connection.fileno(), inheritable=False)
        os.close(nowhere)

    @contextmanager
    def init_lock(self, connect: Callable[[], Any]) -> Iterator[None]:
        """Hold a lock of the server, named after the database, in a transaction.

        Such a lock also works behind a pooler.
        """
        with closing(connect()) as connection, connection.cursor() as cursor:
            while True:
                cursor.execute("START TRANSACTION")
                cursor.execute(f"SELECT GET_LOCK({_LOCK_NAME}, 0)")
                if cursor.fetchone()[0]:
                    break
                cursor.execute("ROLLBACK")
                time.sleep(INIT_PAUSE)
            try:
                yield
            finally:
                with suppress(Exception):  # if the connection is lost, the server releases the lock
                    cursor.execute(f"SELECT RELEASE_LOCK({_LOCK_NAME})")
                    cursor.fetchone()

    def host_socket(self, table: str) -> bytes | None:
        return socket_name(self.url, table)

    def engine_options(self) -> dict[str, Any]:
        """Return the options for connecting. `read_timeout` also limits the handshake; `connect_timeout` does not."""
        arguments: dict[str, Any] = {
            "charset": "utf8mb4",
            "connect_timeout": math.ceil(self.timeouts.connect),
            "read_timeout": math.ceil(self.timeouts.read),
            "write_timeout": math.ceil(self.timeouts.read),
        }
        options: dict[str, Any] = {"connect_args": arguments}
        if self._is_mysqlclient:
            options["paramstyle"] = "pyformat"  # named parameters, which `joined` needs
        if self.tls is not None:
            context = _tls_context(self.tls)
            if self._is_mysqlclient:
                files = {"ca": self.tls.ca, "cert": self.tls.cert, "key": self.tls.key}
                arguments["ssl"] = {name: path for name, path in files.items() if path is not None}
                arguments["ssl_mode"] = _VERIFY[self.tls.verify]
            else:
                arguments["ssl"] = context
        return options

    def connect(self, driver: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return a connection. With PyMySQL, raises ConfigError for unreadable certificates and unknown options."""
        if self.url.get_driver_name() != self.driver:
            return super().connect(driver, arguments, options)
        import pymysql  # noqa: PLC0415 – another driver may be installed instead

        try:
            if any(name.startswith(("ssl", "read_default")) for name in options):
                return pymysql.connect(*arguments, **options)
        except OSError as error:  # for network errors PyMySQL raises its own class
            if is_shortage(error):
                raise pymysql.OperationalError(_CANNOT_CONNECT, str(error)) from error
            raise ConfigError(f"url: the files of ssl_ca, ssl_cert and ssl_key cannot be used: {error}") from error
        # Encrypted if the server offers it, but not verified. PyMySQL itself would load the host's certificates for
        # each connection, which takes 30 ms of processor time (2026-11-22).
        try:
            connection: Any = pymysql.connect(*arguments, **{**options, "ssl_disabled": True, "defer_connect": True})
        except TypeError as error:  # PyMySQL names the option; no connection was opened yet
            raise ConfigError(f"url: PyMySQL does not know an option of the URL: {error}") from error
        connection.ssl, connection.ctx = True, _unverified_context()
        connection.connect()
        return connection

    @property
    def _is_mysqlclient(self) -> bool:
        return self.url.get_driver_name() == "mysqldb"

    def prepare(self, connection: Any) -> None:
        """Set up the session. A session that a pooler shares with other clients is not set up.

        The variables of MariaDB are in a comment that only MariaDB executes; those of MySQL in a comment that only
        MySQL executes.

        MySQL has no timeout for idle transactions: after a client disappears, its locks stay until `wait_timeout`, by
        default for 8 hours.
        """
        lock, statement = math.ceil(self.timeouts.lock), self.timeouts.statement
        idle = math.ceil(self.timeouts.read * 6)
        if self._is_mysqlclient:
            self._connections.add(connection)
        if self.pooler == "transaction":
            return
        with connection.cursor() as cursor:
            access = ", READ ONLY" if self.read_only else ""
            cursor.execute(f"SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED{access}")
            cursor.execute(
                f"SET SESSION sql_mode = CONCAT({_SQL_MODE}), time_zone = '+00:00',"
                f" innodb_lock_wait_timeout = {lock}, lock_wait_timeout = {lock},"
                f" wait_timeout = CAST(IF(VERSION() LIKE '%MariaDB%', @@wait_timeout, {idle}) AS SIGNED)"
                f" /*M! , max_statement_time = {statement:g},"
                f" idle_transaction_timeout = {math.ceil(self.timeouts.read)} */"
                f"{f' /*!50708 , max_execution_time = {statement * 1000:.0f} */' if self.read_only else ''}"
            )

    @staticmethod
    def code(error: BaseException | None) -> int:
        """Return the error code; 0 for errors that the driver itself raises."""
        arguments = getattr(error, "args", ())
        return arguments[0] if arguments and isinstance(arguments[0], int) else 0

    def retry_reason(self, error: DBAPIError) -> RetryReason | None:
        is_drivers_own = self.code(error.orig) == 0 and isinstance(error, InterfaceError | OperationalError)
        return RetryReason.LOST if is_drivers_own else super().retry_reason(error)

    def is_refused(self, error: BaseException) -> bool:
        return self.code(error) in _REFUSED

    def joined(self, connection: Connection, first: str, second: str) -> str | None:
        """Return a compound statement for MariaDB, or None for MySQL.

        MySQL executes compound statements only in stored programs.
        """
        return "".join((_BEGIN, first, _THEN, second, _END)) if _is_mariadb(connection) else None

    def locating(self, table: str) -> str:
        return "SELECT DATABASE()"

    @classmethod
    def insert_new(cls, table: Table) -> Any:
        """Return an INSERT that skips existing keys. INSERT IGNORE would truncate values that are too long."""
        key = next(iter(table.primary_key))
        return insert(table).on_duplicate_key_update({key.name: key})

    @classmethod
    def insert_or_add(
        cls, table: Table, names: Sequence[str], rows: Select[Any], added: Sequence[str], replaced: Sequence[str]
    ) -> Any:
        new = insert(table).from_select(list(names), rows)
        values = {name: table.c[name] + new.inserted[name] for name in added}
        return new.on_duplicate_key_update(values | {name: new.inserted[name] for name in replaced})

    @classmethod
    def sum_of(cls, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the sum of a column as a float.

        The server adds integers as decimals. 27 sums over 9,760 rows take 34 ms as decimals, and 20 ms as floats;
        PyMySQL also reads floats faster (MariaDB, 2026-11-28).
        """
        return func.sum(cast(column, Double))

    def too_old(self, connection: Connection) -> str | None:
        needed = (10, 6) if _is_mariadb(connection) else (8, 0, 17)  # MySQL 8.0.17 introduced utf8mb4_0900_bin
        if (connection.dialect.server_version_info or (0,)) >= needed:
            return None
        return f"{self.version(connection)} is too old: MariaDB 10.6 or MySQL 8.0.17 or later is needed"

    def version(self, connection: Connection) -> str:
        found = ".".join(str(part) for part in connection.dialect.server_version_info or ())
        return f"{'MariaDB' if _is_mariadb(connection) else 'MySQL'} {found}"

    def pooler_finding(self, run: Callable[..., Any], connect: Callable[[], Any]) -> Finding | None:
        """Return the finding about the server's settings if `pooler: transaction` keeps psched from setting its own."""
        if self.pooler != "transaction":
            return None
        with closing(connect()) as connection, connection.cursor() as cursor:
            cursor.execute(_SERVER_SETTINGS)
            found = {str(name): str(value) for name, value in cursor.fetchall()}
        level = found.get("transaction_isolation") or found.get("tx_isolation")
        wanted = [] if level == "READ-COMMITTED" else ["transaction_isolation = READ-COMMITTED (fewer deadlocks)"]
        if int(found["innodb_lock_wait_timeout"]) > self.timeouts.read:
            wanted.append(f"innodb_lock_wait_timeout = {math.ceil(self.timeouts.lock)}")
        remedy = f"set on the server: {', '.join(wanted)}" if wanted else None
        what = "behind the pooler psched changes no settings of sessions"
        return Finding("pooler", True, what, warning=bool(wanted), remedy=remedy)

    def encryption(self, connection: Connection) -> Finding | None:
        context = getattr(connection.connection.dbapi_connection, "ctx", None)  # an attribute of PyMySQL
        if context is not None:
            verify = "none" if context.verify_mode != ssl.CERT_REQUIRED else "full" if context.check_hostname else "ca"
        else:
            mode = self.url.query.get("ssl_mode") if self.tls is None else _VERIFY[self.tls.verify]
            verify = next((word for word, its_mode in _VERIFY.items() if its_mode == mode), "none")
        host = "" if "unix_socket" in self.url.query else self.url.host or ""
        cipher = connection.exec_driver_sql("SHOW SESSION STATUS LIKE 'Ssl_cipher'").one()[1]
        return encryption_finding(bool(cipher), verify, host, self.tls)

    def indexed_columns(
        self, connection: Connection, tables: Collection[str]
    ) -> Mapping[str, Collection[tuple[str | None, ...]]]:
        """Read the catalogue by one statement, with a lookup for each table. SQLAlchemy takes ten times as long."""
        each = [f"{_INDEXES} AND table_name = :table_{place}" for place in range(len(tables))]
        values = {f"table_{place}": table for place, table in enumerate(tables)}
        columns: dict[tuple[str, str], dict[int, str | None]] = {}
        for table, index, place, column in connection.execute(text(" UNION ALL ".join(each)), values):
            columns.setdefault((table, index), {})[place] = column
        found: dict[str, set[tuple[str | None, ...]]] = {}
        for (table, index), of_index in columns.items():
            of_table = found.setdefault(table, set())
            if index != "PRIMARY":
                of_table.add(tuple(of_index[place] for place in sorted(of_index)))
        return found

    def key_problem(self, connection: Connection, table: str, column: str) -> str | None:
        collation = connection.execute(_COLLATION, {"table": table, "column": column}).scalar()
        if collation is None or str(collation).endswith(("_nopad_bin", "_0900_bin")) or collation == "binary":
            return None
        exact = "utf8mb4_nopad_bin" if _is_mariadb(connection) else "utf8mb4_0900_bin"
        return (
            f"column {column} of {table} has the collation {collation}, under which different keys are equal if they "
            "differ in trailing spaces, perhaps also in case or accents; stop the workers and run: "
            f"ALTER TABLE `{table}` MODIFY `{column}` VARCHAR(255) CHARACTER SET utf8mb4 COLLATE {exact} NOT NULL"
        )


_LOCK_NAME = "CONCAT('psched init ', LEFT(SHA1(DATABASE()), 16))"

_SERVER_SETTINGS = (
    "SHOW VARIABLES WHERE variable_name IN ('transaction_isolation', 'tx_isolation', 'innodb_lock_wait_timeout')"
)
_INDEXES = (
    "SELECT table_name, index_name, seq_in_index, column_name FROM information_schema.statistics"
    " WHERE table_schema = DATABASE()"
)
_COLLATION = text(
    "SELECT collation_name FROM information_schema.columns"
    " WHERE table_schema = DATABASE() AND table_name = :table AND column_name = :column"
)


def _is_mariadb(connection: Connection) -> bool:
    return bool(getattr(connection.dialect, "is_mariadb", False))


@cache
def _unverified_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def _tls_context(tls: Tls) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=tls.ca)
        if tls.cert is not None:
            context.load_cert_chain(tls.cert, tls.key)
    except ssl.SSLError as error:
        raise ConfigError(f"tls: a certificate or key cannot be used: {error.reason}") from error
    context.check_hostname = tls.verify == "full"
    if tls.verify == "none":
        context.verify_mode = ssl.CERT_NONE
    return context
