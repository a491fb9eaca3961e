"""Fixtures of the store's fault tests: each store on each database server, near and through whatever breaks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psched.store import ScheduleStore
from tests.lab.servers import Server
from tests.stores.bench import Bench


@pytest.fixture(params=["rdb", "rdb_compat"])
def bench(request: pytest.FixtureRequest, server: Server) -> Iterator[Bench]:
    """One kind of store with its table made, on each database server that all tests share."""
    with server.database() as url:
        bench = Bench(request.param, url)
        try:
            bench.open().create_tables()
            yield bench
        finally:
            bench.close()


@pytest.fixture
def store(bench: Bench) -> ScheduleStore:
    """The store under test, with a connection that has been used."""
    store = bench.open()
    store.now()
    return store


@pytest.fixture
def other(bench: Bench) -> ScheduleStore:
    """The same table as another holder sees it."""
    return bench.open()
