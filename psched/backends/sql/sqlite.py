"""SQLite 3.35 or later: one file on one host. The clock is the host's.

In WAL mode readers and the writer do not wait for each other. With `synchronous` FULL, acknowledged writes survive a
power failure. Only `create_database` creates a missing file.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from sqlalchemy import Connection
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler

from psched.backends.common.retries import RetryReason
from psched.backends.common.rows import text_or_bytes
from psched.backends.sql.bulk_statements import given_rows
from psched.backends.sql.dialect import Dialect, met_by_all, met_by_few, now_ms
from psched.clock import monotonic
from psched.descriptor_shortage import descriptor_shortage
from psched.errors import ConfigError
from psched.store import Finding

_FILES = 3
"""The number of files that a connection opens: the database, its write-ahead log, and the index of this log."""


class _NoFile(sqlite3.OperationalError):
    """The database file was missing. Another process may have created it since."""

    sqlite_errorcode = sqlite3.SQLITE_CANTOPEN


class _NoDescriptor(sqlite3.OperationalError):
    """SQLite could not open a file because too few file descriptors were free. They may be free later."""


@contextmanager
def naming_shortage() -> Iterator[None]:
    """Raise `_NoDescriptor` if SQLite cannot open a file for this reason, which SQLite's own error does not tell.

    For the code that opens a connection, and for its first statement, which opens the log.
    """
    try:
        yield
    except sqlite3.OperationalError as error:
        shortage = descriptor_shortage(_FILES)
        if shortage is None or SQLiteDialect.code(error) != sqlite3.SQLITE_CANTOPEN:
            raise
        raise _NoDescriptor(f"{error}: {shortage}") from error


@compiles(now_ms, "sqlite")
def _now_ms(element: now_ms, compiler: SQLCompiler, **options: Any) -> str:
    # SQLite keeps whole milliseconds; rounding removes the error of the floating-point day.
    return "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER)"


@compiles(met_by_few, "sqlite")
def _met_by_few(element: met_by_few, compiler: SQLCompiler, **options: Any) -> str:
    return f"likelihood({compiler.process(element.clauses, **options)}, 0.0001)"


@compiles(met_by_all, "sqlite")
def _met_by_all(element: met_by_all, compiler: SQLCompiler, **options: Any) -> str:
    return f"likelihood({compiler.process(element.clauses, **options)}, 1.0)"


@compiles(given_rows, "sqlite")
def _given_rows(element: given_rows, compiler: SQLCompiler, **options: Any) -> str:
    fields = ", ".join(f"json_extract(value, '$[{place}]') AS {name}" for place, (name, _) in enumerate(element.fields))
    return "".join(("(SELECT ", fields, " FROM json_each(", compiler.process(element.clauses, **options), "))"))


class SQLiteDialect(Dialect):
    """A SQLite file; with `sqlite://`, a database in memory that lives as long as the store."""

    name: ClassVar[str] = "sqlite"
    driver: ClassVar[str] = "pysqlite"
    on_conflict_insert: ClassVar[Any] = staticmethod(insert)
    begin: ClassVar[str] = "BEGIN IMMEDIATE"
    limits_in_unions: ClassVar[bool] = False
    crosses_forks: ClassVar[bool] = False
    """SQLite has mutexes for all connections of a process, and remembers the file locks that they hold. A forked
        process would wait for a thread that it does not have, or treat its parent's locks as its own.
    """

    conflict_codes = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_INTERRUPT)
    lost_codes = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_NOMEM)
    stale_codes = (sqlite3.SQLITE_READONLY,)  # the mode of the file when the connection was opened, or another file
    duplicate_codes = (sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE)

    @property
    def ephemeral(self) -> bool:
        return self.url.database in (None, "", ":memory:")

    @property
    def wal_file(self) -> str | None:
        return f"{self.url.database}-wal" if sys.platform == "linux" and not self.ephemeral else None

    def engine_options(self) -> dict[str, Any]:
        unknown = next(iter(self.url.query), None)  # the timeouts were removed before
        if unknown is not None:
            raise ConfigError(f"url: unknown option {unknown!r}; the known options are connect_timeout, read_timeout")
        return {"creator": lambda: self._connect("rw")}

    def prepare(self, connection: Any) -> None:
        connection.text_factory = text_or_bytes
        with naming_shortage():
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if self.read_only:
            connection.execute("PRAGMA query_only = ON")
            _bound_statements(connection, self.timeouts.statement)

    def create_database(self) -> None:
        """Create the file. Raises ConfigError if its folder does not exist."""
        if self.ephemeral:
            return
        problem = self._folder_problem() or self._file_problem()
        if problem is not None:
            raise ConfigError(f"url: {problem}")
        self._connect("rwc").close()

    def full_disk(self) -> Finding | None:
        """See `Dialect.full_disk`. The test writes a temporary file beside the database.

        A write to the database itself would prove nothing, because it may reuse free space inside the file.
        """
        if self.ephemeral:
            return None
        from tempfile import TemporaryFile  # noqa: PLC0415 – only `psched doctor` needs it

        path = Path(str(self.url.database))
        try:
            with TemporaryFile(dir=path.resolve().parent) as file:
                file.write(bytes(_LEAST_ROOM))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:  # other errors do not concern the database
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                message = f"the disk of {path} is full, so workers wait"
                return Finding("writing", False, message, remedy="free at least 1 MB")
        return None

    def _file_problem(self) -> str | None:
        path = self.url.database
        return f"{path} is a folder; configure a file" if Path(str(path)).is_dir() else None

    def _folder_problem(self) -> str | None:
        """Return a message with the remedy if the folder cannot hold the file, else None."""
        folder = Path(str(self.url.database)).parent
        if folder.is_dir():
            return None
        found = "is not a folder" if folder.exists() else "does not exist"
        remedy = "create or mount the folder, or configure another file"
        return f"the folder {folder} of the SQLite file {found}; {remedy}"

    @staticmethod
    def code(error: BaseException | None) -> int:
        """Return SQLite's primary result code; for a constraint violation, the extended one."""
        code: int = getattr(error, "sqlite_errorcode", 0)
        return code if code & 0xFF == sqlite3.SQLITE_CONSTRAINT else code & 0xFF

    def retry_reason(self, error: DBAPIError) -> RetryReason | None:
        return RetryReason.LOST if isinstance(error.orig, _NoDescriptor) else super().retry_reason(error)

    def is_missing_table(self, error: DBAPIError) -> bool:
        return isinstance(error.orig, _NoFile) or "no such table" in str(error.orig)

    def unusable_file(self, error: DBAPIError) -> str | None:
        if self.code(error.orig) == sqlite3.SQLITE_NOTADB:
            path = self.url.database
            return f"url: {path} is not an SQLite database; configure another file, or move this one away"
        if self.code(error.orig) != sqlite3.SQLITE_CANTOPEN:
            return None
        problem = str(error.orig) if isinstance(error.orig, _NoFile) else self._file_problem()
        return None if problem is None else f"url: {problem}"

    def is_already_there(self, error: DBAPIError) -> bool:
        text = str(error.orig)
        return "already exists" in text or "duplicate column name" in text or self.is_duplicate_key(error)

    def locating(self, table: str) -> str:
        # A temporary table of the same name would hide the queue's table.
        return (
            f"SELECT file, EXISTS (SELECT * FROM sqlite_temp_master WHERE name = '{table}' COLLATE NOCASE) "  # noqa: S608
            "FROM pragma_database_list WHERE name = 'main'"
        )

    def too_old(self, connection: Connection) -> str | None:
        if sqlite3.sqlite_version_info < (3, 35):
            return f"SQLite {sqlite3.sqlite_version} is too old: 3.35 or later is needed"
        return None

    def _connect(self, mode: str) -> sqlite3.Connection:
        try:
            return self._open(mode)
        except sqlite3.OperationalError as error:
            path = str(self.url.database)
            try:
                os.lstat(path)
            except (FileNotFoundError, NotADirectoryError):
                remedy = "configure the right file, or create it with: psched init (for a queue: psched queue init)"
                no_file = f"the SQLite file {path} does not exist; {remedy}"
                raise _NoFile(self._folder_problem() or no_file) from error
            except OSError as failure:
                raise sqlite3.OperationalError(f"{error}: {path}: {failure.strerror}") from failure
            return self._open(mode)  # another process may have created the file

    def _open(self, mode: str) -> sqlite3.Connection:
        path = ":memory:" if self.ephemeral else f"file:{quote(str(self.url.database))}?mode={mode}"
        lock = self.timeouts.lock
        with naming_shortage():
            return sqlite3.connect(
                path, timeout=lock, isolation_level=None, check_same_thread=False, uri=not self.ephemeral
            )


_LEAST_ROOM = 1_000_000
"""How many bytes `psched doctor` must be able to write to the disk of the database."""
_STEPS = 10_000
"""How many instructions SQLite's virtual machine executes, in less than a millisecond, between two checks of the clock.
"""


def _bound_statements(connection: sqlite3.Connection, seconds: float) -> None:
    """Interrupt each statement after `seconds`, as database servers do."""
    begun = monotonic()

    def begin(statement: str) -> None:
        nonlocal begun
        begun = monotonic()

    connection.set_trace_callback(begin)
    connection.set_progress_handler(lambda: monotonic() - begun > seconds, _STEPS)
