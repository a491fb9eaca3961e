"""The differences between databases: each dialect overrides its own.

SQL that differs is a construct here (`now_ms`, `ExactText`), and each dialect compiles it in its own way. So the stores
build every statement once for all databases.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from sqlalchemy import URL, BigInteger, Connection, ScalarSelect, String, Table, Text, insert, select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler, SQLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.sql.selectable import Select

from psched.backends.common.connection_options import Timeouts, Tls
from psched.backends.common.retries import Fault


class now_ms(FunctionElement[int]):  # noqa: N801 – spelled like the SQL function it stands for
    """The database's clock inside a statement: unix time in milliseconds, the same all through the statement."""

    type = BigInteger()
    inherit_cache = True


def now_once() -> ScalarSelect[int]:
    """Return the same clock for a statement on many rows: PostgreSQL and SQLite compute `now_ms` for each of them."""
    return select(now_ms()).scalar_subquery()


class larger_of(FunctionElement[int]):  # noqa: N801 – spelled like the SQL function it stands for
    """The larger of two integers, neither of them NULL."""

    type = BigInteger()
    inherit_cache = True


@compiles(larger_of)
def _larger_of(element: larger_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"GREATEST({compiler.process(element.clauses, **options)})"


@compiles(larger_of, "sqlite")
def _larger_of_sqlite(element: larger_of, compiler: SQLCompiler, **options: Any) -> str:
    return f"max({compiler.process(element.clauses, **options)})"


class ExactText(String):
    """Text that compares byte by byte: case, accents and trailing spaces make a difference. Four-byte UTF-8 fits."""


class UndecodableText(bytes):
    """A stored text that is no UTF-8, which SQLite may hold. It differs from a BLOB of the same bytes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UndecodableText) and super().__eq__(other)

    __hash__ = bytes.__hash__


class LongText(Text):
    """Text of at least 15 MB."""


@compiles(ExactText)
def _exact_text(element: ExactText, compiler: DDLCompiler, **options: Any) -> str:
    return f"VARCHAR({element.length})"


@dataclass(frozen=True, eq=False)
class Dialect:
    """One kind of database behind one URL: how to connect, its SQL, and the kinds of its errors.

    `connections`: how many stay open while they are idle. `pooler`: `session` when each session belongs to one client,
    in spite of a pooler; see `StoreSettings`.
    """

    name: ClassVar[str]
    driver: ClassVar[str]
    begin: ClassVar[str] = "BEGIN"
    returning: ClassVar[bool] = True
    """Whether UPDATE can return the rows it changed."""
    partial_indexes: ClassVar[bool] = True
    """Whether an index can leave rows out."""
    groups_by_index: ClassVar[bool] = False
    """Whether GROUP BY reads the first row of each group in an index, and skips the others."""
    crosses_forks: ClassVar[bool] = True
    """Whether a connection may stay open, unused, in a process that forks."""
    keeps_cursors: ClassVar[bool] = False
    """Whether each connection keeps one cursor of its driver for all compiled statements."""
    nested_writes: ClassVar[bool] = False
    """Whether an UPDATE can stand in the WITH of an INSERT: one statement to wait for instead of four."""
    compound_statements: ClassVar[bool] = False
    """Whether a server of this kind may execute two changes by one statement; see `joined`."""
    counts_new_rows: ClassVar[bool] = True
    """Whether the row count of `insert_new` leaves out the rows whose key exists."""
    conflict_codes: ClassVar[Collection[object]]
    lost_codes: ClassVar[Collection[object]]
    duplicate_codes: ClassVar[Collection[object]]
    missing_table_codes: ClassVar[Collection[object]] = ()
    existing_codes: ClassVar[Collection[object]] = ()
    """Codes of the driver's errors, by their meaning; see the methods below."""

    url: URL
    tls: Tls | None
    timeouts: Timeouts
    connections: int = 1
    pooler: str | None = None

    @property
    def ephemeral(self) -> bool:
        """Whether the database is gone with its only connection."""
        return False

    @property
    def can_listen(self) -> bool:
        """Whether `ListenWakeup` works here; see `install_wakeup`."""
        return False

    def engine_options(self) -> dict[str, Any]:
        """Return the arguments of `create_engine` that carry timeouts and encryption."""
        raise NotImplementedError

    def connect(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return a new driver connection; None to let SQLAlchemy's dialect connect with these arguments."""
        return None

    def prepare(self, connection: Any) -> None:
        """Set up the session of a new driver connection."""

    def abandon_connections(self) -> None:
        """In a forked process: keep the parent's sessions alive when its connections are freed here."""

    def create_database(self) -> None:
        """Create SQLite's file; other databases are created by their administrators."""

    @staticmethod
    def code(error: BaseException) -> Any:
        """Return the code of a driver's error, or of SQLAlchemy's around it."""
        raise NotImplementedError

    def fault(self, error: DBAPIError) -> Fault | None:
        """Return the fault that passes by itself and caused `error`, if any."""
        code = self.code(error)
        if code in self.conflict_codes:
            return Fault.CONFLICT
        return Fault.LOST if code in self.lost_codes else None

    def is_refused(self, error: BaseException) -> bool:
        """Return whether a driver's `error` means that the server refuses the login or a privilege of our user."""
        return False

    @classmethod
    def is_duplicate_key(cls, error: DBAPIError) -> bool:
        """Return whether a row with this key exists."""
        return cls.code(error) in cls.duplicate_codes

    def is_missing_table(self, error: DBAPIError) -> bool:
        """Return whether a table, or the database file, does not exist."""
        return self.code(error) in self.missing_table_codes

    def missing_file(self, error: DBAPIError) -> str | None:
        """Return that the database's file or its folder does not exist, with the remedy, if `error` means that."""
        return None

    def is_already_there(self, error: DBAPIError) -> bool:
        """Return whether a table, column or index that was to be created exists, perhaps since this very moment."""
        return self.code(error) in self.existing_codes

    @classmethod
    def among(cls, column: ColumnElement[Any], keys: Select[Any]) -> ColumnElement[bool]:
        """Return the condition that `column` is among `keys`, which are selected (and locked) once."""
        return column.in_(keys)

    def joined(self, connection: Connection, first: str, second: str) -> str | None:
        """Return the text of a statement that executes both in a transaction, and selects 1 if `first` changed a row.

        `second` is executed only then. None where that takes several statements.
        """
        return None

    @classmethod
    def insert_new(cls, table: Table) -> Any:
        """Return an INSERT that leaves rows whose key exists as they are, without an error."""
        raise NotImplementedError

    def insert_one(self, connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
        """Insert a row and return whether its key is new. A transaction around it can go on in either case."""
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

    def unfit(self, connection: Connection) -> str | None:
        """Return why this server cannot be used (it is too old), if so."""
        return None

    def version(self, connection: Connection) -> str:
        """Return the server's name and version."""
        found = connection.dialect.server_version_info
        return f"{self.name} {'.'.join(str(part) for part in found or ())}"

    def install_wakeup(self, connection: Connection, table: Table) -> None:
        """Make the database notify listeners of due rows in `table`, where it can. In a transaction."""

    def wakeup_problem(self, connection: Connection, table: str) -> str | None:
        """Return why due rows of `table` notify no worker although they could, if so."""
        return None

    def shares_sessions(self, first: Any, second: Any) -> bool:
        """Return whether two driver connections are seen to speak to one session of the server."""
        return False

    def key_problem(self, connection: Connection, table: str, column: str) -> str | None:
        """Return why keys in `column` do not compare byte by byte, if so."""
        return None
