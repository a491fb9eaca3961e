"""The differences between databases: each dialect overrides what differs in its database.

SQL that differs is a construct here (`now_ms`, `ExactText`), and each dialect compiles it in its own way. So the stores
build every statement once for all databases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sqlalchemy import URL, BigInteger, Connection, ScalarSelect, String, Table, Text, TextClause, insert, select, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import Select

from psched.backends.common.connection_options import Timeouts, Tls
from psched.backends.common.retries import RetryReason
from psched.store import Finding

MYSQL_OPTIONS: Any = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4"}
"""Options of each table; other databases ignore them."""


INIT_PAUSE = 0.1
"""Seconds between two attempts to get the lock of `psched init`."""


class now_ms(FunctionElement[int]):  # noqa: N801 – spelled like the SQL function it stands for
    """The database's clock in unix milliseconds, constant within a statement."""

    type = BigInteger()
    inherit_cache = True


def now_once() -> ScalarSelect[int]:
    """Return the clock as a subquery, for statements on many rows: there `now_ms` may be computed for each row."""
    return select(now_ms()).scalar_subquery()


class larger_of(FunctionElement[int]):  # noqa: N801 – spelled like the SQL function it stands for
    """The larger of two integers that are not NULL."""

    type = BigInteger()
    inherit_cache = True


@compiles(larger_of)
def _larger_of(element: larger_of, compiler: SQLCompiler, **options: Any) -> str:
    name = "max" if compiler.dialect.name == "sqlite" else "GREATEST"
    return f"{name}({compiler.process(element.clauses, **options)})"


def verbatim(sql: str) -> TextClause:
    """Return a statement of this SQL, in which colons do not mark parameters."""
    return text(sql.replace(":", r"\:"))


class ExactText(String):
    """Text compared byte by byte: case, accents and trailing spaces differ. Four-byte UTF-8 fits."""


class LongText(Text):
    """Text of at least 15 MB."""


