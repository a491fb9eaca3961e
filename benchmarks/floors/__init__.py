"""The floors: for each store, the same committed statements as psched's, sent by the bare driver."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.driver_loops import Floor
from benchmarks.floors import mariadb, postgresql, redis, sqlite

FLOORS: dict[str, Callable[[str], Floor]] = {
    "postgresql": postgresql.PostgreSQLFloor,
    "mariadb": mariadb.MariaDBFloor,
    "sqlite": sqlite.SQLiteFloor,
    "redis": redis.RedisFloor,
}
"""For each store, the class of its floor. The argument is a URL."""
