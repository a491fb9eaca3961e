"""The differences between databases, each named once; a dialect overrides its own.

SQL that differs is a small construct here (`now_ms`, `ExactText`) which each dialect compiles in its own way, so that
the stores build every statement once and for all databases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from sqlalchemy import URL, Connection, String, Table, Text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import DDLCompiler
from sqlalchemy.sql.elements import ColumnElement
from sqlalchemy.sql.selectable import Select

from psched.backends.common.connection_options import Timeouts, Tls
from psched.backends.common.errors import Fault
from psched.backends.sql.bulk_statement import Ways
from psched.backends.sql.clock import larger_of as larger_of  # noqa: PLC0414 – whoever knows dialects knows their clock
from psched.backends.sql.clock import now_ms as now_ms  # noqa: PLC0414
from psched.backends.sql.clock import now_once as now_once  # noqa: PLC0414
from psched.backends.sql.listen_notify import Connections
from psched.backends.sql.statement import Executing, Prepared
from psched.store import Accepts, Wakeup


class ExactText(String):
    """Text that compares byte by byte: case, accents and trailing spaces make a difference. Four-byte UTF-8 fits."""


class UndecodableText(bytes):
    """A stored text that is no UTF-8, which SQLite may hold, apart from a BLOB of the same bytes."""

    def __eq__(self, other: object) -> bool:
        """Return whether the other is such a text, too, of the same bytes."""
        return isinstance(other, UndecodableText) and super().__eq__(other)

    __hash__ = bytes.__hash__


class LongText(Text):
    """Text of at least 15 MB."""


@compiles(ExactText)
def _exact_text(element: ExactText, compiler: DDLCompiler, **options: Any) -> str:
    return f"VARCHAR({element.length})"


class Dialect:
    """One kind of database behind one URL: how to connect, and how to tell its errors apart."""

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
    """Whether a connection may be open, and left alone, in a process that forks."""
    keeps_cursors: ClassVar[bool] = False
    """Whether the driver's cursors are worth keeping from statement to statement."""
    nested_writes: ClassVar[bool] = False
    """Whether an UPDATE can stand in the WITH of an INSERT: one statement to wait for instead of four."""

    def __init__(
        self, url: URL, tls: Tls | None, timeouts: Timeouts, connections: int = 1, pooler: str | None = None
    ) -> None:
        """`pooler`: `session` when sessions are ours alone whatever stands before the server; see `StoreSettings`."""
        self.connections = connections
        self.pooler = pooler
        self.url = url
        self.tls = tls
        self.timeouts = timeouts

    @property
    def ephemeral(self) -> bool:
        """Whether the database is gone with its connection."""
        return False

    def engine_options(self) -> dict[str, Any]:
        """Return the arguments of `create_engine` that carry timeouts, encryption and the pool."""
        raise NotImplementedError

    def pool_options(self) -> dict[str, Any]:
        """Return the arguments of `create_engine` for a pool of connections, and a few more when all are busy."""
        return {"pool_size": self.connections, "max_overflow": 4, "pool_timeout": self.timeouts.read}

    def connect(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Return a new driver connection, or None for what the driver makes of these arguments."""
        return None

    def prepare(self, connection: Any) -> None:
        """Set up the session of a new driver connection."""

    def abandon_connections(self) -> None:
        """In a process that was forked off: let the parent's sessions live on when its connections are freed here."""

    def create_database(self) -> None:
        """Make the database itself where that is ours to do (SQLite's file)."""

    def fault(self, error: DBAPIError) -> Fault | None:
        """Return how `error` passes by itself; None when it will not."""
        raise NotImplementedError

    def is_refused(self, error: BaseException) -> bool:
        """Return whether a driver's `error` means that the server refuses our user: the login, or what it may not do.

        The cause is removed by a change of the user on the server.
        """
        return False

    def is_duplicate_key(self, error: DBAPIError) -> bool:
        """Return whether a row with this key exists."""
        raise NotImplementedError

    def is_missing_table(self, error: DBAPIError) -> bool:
        """Return whether a table, or the database file, does not exist."""
        raise NotImplementedError

    def missing_file(self, error: DBAPIError) -> str | None:
        """Say that the database's file, or its folder, does not exist, and the remedy; None when that is not it."""
        return None

    def is_already_there(self, error: DBAPIError) -> bool:
        """Return whether a table, column or index that was to be created exists, perhaps since this very moment."""
        raise NotImplementedError

    @classmethod
    def among(cls, column: ColumnElement[Any], keys: Select[Any]) -> ColumnElement[bool]:
        """Return the condition that `column` is among `keys`, which are selected (and locked) once."""
        return column.in_(keys)

    def joined(self, connection: Executing, first: Prepared, second: Prepared) -> Prepared | None:
        """Return one statement that executes both in a transaction, and selects 1 if `first` changed a row.

        `second` is executed only then. None where that takes several.
        """
        return None

    @classmethod
    def insert_new(cls, table: Table) -> Any:
        """Return an INSERT that leaves rows whose key exists as they are, without an error."""
        raise NotImplementedError

    def insert_prepared(self, connection: Executing, ways: Ways, values: Mapping[str, Any]) -> int:
        """Insert rows whose keys are new and return how many; 0 when that is not known."""
        done: int = connection.exec_driver_sql(ways.lenient.text, ways.lenient.parameters(values)).rowcount
        return done

    def insert_one(self, connection: Connection, table: Table, values: Mapping[str, Any]) -> bool:
        """Insert a row and tell whether its key is new; if it is not, a transaction around it can go on."""
        insert = self.insert_new(table).values(values).execution_options(preserve_rowcount=True)
        return connection.execute(insert).rowcount == 1

    def unfit(self, connection: Connection) -> str | None:
        """Say why this server cannot be used (too old), or None."""
        return None

    def version(self, connection: Connection) -> str:
        """Return the server's name and version."""
        found = connection.dialect.server_version_info
        return f"{self.name} {'.'.join(str(part) for part in found or ())}"

    def install_wakeup(self, connection: Connection, table: Table) -> None:
        """Let rows of `table` that become due call who listens, where the database can do that. In a transaction."""

    def wakeup_problem(self, connection: Connection, table: str) -> str | None:
        """Say why rows of `table` notify no worker although they could, or None."""
        return None

    def open_wakeup(self, connections: Connections, table: str, accepts: Accepts | None = None) -> Wakeup | None:
        """Return the notification of due rows of `table`; None where the database sends none."""
        return None

    def shares_sessions(self, first: Any, second: Any) -> bool:
        """Return whether two driver connections are seen to speak to one session of the server."""
        return False

    def key_problem(self, connection: Connection, table: str, column: str) -> str | None:
        """Say why keys in `column` do not compare byte by byte, or None."""
        return None
