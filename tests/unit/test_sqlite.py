"""What SQLite guarantees for a file that psched has opened."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError

from psched.backends.common.retries import RetryReason
from psched.backends.sql import open_database
from psched.backends.sql.sqlite import SQLiteDialect
from psched.clock import boottime
from tests.few_descriptors import few_descriptors


class SyncedConnection(sqlite3.Connection):
    """A connection that ignores the setting of `faultlab.unsynced_sqlite`."""

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        return super().execute("SELECT 1" if statement == "PRAGMA synchronous = OFF" else statement, *parameters)


def create_table(connection: sa.Connection, _: bool) -> None:
    connection.exec_driver_sql("CREATE TABLE words (word TEXT)")


def read(connection: sa.Connection, _: bool) -> None:
    connection.exec_driver_sql("SELECT * FROM words")


def test_each_commit_is_on_the_disk_before_it_is_acknowledged(tmp_path: Path) -> None:
    """This is SQLite's default, but some builds have `SQLITE_DEFAULT_WAL_SYNCHRONOUS=1` (NORMAL)."""
    with (
        closing(open_database(f"sqlite:///{tmp_path}/db", {})) as database,
        closing(sqlite3.connect(tmp_path / "db", factory=SyncedConnection)) as connection,
    ):
        connection.execute("PRAGMA synchronous = NORMAL")
        database.dialect.prepare(connection)
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
        assert connection.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_read_only_file_is_written_as_soon_as_its_mode_allows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If this user may not write a file, SQLite opens the file for reading, and this connection can never write."""
    open_file, modes = SQLiteDialect._open, ["ro", "ro"]
    with closing(open_database(f"sqlite:///{tmp_path}/db", {}, connections=2)) as database:
        database.dialect.create_database()
        with closing(sqlite3.connect(tmp_path / "db")) as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("CREATE TABLE words (word TEXT)")
        monkeypatch.setattr(SQLiteDialect, "_open", lambda self, mode: open_file(self, modes.pop() if modes else mode))
        for connection in [database._pool.take(), database._pool.take()]:
            database._pool.release(connection)
        with pytest.raises(DBAPIError, match="attempt to write a readonly database"):
            database.run(insert)
        assert database.run(insert) == 1


def insert(connection: sa.Connection, uncertain: bool) -> int:
    count: int = connection.exec_driver_sql("INSERT INTO words VALUES ('x')").rowcount
    return count


@pytest.mark.parametrize("free", [0, 1, 2])
def test_a_lack_of_descriptors_is_an_outage(tmp_path: Path, free: int) -> None:
    """A connection needs three: for the file, its log and the log's index."""
    url = f"sqlite:///{tmp_path}/db"
    with closing(open_database(url, {})) as database:
        database.dialect.create_database()
        database.run(create_table)
    expected = "unable to open database file: Too many open files"
    with closing(open_database(url, {})) as database:
        with few_descriptors(free), pytest.raises(sa.exc.OperationalError, match=expected) as caught:
            database.run(read, until=boottime() + 0.1)
        assert database.retry_reason(caught.value) is RetryReason.LOST
        database.run(read)


def test_a_file_without_access_is_no_outage(tmp_path: Path) -> None:
    (tmp_path / "db").mkdir()
    with (
        closing(open_database(f"sqlite:///{tmp_path}/db", {})) as database,
        pytest.raises(sa.exc.OperationalError, match="unable to open database file") as caught,
    ):
        database.run(read)
    assert database.retry_reason(caught.value) is None
