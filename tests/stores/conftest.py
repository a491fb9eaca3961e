"""The conformance suite's fixtures: each store on each database, on a fresh table."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from psched.store import ScheduleStore
from tests.stores.bench import Bench
from tests.stores.databases import MULTIPLEXER, MYSQLCLIENT, PAIRS, PGBOUNCER, SharedDatabases
from tests.trials import take_turns, tests_below

_BY_CONNECTION = {
    "test_callers_connections", "test_isolation", "test_pooler", "test_prepare", "test_tables", "test_wakeup",
}  # fmt: skip
"""The modules about connections and sessions: their tests run on everything that is between us and a server."""

_BY_TRANSACTION = {
    "test_acquire", "test_advance_many", "test_async_group_submit", "test_async_methods", "test_awaited_results",
    "test_concurrent_processes", "test_fences", "test_forks", "test_give_back", "test_lost_calls", "test_lost_deleting",
    "test_lost_settling", "test_queue_forks", "test_races", "test_retire_many", "test_settle", "test_stale",
    "test_submit", "test_submit_on_advance",
}  # fmt: skip
"""The modules about transactions, processes and lost answers: on every server, and on one pooler or driver."""

_BY_PLANNER = {"test_plans", "test_queue_plans", "test_types"}
"""The modules about what a statement reads, which each database decides for itself."""

_ANALYSED = (["never analysed", "never"], ["analysed", "while idle"], ["while leased"])
"""Whether and when a database gathers statistics before a test looks at its plans: a test on a database takes one."""

_SAME_SERVER = {MULTIPLEXER, MYSQLCLIENT, PGBOUNCER}
_SAME_STATEMENTS = ("rdb_compat", "postgresql")
"""Parameters that send what others send as well: rdb's statements to the same server, rdb_compat's to MariaDB."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the tests of the suite; the others are trials.

    Each test of a store runs on every database. Poolers and other drivers get the tests about connections, and their
    turn of those about transactions. So do the conditions of a test that is repeated under several ones.
    """
    here = tests_below(__file__, items)
    about_transactions = []
    for item in here:
        if item.path.stem in _BY_TRANSACTION:
            about_transactions.append(item)
        elif item.path.stem not in _BY_CONNECTION:
            parameters = getattr(item, "callspec", None)
            values = parameters.params.values() if parameters is not None else ()
            same_statements = _SAME_STATEMENTS in values and item.path.stem not in _BY_PLANNER
            if same_statements or any(_is_same_server(value) for value in values):
                item.add_marker("trial")
    take_turns(about_transactions, ["rdb-mysqlclient"], ["rdb-pgbouncer"], ["rdb-multiplexer"])
    take_turns((item for item in about_transactions if item.path.stem.endswith("forks")), ["warm"], ["cold"])
    take_turns((item for item in here if item.path.stem in _BY_PLANNER), *_ANALYSED)
    take_turns(about_transactions, ["rdb_compat-sqlite"], ["rdb_compat-mariadb"], ["rdb_compat-postgresql"])


def _is_same_server(value: object) -> bool:
    words = value if isinstance(value, tuple) else (value,)
    return any(isinstance(word, str) and word in _SAME_SERVER for word in words)


@pytest.fixture(scope="session")
def databases(lab: Lab) -> Iterator[SharedDatabases]:
    """The databases that the tests share."""
    with closing(SharedDatabases(lab)) as databases:
        yield databases


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
