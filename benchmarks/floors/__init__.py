"""The floors: per store the same committed statements as psched's, by the bare driver."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.driver_loops import Floor
from benchmarks.floors import mariadb, postgresql, redis, sqlite

FLOORS: dict[str, Callable[[str], Floor]] = {
    "postgresql": postgresql.Floor,
    "mariadb": mariadb.Floor,
    "sqlite": sqlite.Floor,
    "redis": redis.Floor,
}
"""Store → what connects to a URL."""
