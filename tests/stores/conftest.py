"""The conformance suite's fixtures: each store on each database, on a fresh table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psched.store import ScheduleStore
from tests.stores.bench import Bench


@pytest.fixture(params=["rdb", "rdb_compat"])
def bench(request: pytest.FixtureRequest, database: str) -> Iterator[Bench]:
    """One kind of store with its table made, on each database."""
    bench = Bench(request.param, database)
    try:
        bench.open().create_tables()
        yield bench
    finally:
        bench.close()


@pytest.fixture
def store(bench: Bench) -> ScheduleStore:
    """The store under test: the first holder."""
    return bench.open()


@pytest.fixture
def other(bench: Bench) -> ScheduleStore:
    """The same table as another holder sees it."""
    return bench.open()
