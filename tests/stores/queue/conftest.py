"""Fixtures of the queue's conformance tests: each store on each database, with an empty table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.store import TaskStore
from tests.stores.databases import DATABASES, PAIRS, SharedDatabases, folder_for
from tests.stores.queue.bench import QueueBench


def open_bench(databases: SharedDatabases, type_: str, database: str, folder: Path) -> QueueBench:
    schedules = databases.bench(type_, database, folder)
    table = schedules.table.replace("schedules", "queue")
    return QueueBench(schedules.type, schedules.url, table, schedules.pooler, schedules.engine)


@contextlib.contextmanager
def made_bench(
    databases: SharedDatabases, type_: str, database: str, folder: Path, **table: bool
) -> Iterator[QueueBench]:
    """Open a bench with an empty table, and close it at the end. `table`: arguments of `SharedDatabases.made`."""
    with contextlib.closing(open_bench(databases, type_, database, folder)) as bench, databases.made(bench, **table):
        yield bench


@pytest.fixture(params=PAIRS, ids="-".join)
def bench(request: pytest.FixtureRequest, databases: SharedDatabases, new_table: bool) -> Iterator[QueueBench]:
    """Each kind of queue on each database, with an empty table."""
    type_, database = request.param
    with made_bench(databases, type_, database, folder_for(request, database), new=new_table) as bench:
        yield bench


@pytest.fixture(params=[*DATABASES, "redis"])
def ours(
    request: pytest.FixtureRequest, databases: SharedDatabases, new_table: bool, unchecked: bool
) -> Iterator[QueueBench]:
    """Each queue with psched's own tables: `rdb` on each database, and `redis`."""
    type_ = "redis" if request.param == "redis" else "rdb"
    folder = folder_for(request, request.param)
    with made_bench(databases, type_, request.param, folder, new=new_table, unchecked=unchecked) as bench:
        yield bench


@pytest.fixture
def store(bench: QueueBench) -> TaskStore:
    """The store under test. It has a holder of its own."""
    return bench.queue()


@pytest.fixture
def other(bench: QueueBench) -> TaskStore:
    """A store of another holder, on the same table."""
    return bench.queue()
