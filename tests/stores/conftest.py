"""Fixtures of the conformance tests: each store on each database, with a fresh table."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import closing

import pytest

from faultlab.laboratory import Lab
from psched.store import ScheduleStore
from tests.stores.bench import Bench
from tests.stores.databases import MULTIPLEXER, MYSQLCLIENT, PAIRS, PGBOUNCER, SharedDatabases, folder_for
from tests.trials import take_turns, tests_below

_BY_CONNECTION = {
    "test_callers_connections", "test_isolation", "test_pooler", "test_prepare", "test_tables", "test_wakeup",
}  # fmt: skip
"""Test modules about connections and sessions. They run on everything that can stand between psched and a server."""

_BY_TRANSACTION = {
    "test_acquire", "test_advance_many", "test_async_submit_combiner", "test_async_methods", "test_awaited_results",
    "test_concurrent_processes", "test_fences", "test_forks", "test_give_back", "test_lost_calls", "test_lost_deleting",
    "test_lost_settling", "test_queue_forks", "test_races", "test_retire_many", "test_settle", "test_stale",
    "test_submit", "test_submit_on_advance",
}  # fmt: skip
"""Test modules about transactions, processes and lost answers. They run on every server, and on one pooler or driver.
"""

_BY_PLANNER = {"test_plans", "test_queue_plans", "test_types"}
"""Test modules about what a statement reads, which each database decides for itself."""

_BY_VALUE = {
    "test_filters", "test_headers", "test_listing", "test_read_only", "test_schedule_sizes", "test_sizes",
    "test_unreadable", "test_values",
}  # fmt: skip
"""Test modules about what a database stores and finds. Each database has its own types and collations."""

_ANALYSED = (["never analysed", "never"], ["analysed", "while idle"], ["while leased"])
"""Whether and when a database gathers statistics before a test checks its plans. In the suite a test has one of these
groups.
"""

_SAME_SERVER = {MULTIPLEXER, MYSQLCLIENT, PGBOUNCER}
_SAME_STATEMENTS = ("rdb_compat", "postgresql")
"""Parameters of tests whose statements other tests send too: rdb's to the same server, or rdb_compat's to MariaDB."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the tests of the suite. The others become trials.

    Each test of `rdb` runs on every database. So do the tests of `rdb_compat` that are about connections, plans or
    values; its other tests run on one database in turn. Poolers and other drivers get the tests about connections, and
    in turn those about transactions. A test that is repeated under several conditions runs under one of them in turn.
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
    chosen = _BY_CONNECTION | _BY_TRANSACTION | _BY_PLANNER | _BY_VALUE
    take_turns((item for item in here if item.path.stem not in chosen), ["rdb_compat-sqlite"], ["rdb_compat-mariadb"])


def _is_same_server(value: object) -> bool:
    words = value if isinstance(value, tuple) else (value,)
    return any(isinstance(word, str) and word in _SAME_SERVER for word in words)


@pytest.fixture(scope="session")
def databases(lab: Lab) -> Iterator[SharedDatabases]:
    """The databases that all these tests share."""
    with closing(SharedDatabases(lab)) as databases:
        yield databases


@pytest.fixture(autouse=True)
def reused_sessions(request: pytest.FixtureRequest, databases: SharedDatabases) -> Iterator[None]:
    """Let tests use sessions of PostgreSQL that earlier tests have opened, except tests about connections."""
    with contextlib.nullcontext() if request.path.stem in _BY_CONNECTION else databases.sessions.lent():
        yield


@pytest.fixture(params=PAIRS, ids="-".join)
def bare(request: pytest.FixtureRequest, databases: SharedDatabases) -> Iterator[Bench]:
    """Each kind of store on each database, without its table."""
    type_, database = request.param
    bench = databases.bench(type_, database, folder_for(request, database))
    try:
        yield bench
    finally:
        bench.close()


@pytest.fixture
def new_table(request: pytest.FixtureRequest) -> bool:
    """Whether the test needs a table that has never contained rows: it has the mark `new_table`."""
    return request.node.get_closest_marker("new_table") is not None


@pytest.fixture
def unchecked(request: pytest.FixtureRequest) -> bool:
    """Whether the test writes what the table's CHECK constraints forbid: it has the mark `unchecked`."""
    return request.node.get_closest_marker("unchecked") is not None


@pytest.fixture
def bench(bare: Bench, databases: SharedDatabases, new_table: bool, unchecked: bool) -> Iterator[Bench]:
    """Each kind of store on each database, with an empty table."""
    with databases.made(bare, new_table, unchecked):
        yield bare


@pytest.fixture
def store(bench: Bench) -> ScheduleStore:
    """The store under test. It has a holder of its own."""
    return bench.open()


@pytest.fixture
def other(bench: Bench) -> ScheduleStore:
    """A store of another holder, on the same table."""
    return bench.open()
