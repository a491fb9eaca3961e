"""The differences between databases. Each dialect overrides the members that differ in its database.

SQL that differs is a construct of this module, such as `now_ms` or `ExactText`. Each dialect compiles the construct in
its own way. So the stores build every statement once for all databases.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, ClassVar

from sqlalchemy import (
    URL,
    BigInteger,
    Boolean,
    Connection,
    ScalarSelect,
    String,
    Table,
    Text,
    TextClause,
    func,
    insert,
    inspect,
    select,
    text,
)
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
"""Options of each table. Databases other than MySQL ignore them."""


INIT_PAUSE = 0.1
"""Seconds between two attempts to get the lock of `psched init`."""


class now_ms(FunctionElement[int]):  # noqa: N801 – spelled like the SQL function it stands for
    """The database's clock in unix milliseconds, constant within a statement."""

    type = BigInteger()
    inherit_cache = True


def now_once() -> ScalarSelect[int]:
    """Return the clock as a subquery, for statements on many rows.

    Without the subquery, the database might compute `now_ms` for each row.
    """
    return select(now_ms()).scalar_subquery()


class larger_of(FunctionElement[int]):  # noqa: N801 – spelled like the SQL function it stands for
    """The larger of two integers. Neither may be NULL."""

    type = BigInteger()
    inherit_cache = True


@compiles(larger_of)
def _larger_of(element: larger_of, compiler: SQLCompiler, **options: Any) -> str:
    name = "max" if compiler.dialect.name == "sqlite" else "GREATEST"
    return f"{name}({compiler.process(element.clauses, **options)})"


def with_index_hint(rows: Select[Any], table: Table, suffix: str) -> Select[Any]:
    """Return `rows` with a hint for MariaDB and MySQL: the index that serves the condition and the order.

    Without the hint they read and sort all rows if the statistics say that most rows meet the condition, or that few
    rows do. `suffix`: the end of the index's name, after the name of the table.
    """
    hint = f"FORCE INDEX ({table.name}_{suffix})"
    return rows.with_hint(table, hint, "mysql").with_hint(table, hint, "mariadb")


class _Presumed(FunctionElement[bool]):
    """A condition. SQLite presumes how many rows meet it, and does not use its statistics.

    For other databases it is the plain condition.
    """

    type = Boolean()
    inherit_cache = True

    def self_group(self, against: Any = None) -> _Presumed:
        return self  # else SQLAlchemy would compare the condition with 1


class met_by_few(_Presumed):  # noqa: N801 – spelled like a function of SQL
    """A condition that an index shall serve.

    SQLite presumes that few rows meet it, even if almost all rows met it when SQLite gathered statistics.
    """

    inherit_cache = True


class met_by_all(_Presumed):  # noqa: N801 – spelled like a function of SQL
    """A condition that only says which partial index can be used.

    SQLite presumes that all rows meet it. Otherwise SQLite might search for it instead of for a more exact condition.
    """

    inherit_cache = True


@compiles(_Presumed)
def _presumed(element: _Presumed, compiler: SQLCompiler, **options: Any) -> str:
    return compiler.process(element.clauses, **options)


def verbatim(sql: str) -> TextClause:
    """Return a statement from this SQL. Colons in the SQL do not mark parameters."""
    return text(sql.replace(":", r"\:"))


class ExactText(String):
    """Text compared byte by byte: case, accents and trailing spaces count. Stores four-byte UTF-8."""


class LongText(Text):
    """Text with room for at least 15 MB."""


