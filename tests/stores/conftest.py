"""The conformance suite's fixtures: each store on each database, on a fresh table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from psched.store import ScheduleStore
from tests.stores.bench import Bench
from tests.stores.databases import PAIRS, SharedDatabases


@pytest.fixture(scope="session")
def databases(lab: Lab) -> SharedDatabases:
    """The databases that the tests share."""
    return SharedDatabases(lab)


@pytest.fixture(params=PAIRS, ids="-".join)
def bare(request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path) -> Iterator[Bench]:
    """Each kind of store on each database, its table not made."""
    type_, database = request.param
    bench = databases.bench(type_, database, tmp_path)
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def new_table(request: pytest.FixtureRequest) -> bool:
    """Whether the test needs a table that has never held anything: it is marked so."""
    return request.node.get_closest_marker("new_table") is not None


@pytest.fixture
def unchecked(request: pytest.FixtureRequest) -> bool:
    """Whether the test writes what the table's CHECK constraints forbid: it is marked so."""
    return request.node.get_closest_marker("unchecked") is not None


@pytest.fixture
def bench(bare: Bench, databases: SharedDatabases, new_table: bool, unchecked: bool) -> Iterator[Bench]:
    """Each kind of store on each database, on an empty table."""
    with databases.made(bare, new_table, unchecked):
        yield bare


@pytest.fixture
def store(bench: Bench) -> ScheduleStore:
    """The store under test: the first holder."""
    return bench.open()


@pytest.fixture
def other(bench: Bench) -> ScheduleStore:
    """The same table as another holder sees it."""
    return bench.open()