@dataclass(frozen=True, eq=False)
class Dialect:
    """One kind of database behind one URL: how to connect, its SQL, and the kinds of its errors.

    `connections`: how many stay open while idle. `pooler`, `read_only`: see `StoreSettings`.
    """

    name: ClassVar[str]
    driver: ClassVar[str]
    begin: ClassVar[str] = "BEGIN"
    returning: ClassVar[bool] = True
    """Whether UPDATE can return changed rows."""
    partial_indexes: ClassVar[bool] = True
    """Whether an index can leave rows out."""
    groups_by_index: ClassVar[bool] = False
    """Whether GROUP BY reads only the first row of each group in an index."""
    limits_in_unions: ClassVar[bool] = True
    """Whether a SELECT in a UNION can have an order and a limit of its own."""
    crosses_forks: ClassVar[bool] = True
    """Whether a connection may stay open, unused, in a process that forks."""
    keeps_cursors: ClassVar[bool] = False
    """Whether each connection keeps one driver cursor for all compiled statements."""
    nested_writes: ClassVar[bool] = False
    """Whether an UPDATE can stand in the WITH of an INSERT: one round trip instead of four."""
    notifies: ClassVar[bool] = False
    """Whether triggers can notify listeners of due rows; see listen_notify.py."""
    compound_statements: ClassVar[bool] = False
    """Whether a server of this kind may execute two changes by one statement; see `joined`."""
    waits_block_others: ClassVar[bool] = False
    """Whether other statements wait behind one that waits for the lock by which it builds an index."""
    counts_new_rows: ClassVar[bool] = True
    """Whether the row count of `insert_new` leaves out the rows whose key exists."""
    conflict_codes: ClassVar[Collection[object]]
    lost_codes: ClassVar[Collection[object]]
    duplicate_codes: ClassVar[Collection[object]]
    missing_table_codes: ClassVar[Collection[object]] = ()
    existing_codes: ClassVar[Collection[object]] = ()
    offline_codes: ClassVar[Collection[object]] = ()
    """Codes of the driver's errors, by their meaning; see the methods below."""

    url: URL
    tls: Tls | None
    timeouts: Timeouts
    connections: int = 1
    pooler: str = "auto"
    read_only: bool = False
    shares_sessions: bool = field(default=False, init=False)
    """Whether a pooler was found, or is configured, that may give each transaction another session."""

    @property
    def ephemeral(self) -> bool:
        """Whether the database ends with its only connection."""
        return False

    @property
    def can_listen(self) -> bool:
        """Whether the driver can listen to notifications; see `ListenWakeup`."""
        return False

    @property
    def wal_file(self) -> str | None:
        """The file to which every transaction writes, if writes to it can be watched; see `WalWatch`."""
        return None

    def host_socket(self, table: str) -> bytes | None:
        """Return the name of the socket by which clients wake a worker on their host, if any; see `HostWakeup`."""
        return None

    def engine_options(self) -> dict[str, Any]:
        """Return the arguments of `create_engine` that carry timeouts and encryption."""
        raise NotImplementedError

    def connect(self, driver: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return a new driver connection; `driver`: SQLAlchemy's dialect. Raises the driver's errors."""
        return driver.connect(*arguments, **options)

    def prepare(self, connection: Any) -> None:
        """Set up the session of a new driver connection."""

    def abandon_connections(self) -> None:
        """In a forked process: keep the driver from ending the parent's sessions when it frees their connections."""

    def init_lock(self, connect: Callable[[], Any]) -> AbstractContextManager[None]:
        """Wait until no other `psched init` is at work in this database, and keep others out within the context.

        `connect` returns a new connection; `dbapi_connection` is the driver's own. SQLite has no such lock: each
        statement there is one transaction.
        """
        return nullcontext()

    def execute_alone(self, connection: Connection, sql: str) -> None:
        """Execute a statement without parameters that must not be in a transaction."""
        connection.execute(verbatim(sql))

    def create_database(self) -> None:
        """Create the file of SQLite. Administrators create other databases."""

    @staticmethod
    def code(error: BaseException | None) -> Any:
        """Return the code of a driver's error."""
        raise NotImplementedError

    def retry_reason(self, error: DBAPIError) -> RetryReason | None:
        """Return why `error` is temporary; None if it is not."""
        code = self.code(error.orig)
        if code in self.conflict_codes:
            return RetryReason.CONFLICT
        return RetryReason.LOST if code in self.lost_codes else None

    def is_refused(self, error: BaseException) -> bool:
        """Return whether the server refuses the login or a privilege of our user."""
        return False

    @classmethod
    def is_duplicate_key(cls, error: BaseException) -> bool:
        """Return whether SQLAlchemy or the driver raised `error` because a row with this key exists."""
        return cls.code(getattr(error, "orig", error)) in cls.duplicate_codes

    def locating(self, table: str) -> str:
        """Return a SELECT of one row that tells which database, and which table of it, a connection reaches."""
        raise NotImplementedError

    def is_missing_table(self, error: DBAPIError) -> bool:
        """Return whether a table, or the database file, does not exist."""
        return self.code(error.orig) in self.missing_table_codes

    def unusable_file(self, error: DBAPIError) -> str | None:
        """If `error` means that the database file is missing, or is none, return a message with the remedy."""
        return None

    def is_already_there(self, error: DBAPIError) -> bool:
        """Return whether `error` says that the table, index or row to be created exists already."""
        return self.code(error.orig) in self.existing_codes

    def is_only_offline(self, error: DBAPIError) -> bool:
        """Return whether the server could change the table only while nobody else uses it."""
        return self.code(error.orig) in self.offline_codes

    @classmethod
    def among(cls, column: ColumnElement[Any], keys: Select[Any]) -> ColumnElement[bool]:
        """Return the condition that `column` is among `keys`, which are selected (and locked) once."""
        return column.in_(keys)

    def joined(self, connection: Connection, first: str, second: str) -> str | None:
        """Return a statement that executes `first`, and `second` if `first` changed a row, in one transaction.

        The statement selects 1 if `first` changed a row. None where that takes several statements.
        """
        return None

    @classmethod
    def insert_new(cls, table: Table) -> Any:
        """Return an INSERT that skips existing keys without an error."""
        raise NotImplementedError

    @classmethod
    def insert_or_add(
        cls, table: Table, names: Sequence[str], rows: Select[Any], added: Sequence[str], replaced: Sequence[str]
    ) -> Any:
        """Return an INSERT of the selected `rows`, with the columns `names`.

        Where the key exists, the values of `added` are added to those of the row, and those of `replaced` replace them.
        """
        raise NotImplementedError

    def insert_one(self, connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
        """Insert a row and return whether its key is new. A surrounding transaction can continue in either case."""
        if self.counts_new_rows:
            new = self.insert_new(table).values(values).execution_options(preserve_rowcount=True)
            return connection.execute(new).rowcount == 1
        try:
            connection.execute(insert(table).values(values))
        except DBAPIError as error:  # an INSERT that fails undoes itself alone
            if not self.is_duplicate_key(error):
                raise
            return False
        return True

    def too_old(self, connection: Connection) -> str | None:
        """Return the error of a server that is too old, or None."""
        return None

    def version(self, connection: Connection) -> str:
        found = connection.dialect.server_version_info
        return f"{self.name} {'.'.join(str(part) for part in found or ())}"

    def pooler_finding(self, connect: Callable[[], Any]) -> Finding | None:
        """Return what `psched doctor` says of a connection pooler, None where there is none.

        `connect` returns a new connection; `dbapi_connection` is the driver's own.
        """
        return None

    def encryption(self, connection: Connection) -> Finding | None:
        """Return whether the connection is encrypted and verified, for `psched doctor`; None for a file."""
        return None

    def invalid_indexes(self, connection: Connection, names: Collection[str]) -> Collection[str]:
        """Return those of the named indexes that exist but cannot be used: building them was interrupted."""
        return ()

    def key_problem(self, connection: Connection, table: str, column: str) -> str | None:
        """Return the problem if keys in `column` are not compared byte by byte, else None."""
        return None
