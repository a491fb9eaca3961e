"""Fixtures of the shared table: made by the original, used by both."""

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
    """Leave to the suite each test on SQLite and on one server: `rdb_compat` sends both the same statements."""
    take_turns(tests_below(__file__, items), ["mariadb"], ["postgresql"])


@pytest.fixture(scope="session")
def databases(lab: Lab) -> Iterator[SharedDatabases]:
    """The databases that the tests share."""
    with contextlib.closing(SharedDatabases(lab)) as databases:
        yield databases


@pytest.fixture(params=DATABASES)
def bench(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Bench]:
    """`rdb_compat` on each database, its table not made."""
    bench = databases.bench("rdb_compat", request.param, tmp_path)
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def original(bench: Bench) -> Original:
    """The original, which has made its table."""
    original = Original(bench)
    original.make_table()
    return original


@pytest.fixture
def store(bench: Bench, original: Original) -> ScheduleStore:
    """psched on the table that the original made."""
    return bench.open()
