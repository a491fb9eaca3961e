"""The floor of SQLite, by the module `sqlite3` alone. Runs in processes of its own."""

from __future__ import annotations

import secrets
import sqlite3
from typing import Any

_NOW = "CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)"
_CREATE = """
CREATE TABLE floor (
    key VARCHAR(255) PRIMARY KEY, type VARCHAR(255) NOT NULL, data TEXT NOT NULL,
    due BIGINT, fence BIGINT NOT NULL DEFAULT 0, finished_at BIGINT);
CREATE INDEX floor_due ON floor (due, key) WHERE due IS NOT NULL
"""
_SCHEDULES = """
CREATE TABLE floor_schedules (
    key VARCHAR(255) PRIMARY KEY, type VARCHAR(255) NOT NULL, data TEXT NOT NULL, status VARCHAR(16) NOT NULL,
    fence BIGINT NOT NULL, attempts INTEGER NOT NULL, cron VARCHAR(255) NOT NULL, timezone VARCHAR(255) NOT NULL,
    delay_ms BIGINT NOT NULL, next_time BIGINT NOT NULL, version BIGINT NOT NULL, catch_up VARCHAR(8) NOT NULL,
    due BIGINT NOT NULL);
CREATE INDEX floor_schedules_due ON floor_schedules (due, key)
"""
_INSERT = f"INSERT INTO floor (key, type, data, due) VALUES (?, 'type', '{{}}', {_NOW})"
_ADD = f"""
INSERT INTO floor_schedules (key, type, data, status, fence, attempts,
    cron, timezone, delay_ms, next_time, version, catch_up, due)
VALUES (?, 'type', '{{}}', 'waiting', 0, 0,
    '0 0 * * *', 'UTC', 0, 1767225600, 0, 'all', {_NOW})
"""
_CLAIM = f"""
UPDATE floor SET due = {_NOW} + 300000, fence = ? WHERE key IN (
    SELECT key FROM floor WHERE due <= {_NOW} ORDER BY due, key LIMIT ?) RETURNING key, type, data
"""
_FINISH = f"UPDATE floor SET due = NULL, finished_at = {_NOW} WHERE fence = ? AND key IN "


class SQLiteFloor:
    """Statements in autocommit, in WAL mode. `synchronous`: the value of this PRAGMA."""

    def __init__(self, url: str, synchronous: str = "FULL") -> None:
        self._path = url.removeprefix("sqlite:///")
        self._synchronous = synchronous

    def connect(self) -> None:
        """Open the file."""
        self._connection = sqlite3.connect(self._path, timeout=30, isolation_level=None)
        self._connection.execute("PRAGMA journal_mode = WAL")
        self._connection.execute(f"PRAGMA synchronous = {self._synchronous}")

    def create(self) -> None:
        """Create the tables."""
        self._connection.executescript(_CREATE)
        self._connection.executescript(_SCHEDULES)

    def insert(self, key: str) -> None:
        """Write one task."""
        self._connection.execute(_INSERT, [key])

    def insert_many(self, keys: list[str]) -> None:
        """Write many tasks in one transaction."""
        self._many(_INSERT, keys)

    def add_many(self, keys: list[str]) -> None:
        """Write many schedules, like `insert_many`."""
        self._many(_ADD, keys)

    def _many(self, statement: str, keys: list[str]) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.executemany(statement, [(key,) for key in keys])
        self._connection.execute("COMMIT")

    def claim(self, limit: int) -> tuple[list[Any], Any]:
        """Lease up to `limit` due tasks."""
        fence = secrets.randbits(62)
        rows = self._connection.execute(_CLAIM, [fence, limit]).fetchall()
        return [row[0] for row in rows], fence

    def finish(self, keys: list[Any], fence: Any) -> None:
        """Finish tasks under their lease."""
        marks = "?," * (len(keys) - 1) + "?"
        assert self._connection.execute(f"{_FINISH} ({marks})", [fence, *keys]).rowcount == len(keys)

    def close(self) -> None:
        """Close the file."""
        self._connection.close()
