"""Fixtures for the tests of the ledger: the stores that have a ledger, on each database."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psched.store import ScheduleStore
from psched.store.ledger import Ledger
from tests.stores.bench import Bench
from tests.stores.databases import KINDS, SharedDatabases, folder_for


@pytest.fixture(params=["sqlite", *KINDS, "redis"])
def bare(request: pytest.FixtureRequest, databases: SharedDatabases) -> Iterator[Bench]:
    """A table of `rdb` on each database, and one on Redis. The table does not exist yet."""
    type_, folder = "redis" if request.param == "redis" else "rdb", folder_for(request, request.param)
    bench = databases.bench(type_, request.param, folder)
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def ledger(store: ScheduleStore) -> Ledger:
    """The ledger of the store under test."""
    assert store.ledger is not None
    return store.ledger
