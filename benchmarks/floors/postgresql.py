"""The floor of PostgreSQL, by psycopg 3 alone. Runs in processes of its own."""

from __future__ import annotations

import secrets
from typing import Any

import psycopg

_NOW = "CAST(extract(epoch FROM statement_timestamp()) * 1000 AS BIGINT)"
_CREATE = """
CREATE TABLE floor (
    key VARCHAR(255) COLLATE "C" PRIMARY KEY, type VARCHAR(255) NOT NULL, data TEXT NOT NULL,
    due BIGINT, fence BIGINT NOT NULL DEFAULT 0, finished_at BIGINT);
CREATE INDEX floor_due ON floor (due, key) WHERE due IS NOT NULL
"""
_SCHEDULES = """
CREATE TABLE floor_schedules (
    key VARCHAR(255) COLLATE "C" PRIMARY KEY, type VARCHAR(255) NOT NULL, data TEXT NOT NULL,
    status VARCHAR(16) NOT NULL, fence BIGINT NOT NULL, attempts INTEGER NOT NULL,
    cron VARCHAR(255) NOT NULL, timezone VARCHAR(255) NOT NULL,
    delay_ms BIGINT NOT NULL, next_time BIGINT NOT NULL, version BIGINT NOT NULL, catch_up VARCHAR(8) NOT NULL,
    due BIGINT NOT NULL);
CREATE INDEX floor_schedules_due ON floor_schedules (due, key)
"""
_INSERT = f"INSERT INTO floor (key, type, data, due) VALUES (%s, 'type', '{{}}', {_NOW})"
_ADD = f"""
INSERT INTO floor_schedules (key, type, data, status, fence, attempts,
    cron, timezone, delay_ms, next_time, version, catch_up, due)
VALUES (%s, 'type', '{{}}', 'waiting', 0, 0,
    '0 0 * * *', 'UTC', 0, 1767225600, 0, 'all', {_NOW})
"""
_CLAIM = f"""
UPDATE floor SET due = {_NOW} + 300000, fence = %s WHERE key = ANY(ARRAY(
    SELECT key FROM floor WHERE due <= {_NOW} ORDER BY due, key LIMIT %s FOR UPDATE SKIP LOCKED))
RETURNING key, type, data
"""
_FINISH = f"UPDATE floor SET due = NULL, finished_at = {_NOW} WHERE key = ANY(%s) AND fence = %s"
_FINISH_ONE = f"UPDATE floor SET due = NULL, finished_at = {_NOW} WHERE key = %s AND fence = %s"


class PostgreSQLFloor:
    """Statements in autocommit: each statement is a transaction. The driver prepares statements that it sends often."""

    def __init__(self, url: str) -> None:
        self._url = url

    def connect(self) -> None:
        """Connect. The planner is made to use the index, because the table has no statistics."""
        self._connection = psycopg.connect(self._url, autocommit=True)
        for what in ("seqscan", "bitmapscan", "sort"):
            self._connection.execute(f"SET enable_{what} = off")

    def create(self) -> None:
        """Create the tables."""
        self._connection.execute(_CREATE)
        self._connection.execute(_SCHEDULES)

    def insert(self, key: str) -> None:
        """Write one task."""
        self._connection.execute(_INSERT, [key])

    def insert_many(self, keys: list[str]) -> None:
        """Write many tasks in one transaction, by `executemany` (a pipeline with one statement for each task)."""
        self._many(_INSERT, keys)

    def add_many(self, keys: list[str]) -> None:
        """Write many schedules, like `insert_many`."""
        self._many(_ADD, keys)

    def _many(self, statement: str, keys: list[str]) -> None:
        with self._connection.transaction(), self._connection.cursor() as cursor:
            cursor.executemany(statement, [(key,) for key in keys])

    def claim(self, limit: int) -> tuple[list[Any], Any]:
        """Lease up to `limit` due tasks."""
        fence = secrets.randbits(62)
        rows = self._connection.execute(_CLAIM, [fence, limit]).fetchall()
        return [row[0] for row in rows], fence

    def finish(self, keys: list[Any], fence: Any) -> None:
        """Finish tasks under their lease."""
        one = len(keys) == 1
        done = self._connection.execute(_FINISH_ONE if one else _FINISH, [keys[0] if one else keys, fence])
        assert done.rowcount == len(keys)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
