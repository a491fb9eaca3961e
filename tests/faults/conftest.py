"""Fixtures of the tests of stores under faults: each store on each database server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from faultlab.redis import Redis
from faultlab.servers import Server
from psched.store import ScheduleStore
from tests.stores.bench import Bench
from tests.stores.databases import KINDS, SERVER_PAIRS, SharedDatabases
from tests.trials import take_turns, tests_below


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let the suite run each test on one store per database: half of the tests on `rdb`, half on `rdb_compat`."""
    take_turns(
        tests_below(__file__, items),
        ["rdb-mariadb", "rdb_compat-postgresql", "rdb-sqlite"],
        ["rdb_compat-mariadb", "rdb-postgresql", "rdb_compat-sqlite"],
    )


@pytest.fixture(scope="session")
def databases(lab: Lab) -> Iterator[SharedDatabases]:
    """The databases that all these tests share."""
    with contextlib.closing(SharedDatabases(lab)) as databases:
        yield databases


@pytest.fixture(params=[*SERVER_PAIRS, ("redis", "redis")], ids="-".join)
def bench(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Bench]:
    """Each kind of store on each database server, with an empty table."""
    type_, database = request.param
    bench = databases.bench(type_, database, tmp_path)
    with contextlib.closing(bench), databases.made(bench):
        yield bench


@pytest.fixture
def server(bench: Bench, lab: Lab) -> Server:
    """The shared server that has the bench's database."""
    if bench.database == "redis":
        return lab.shared(Redis)
    return lab.shared(KINDS["mariadb" if bench.database == "mysql" else bench.database])


@pytest.fixture
def store(bench: Bench) -> ScheduleStore:
    """The tested store, with a connection that has already been used."""
    store = bench.open()
    store.now()
    return store
