"""What SQLite guarantees for a file that psched has opened."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from psched.backends.sql import open_database


class SyncedConnection(sqlite3.Connection):
    """A connection that ignores the setting of `faultlab.unsynced_sqlite`."""

    def execute(self, statement: str, *parameters: Any) -> sqlite3.Cursor:
        return super().execute("SELECT 1" if statement == "PRAGMA synchronous = OFF" else statement, *parameters)


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