@dataclass(frozen=True, eq=False)
class Dialect:
    """One kind of database behind one URL: how to connect, its SQL, and the kinds of its errors.

    `connections`: how many connections stay open while they are idle. `pooler`, `read_only`: see `StoreSettings`.
    """

    name: ClassVar[str]
    driver: ClassVar[str]
    begin: ClassVar[str] = "BEGIN"
    on_conflict_insert: ClassVar[Any]
    """SQLAlchemy's function that returns an INSERT with ON CONFLICT. MySQL has no ON CONFLICT, and needs no value."""
    returning: ClassVar[bool] = True
    """Whether UPDATE can return the changed rows."""
    partial_indexes: ClassVar[bool] = True
    """Whether an index can have a condition, and so leave out rows."""
    groups_by_index: ClassVar[bool] = False
    """Whether GROUP BY reads only the first row of each group in an index."""
    finds_ranges_in_or: ClassVar[bool] = False
    """Whether the planner sees that `a > 1 OR (a = 1 AND b > 2)` is one range of an index on a and b."""
    order_chooses_index: ClassVar[bool] = False
    """Whether the planner uses a certain index only if no other index has the order of the SELECT. Other databases have
    hints for this, or need none."""
    limits_in_unions: ClassVar[bool] = True
    """Whether a SELECT in a UNION can have an order and a limit of its own."""
    crosses_forks: ClassVar[bool] = True
    """Whether an idle connection may stay open while the process forks."""
    keeps_cursors: ClassVar[bool] = False
    """Whether each connection keeps one driver cursor for all compiled statements."""
    nested_writes: ClassVar[bool] = False
    """Whether the WITH of an INSERT can contain an UPDATE. Such a statement takes one round trip instead of four."""
    notifies: ClassVar[bool] = False
    """Whether triggers can notify listeners about due rows; see listen_notify.py."""
    compound_statements: ClassVar[bool] = False
    """Whether servers of this kind can execute two changes by one statement; see `joined`."""
    waits_block_others: ClassVar[bool] = False
    """Whether a statement that builds an index, and waits for a lock, makes statements of other clients wait."""
    counts_new_rows: ClassVar[bool] = True
    """Whether the row count of `insert_new` counts only new rows, not rows whose key existed."""
    object_options: ClassVar[Collection[str]] = ()
    """Options of the drivers whose values are Python objects. A URL cannot contain such a value."""
    conflict_codes: ClassVar[Collection[object]]
    """Error codes of the driver for which `retry_reason` returns `RetryReason.CONFLICT`."""
    lost_codes: ClassVar[Collection[object]]
    """Error codes of the driver for which `retry_reason` returns `RetryReason.LOST`."""
    stale_codes: ClassVar[Collection[object]] = ()
    """Error codes of the driver that a new connection may not have: the connections of the pool are closed."""
    duplicate_codes: ClassVar[Collection[object]]
    """Error codes of the driver for which `is_duplicate_key` is true."""
    missing_table_codes: ClassVar[Collection[object]] = ()
    """Error codes of the driver for which `is_missing_table` is true."""
    existing_codes: ClassVar[Collection[object]] = ()
    """Error codes of the driver for which `is_already_there` is true."""
    offline_codes: ClassVar[Collection[object]] = ()
    """Error codes of the driver for which `is_only_offline` is true."""

    url: URL
    tls: Tls | None
    timeouts: Timeouts
    connections: int = 1
    pooler: str = "auto"
    read_only: bool = False
    long_reads: bool = False
    shares_sessions: bool = field(default=False, init=False)
    """Whether a pooler is configured or was found, and may give each transaction another session."""

    @property
    def ephemeral(self) -> bool:
        """Whether the database disappears with its only connection."""
        return False

    @property
    def can_listen(self) -> bool:
        """Whether the driver can listen to notifications; see `ListenWakeup`."""
        return False

    @property
    def wal_file(self) -> str | None:
        """The file to which every transaction writes; None if writes to it cannot be watched. See `WalWatch`."""
        return None

    def host_socket(self, table: str) -> bytes | None:
        """Return the name of the socket by which clients wake a worker on their host; see `HostWakeup`.

        Return None if there is no such socket.
        """
        return None

    def engine_options(self) -> dict[str, Any]:
        """Return the arguments of `create_engine` for timeouts and encryption."""
        raise NotImplementedError

    def connect(self, driver: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return a new connection of the driver. `driver`: SQLAlchemy's dialect. Raises the driver's errors."""
        return driver.connect(*arguments, **options)

    def prepare(self, connection: Any) -> None:
        """Set up the session of a new driver connection."""

    def abandon_connections(self) -> None:
        """Stop the driver from ending the parent's sessions when it frees connections. Called in a forked process."""

    def init_lock(self, connect: Callable[[], Any]) -> AbstractContextManager[None]:
        """Wait until no other `psched init` works on this database, and block others while the context is open.

        `connect` returns a new connection; its `dbapi_connection` is the driver's own. On SQLite there is no lock to
        wait for, because each statement of `psched init` is one transaction.
        """
        return nullcontext()

    def execute_alone(self, connection: Connection, sql: str) -> None:
        """Execute a statement that has no parameters and must not run in a transaction."""
        connection.execute(verbatim(sql))

    def full_disk(self) -> Finding | None:
        """Return the finding about a full disk if this is a database in a file and its disk is full, else None."""
        return None

    def create_database(self) -> None:
        """Create the file of an SQLite database. Does nothing for servers, where administrators create databases."""

    @staticmethod
    def code(error: BaseException | None) -> Any:
        raise NotImplementedError

    def retry_reason(self, error: DBAPIError) -> RetryReason | None:
        """Return why `error` is temporary; None if `error` is not temporary."""
        code = self.code(error.orig)
        if code in self.conflict_codes:
            return RetryReason.CONFLICT
        return RetryReason.LOST if code in self.lost_codes else None

    def is_stale(self, error: DBAPIError) -> bool:
        """Return whether a new connection may succeed where this one failed, although the server is not away."""
        return self.code(error.orig) in self.stale_codes

    def is_refused(self, error: BaseException) -> bool:
        """Return whether the server refuses the login of psched's user, or refuses this user a privilege."""
        return False

    @classmethod
    def is_duplicate_key(cls, error: BaseException) -> bool:
        """Return whether `error`, from SQLAlchemy or the driver, says that a row with this key exists."""
        return cls.code(getattr(error, "orig", error)) in cls.duplicate_codes

    def locating(self, table: str) -> str:
        """Return a SELECT of one row that shows which database and which table a connection reaches."""
        raise NotImplementedError

    def is_missing_table(self, error: DBAPIError) -> bool:
        """Return whether a table, or the database file, does not exist."""
        return self.code(error.orig) in self.missing_table_codes

    def unusable_file(self, error: DBAPIError) -> str | None:
        """Return a message with the remedy if the database file is missing or is no database; else None."""
        return None

    def is_already_there(self, error: DBAPIError) -> bool:
        """Return whether `error` says that the table, index or row to be created already exists."""
        return self.code(error.orig) in self.existing_codes

    def is_only_offline(self, error: DBAPIError) -> bool:
        """Return whether `error` says that the server can change the table only while no other client uses it."""
        return self.code(error.orig) in self.offline_codes

    @classmethod
    def by_index(cls, column: ColumnElement[Any], value: ColumnElement[Any]) -> ColumnElement[bool]:
        """Return the condition that `column` equals `value`. The rows must be found by an index on `column`."""
        return column == value

    @classmethod
    def among(cls, column: ColumnElement[Any], keys: Select[Any]) -> ColumnElement[bool]:
        """Return the condition that `column` is among `keys`. The database executes the SELECT `keys` only once."""
        return column.in_(keys)

    def joined(self, connection: Connection, first: str, second: str) -> str | None:
        """Return one statement that executes `first`, and `second` if `first` changed a row, in one transaction.

        The statement selects 1 if `first` changed a row. Returns None if this database needs several statements.
        """
        return None

    @classmethod
    def insert_new(cls, table: Table) -> Any:
        """Return an INSERT that skips existing keys without an error."""
        return cls.on_conflict_insert(table).on_conflict_do_nothing()

    @classmethod
    def insert_or_add(
        cls, table: Table, names: Sequence[str], rows: Select[Any], added: Sequence[str], replaced: Sequence[str]
    ) -> Any:
        """Return an INSERT of the selected `rows`, with the columns `names`.

        If a key exists, the INSERT adds the values of the columns `added` to the existing row, and overwrites the
        columns `replaced`.
        """
        new = cls.on_conflict_insert(table).from_select(list(names), rows)
        values = {name: table.c[name] + new.excluded[name] for name in added}
        values |= {name: new.excluded[name] for name in replaced}
        return new.on_conflict_do_update(index_elements=list(table.primary_key), set_=values)

    @classmethod
    def sum_of(cls, column: ColumnElement[Any]) -> ColumnElement[Any]:
        """Return the sum of a column of integers. The sum may be a float, and is then exact up to 2**53."""
        return func.sum(column)

    def insert_one(self, connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
        """Insert a row and return whether its key is new. A surrounding transaction can continue in either case."""
        if self.counts_new_rows:
            new = self.insert_new(table).values(values).execution_options(preserve_rowcount=True)
            return connection.execute(new).rowcount == 1
        try:
            connection.execute(insert(table).values(values))
        except DBAPIError as error:  # the failed INSERT has changed nothing, and the transaction can go on
            if not self.is_duplicate_key(error):
                raise
            return False
        return True

    def too_old(self, connection: Connection) -> str | None:
        """Return an error message if the server is too old, else None."""
        return None

    def version(self, connection: Connection) -> str:
        found = connection.dialect.server_version_info
        return f"{self.name} {'.'.join(str(part) for part in found or ())}"

    def pooler_finding(self, run: Callable[..., Any], connect: Callable[[], Any]) -> Finding | None:
        """Return the finding of `psched doctor` about a connection pooler; None if there is no pooler.

        `run`: `Database.run`. `connect` returns a new connection; its `dbapi_connection` is the driver's own.
        """
        return None

    def encryption(self, connection: Connection) -> Finding | None:
        """Return the finding of `psched doctor` about encryption and verification; None for a database in a file."""
        return None

    def indexed_columns(
        self, connection: Connection, tables: Collection[str]
    ) -> Mapping[str, Collection[tuple[str | None, ...]]]:
        """Return, for each existing table, the columns of each usable index. None stands for an expression."""
        found = inspect(connection).get_multi_indexes(filter_names=list(tables))
        return {table: {tuple(index["column_names"]) for index in of_table} for (_, table), of_table in found.items()}

    def invalid_indexes(self, connection: Connection, names: Collection[str]) -> Collection[str]:
        """Return the named indexes that exist but cannot be used, because building them was interrupted."""
        return ()

    def key_problem(self, connection: Connection, table: str, column: str) -> str | None:
        """Return the problem if keys in `column` are not compared byte by byte; else None."""
        return None
