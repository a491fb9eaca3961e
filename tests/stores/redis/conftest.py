"""Fixtures for tests of the Redis store only: schedules and a queue, each with an empty table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.store import ScheduleStore, TaskStore
from tests.stores.bench import Bench
from tests.stores.databases import SharedDatabases
from tests.stores.queue.bench import QueueBench
from tests.stores.queue.conftest import made_bench


@pytest.fixture
def bench(databases: SharedDatabases, tmp_path: Path) -> Iterator[Bench]:
    """The bench of the schedules."""
    bench = databases.bench("redis", "redis", tmp_path)
    try:
        bench.open().create_tables()
        yield bench
    finally:
        bench.close()


@pytest.fixture
def store(bench: Bench) -> ScheduleStore:
    """The store of the schedules."""
    return bench.open()


@pytest.fixture
def tasks(databases: SharedDatabases, tmp_path: Path) -> Iterator[QueueBench]:
    """The bench of the queue."""
    with made_bench(databases, "redis", "redis", tmp_path) as bench:
        yield bench


@pytest.fixture
def queue(tasks: QueueBench) -> TaskStore:
    """The store of the queue."""
    return tasks.queue()
