"""PerfectSched's statements on its table, as they were seen on the wire.

They are written here as bytes and SQL, without psched's code, so that tests can compare psched with them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tests.stores.bench import Bench

MAKE_TABLE = {
    "sqlite": "CREATE TABLE IF NOT EXISTS {table} (id VARCHAR(255) NOT NULL, timeout INT NOT NULL, "
    "next_time INT NOT NULL, cron VARCHAR(128) NOT NULL, delay INT NOT NULL, data LONGBLOB NOT NULL, "
    "timezone VARCHAR(255) NULL, PRIMARY KEY (id))",
    "mysql": "CREATE TABLE IF NOT EXISTS {table} (id VARCHAR(255) NOT NULL, timeout INT NOT NULL, "
    "next_time INT NOT NULL, cron VARCHAR(128) NOT NULL, delay INT NOT NULL, data LONGBLOB NOT NULL, "
    "timezone VARCHAR(255) NULL, PRIMARY KEY (id)) DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci",
    "postgresql": "CREATE TABLE IF NOT EXISTS {table} (id VARCHAR(255) NOT NULL, timeout INT NOT NULL, "
    "next_time INT NOT NULL, cron VARCHAR(128) NOT NULL, delay INT NOT NULL, data BYTEA NOT NULL, "
    "timezone VARCHAR(255) NULL, PRIMARY KEY (id))",
}

COLUMNS = ("id", "timeout", "next_time", "cron", "delay", "data", "timezone")


@dataclass
class Original:
    """A client and a worker of PerfectSched on the table of `bench`. They use this host's clock."""

    bench: Bench

    def make_table(self) -> None:
        self.bench.execute(MAKE_TABLE[self.bench.database])

    def add(self, key: str, **values: Any) -> None:
        """Insert a row. Columns that are not given are those of an ordinary hourly schedule that is due."""
        row = {
            "id": key,
            "timeout": 1_600_000_000,
            "next_time": 1_600_000_000,
            "cron": "0 * * * *",
            "delay": 0,
            "data": b'{"key":"value","type":"type1"}',
            "timezone": "UTC",
        } | values
        self.bench.execute(
            "INSERT INTO {table} (id, timeout, next_time, cron, delay, data, timezone) "
            "VALUES (:id, :timeout, :next_time, :cron, :delay, :data, :timezone)",
            **row,
        )

    def poll(self, alive_time: int = 100) -> dict[str, Any] | None:
        """Lease one due row, by a compare-and-set on its timeout, as PerfectSched's worker does.

        Return the row; None if none is due.
        """
        now = int(time.time())
        with self.bench.connect() as connection:
            found = connection.execute(
                sa.text(f"SELECT id, timeout FROM {self.bench.table} WHERE timeout <= :now ORDER BY timeout LIMIT 10"),
                {"now": now},
            ).all()
        for key, timeout in found:
            if self.bench.execute(
                "UPDATE {table} SET timeout = :new WHERE id = :id AND timeout = :timeout",
                new=now + alive_time,
                id=key,
                timeout=timeout,
            ):
                return self.bench.raw(key)
        return None

    def finish(self, row: dict[str, Any], next_time: int) -> int:
        """Store the next occurrence. Return how many rows have changed."""
        return self.bench.execute(
            "UPDATE {table} SET timeout = :timeout, next_time = :next WHERE id = :id AND next_time = :seen",
            timeout=next_time + row["delay"],
            next=next_time,
            id=row["id"],
            seen=row["next_time"],
        )
