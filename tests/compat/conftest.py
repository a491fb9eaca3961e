"""Fixtures of the tables that an original (PerfectSched or PerfectQueue) has made, and that psched uses too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from psched.store import ScheduleStore
from tests.compat.original_schedules import Original
from tests.stores.bench import Bench
from tests.stores.databases import DATABASES, SharedDatabases
from tests.trials import take_turns, tests_below


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the suite run each test on SQLite and on one server; `rdb_compat` sends both servers the same statements."""
    take_turns(tests_below(__file__, items), ["mariadb"], ["postgresql"])


@pytest.fixture(scope="session")
def databases(lab: Lab) -> Iterator[SharedDatabases]:
    """The databases that all these tests share."""
    with contextlib.closing(SharedDatabases(lab)) as databases:
        yield databases


@pytest.fixture(params=DATABASES)
def bench(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Bench]:
    """A bench with `rdb_compat` on each database. Its table is not made yet."""
    bench = databases.bench("rdb_compat", request.param, tmp_path)
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def original(bench: Bench) -> Original:
    """The original PerfectSched, which has made its table."""
    original = Original(bench)
    original.make_table()
    return original


@pytest.fixture
def store(bench: Bench, original: Original) -> ScheduleStore:
    """psched's store, on the table that the original has made."""
    return bench.open()
