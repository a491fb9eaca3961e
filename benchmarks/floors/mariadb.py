"""The floor of MariaDB, by PyMySQL alone. Runs in processes of its own."""

from __future__ import annotations

import random
import secrets
from typing import Any
from urllib.parse import urlsplit

import pymysql

_NOW = "CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)"
_CREATE = """
CREATE TABLE floor (
    `key` VARCHAR(255) COLLATE utf8mb4_nopad_bin PRIMARY KEY, type VARCHAR(255) NOT NULL, data MEDIUMTEXT NOT NULL,
    due BIGINT, fence BIGINT NOT NULL DEFAULT 0, finished_at BIGINT, INDEX floor_due (due, `key`)) ENGINE=InnoDB
"""
_SCHEDULES = """
CREATE TABLE floor_schedules (
    `key` VARCHAR(255) COLLATE utf8mb4_nopad_bin PRIMARY KEY, type VARCHAR(255) NOT NULL, data MEDIUMTEXT NOT NULL,
    status VARCHAR(16) NOT NULL, fence BIGINT NOT NULL, attempts INTEGER NOT NULL, cron VARCHAR(255) NOT NULL,
    timezone VARCHAR(255) NOT NULL, delay_ms BIGINT NOT NULL, next_time BIGINT NOT NULL, version BIGINT NOT NULL,
    catch_up VARCHAR(8) NOT NULL, due BIGINT NOT NULL, INDEX floor_schedules_due (due, `key`)) ENGINE=InnoDB
"""
_INSERT = f"INSERT INTO floor (`key`, type, data, due) VALUES (%s, 'type', '{{}}', {_NOW})"
_ADD = f"""
INSERT INTO floor_schedules (`key`, type, data, status, fence, attempts,
    cron, timezone, delay_ms, next_time, version, catch_up, due)
VALUES (%s, 'type', '{{}}', 'waiting', 0, 0,
    '0 0 * * *', 'UTC', 0, 1767225600, 0, 'all', {_NOW})
"""
_LOOK = f"SELECT `key`, type, data FROM floor WHERE due <= {_NOW} ORDER BY due, `key` LIMIT %s"
_CLAIM = f"UPDATE floor SET due = {_NOW} + 300000, fence = %s WHERE `key` IN %s AND due <= {_NOW}"
_TAKEN = "SELECT `key` FROM floor WHERE `key` IN %s AND fence = %s"
_FINISH = f"UPDATE floor SET due = NULL, finished_at = {_NOW} WHERE `key` IN %s AND fence = %s"


class MariaDBFloor:
    """Statements in autocommit, with READ COMMITTED. A claim reads keys and updates those that are still due.

    If the update has changed only some of the rows, the claim reads the keys of these rows.
    """

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._windows = 1

    def connect(self) -> None:
        """Connect."""
        url = self._url
        self._connection = pymysql.connect(
            host=url.hostname, port=url.port or 0, user=url.username, password=url.password or "",
            database=url.path[1:], charset="utf8mb4", autocommit=True,
            init_command="SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        )  # fmt: skip
        self._cursor = self._connection.cursor()

    def create(self) -> None:
        """Create the tables."""
        self._cursor.execute(_CREATE)
        self._cursor.execute(_SCHEDULES)

    def insert(self, key: str) -> None:
        """Write one task."""
        self._cursor.execute(_INSERT, [key])

    def insert_many(self, keys: list[str]) -> None:
        """Write many tasks in one transaction, by `executemany`, which combines many rows into one statement."""
        self._many(_INSERT, keys)

    def add_many(self, keys: list[str]) -> None:
        """Write many schedules, like `insert_many`."""
        self._many(_ADD, keys)

    def _many(self, statement: str, keys: list[str]) -> None:
        self._connection.begin()
        self._cursor.executemany(statement, [(key,) for key in keys])
        self._connection.commit()

    def claim(self, limit: int) -> tuple[list[Any], Any]:
        """Lease up to `limit` due tasks.

        If another process has taken some of these tasks, the next claim reads more keys.
        """
        fence = secrets.randbits(62)
        self._cursor.execute(_LOOK, [limit * self._windows])
        found = [row[0] for row in self._cursor.fetchall()]
        if not found:
            return [], fence
        start = random.randrange(0, len(found), limit)
        keys = found[start : start + limit]
        taken = self._cursor.execute(_CLAIM, [fence, keys])
        self._windows = min(self._windows * 2, 16) if taken < len(keys) else max(self._windows // 2, 1)
        if 0 < taken < len(keys):
            self._cursor.execute(_TAKEN, [keys, fence])
            return [row[0] for row in self._cursor.fetchall()], fence
        return keys if taken else [], fence

    def finish(self, keys: list[Any], fence: Any) -> None:
        """Finish tasks under their lease."""
        assert self._cursor.execute(_FINISH, [keys, fence]) == len(keys)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()
