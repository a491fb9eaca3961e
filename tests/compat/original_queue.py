"""PerfectQueue's statements on its table, as they were seen on the wire.

They are written here as bytes and SQL, without psched's code, so that tests can compare psched with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa

from tests.stores.bench import Bench

_COLUMNS = (
    "id VARCHAR(255) NOT NULL, timeout INT NOT NULL, data {blob} NOT NULL, created_at INT NULL, "
    "resource VARCHAR(255) NULL, max_running INT NULL, owner {owner} NOT NULL DEFAULT 0, PRIMARY KEY (id)"
)
MAKE_TABLE = {
    "sqlite": _COLUMNS.format(blob="LONGBLOB", owner="BIGINT UNSIGNED"),
    "mysql": _COLUMNS.format(blob="LONGBLOB", owner="BIGINT(21) UNSIGNED"),
    "postgresql": _COLUMNS.format(blob="BYTEA", owner="BIGINT"),
}
SUFFIX = {"sqlite": "", "mysql": " DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_general_ci", "postgresql": ""}

COLUMNS = ("id", "timeout", "data", "created_at", "resource", "max_running", "owner")


@dataclass
class OriginalQueue:
    """A client and a worker of PerfectQueue on the table of `bench`. They use this host's clock."""

    bench: Bench

    def make_table(self) -> None:
        kind = self.bench.database
        self.bench.execute(f"CREATE TABLE {{table}} ({MAKE_TABLE[kind]}){SUFFIX[kind]}")
        self.bench.execute("CREATE INDEX index_{table}_on_timeout ON {table} (timeout)")

    def submit(self, key: str, **values: Any) -> None:
        """Insert a row. Columns that are not given are those of an ordinary task that is due."""
        row = {
            "id": key,
            "timeout": 1_600_000_000,
            "data": b'{"key":"value","type":"type1"}',
            "created_at": 1_600_000_000,
            "resource": None,
            "max_running": None,
        } | values
        self.bench.execute(
            "INSERT INTO {table} (id, timeout, data, created_at, resource, max_running) "
            "VALUES (:id, :timeout, :data, :created_at, :resource, :max_running)",
            **row,
        )

    def acquire(self, limit: int = 1, alive_time: int = 100) -> list[dict[str, Any]]:
        """Lease due rows as PerfectQueue's worker does, but without its server-wide lock. Return the rows."""
        table, now = self.bench.table, int(time.time())
        with self.bench.connect() as connection:
            found = connection.scalars(
                sa.text(
                    f"SELECT id FROM {table} LEFT JOIN (SELECT resource AS res, COUNT(1) AS running FROM {table} "
                    "WHERE timeout > :now AND created_at IS NOT NULL AND resource IS NOT NULL GROUP BY resource) AS r "
                    "ON resource = res WHERE 1300000000 < timeout AND timeout <= :now AND created_at IS NOT NULL "
                    "AND (max_running - running IS NULL OR max_running - running > 0) ORDER BY "
                    "COALESCE(max_running, 1) * 1.0 / (COALESCE(running, 0) + 1) DESC, timeout ASC LIMIT :limit"
                ),
                {"now": now, "limit": limit},
            ).all()
        for key in found:
            self.heartbeat(key, alive_time)
        return [row for key in found if (row := self.bench.raw(key)) is not None]

    def acquire_batch(self, limit: int, between: Callable[[], object] = lambda: None) -> list[str] | None:
        """Lease due rows as a worker with `task_prefetch` does. Return their keys; None if the worker drops the batch.

        The worker holds the table's lock and leases all rows by one UPDATE. It drops the batch if the UPDATE has
        changed fewer rows than the worker has selected. `between`: called after the rows have been selected.
        """
        table, now = self.bench.table, int(time.time())
        with self.bench.connect() as connection:
            lock = sa.text("SELECT GET_LOCK(:table, 60)")
            while connection.scalar(lock, {"table": table}) != 1:
                pass
            try:
                found = connection.scalars(
                    sa.text(
                        f"SELECT id FROM {table} WHERE 1300000000 < timeout AND timeout <= :now "
                        "AND created_at IS NOT NULL ORDER BY timeout LIMIT :limit"
                    ),
                    {"now": now, "limit": limit},
                ).all()
                between()
                if not found:
                    return []
                taken = connection.execute(
                    sa.text(
                        f"UPDATE {table} SET timeout = :end WHERE timeout <= :now AND id IN :keys "
                        "AND created_at IS NOT NULL"
                    ).bindparams(sa.bindparam("keys", expanding=True)),
                    {"end": now + 100, "now": now, "keys": found},
                ).rowcount
                connection.execute(sa.text("COMMIT"))
                return list(found) if taken == len(found) else None
            finally:
                connection.execute(sa.text("DO RELEASE_LOCK(:table)"), {"table": table})

    def heartbeat(self, key: str, seconds: int) -> int:
        """Set the row's timeout to `seconds` from now, as heartbeat, release (0 seconds) and retry do.

        Return how many rows have changed.
        """
        return self.bench.execute(
            "UPDATE {table} SET timeout = :timeout WHERE id = :id AND created_at IS NOT NULL",
            timeout=int(time.time()) + seconds,
            id=key,
        )

    def finish(self, key: str, retention: int = 300) -> int:
        """Finish a task. Return how many rows have changed."""
        return self.bench.execute(
            "UPDATE {table} SET timeout = :timeout, created_at = NULL, resource = NULL "
            "WHERE id = :id AND created_at IS NOT NULL",
            timeout=int(time.time()) - 1_000_000_000 + retention,
            id=key,
        )

    def purge(self) -> int:
        """Delete the rows whose retention is over. Return how many."""
        return self.bench.execute("DELETE FROM {table} WHERE timeout <= :end", end=int(time.time()) - 1_000_000_000)
