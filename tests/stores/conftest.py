"""The conformance suite's fixtures: each store on each database, on a fresh table."""

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

_BY_VALUE = {
    "test_filters", "test_headers", "test_listing", "test_read_only", "test_schedule_sizes", "test_sizes",
    "test_unreadable", "test_values",
}  # fmt: skip
"""The modules about what a database stores and finds: each database has its own types and collations."""

_ANALYSED = (["never analysed", "never"], ["analysed", "while idle"], ["while leased"])
"""Whether and when a database gathers statistics before a test looks at its plans: a test on a database takes one."""

_SAME_SERVER = {MULTIPLEXER, MYSQLCLIENT, PGBOUNCER}
_SAME_STATEMENTS = ("rdb_compat", "postgresql")
"""Parameters that send what others send as well: rdb's statements to the same server, rdb_compat's to MariaDB."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Choose the tests of the suite; the others are trials.

    Each test of `rdb` runs on every database. So do the tests of `rdb_compat` that are about connections, plans or
    values; the others run on one database in turn. Poolers and other drivers get the tests about connections, and their
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
    chosen = _BY_CONNECTION | _BY_TRANSACTION | _BY_PLANNER | _BY_VALUE
    take_turns((item for item in here if item.path.stem not in chosen), ["rdb_compat-sqlite"], ["rdb_compat-mariadb"])


def _is_same_server(value: object) -> bool:
    words = value if isinstance(value, tuple) else (value,)
    return any(isinstance(word, str) and word in _SAME_SERVER for word in words)


@pytest.fixture(scope="session")
def databases(lab: Lab) -> Iterator[SharedDatabases]:
    """The databases that the tests share."""
    with closing(SharedDatabases(lab)) as databases:
        yield databases


@pytest.fixture(autouse=True)
def reused_sessions(request: pytest.FixtureRequest, databases: SharedDatabases) -> Iterator[None]:
    """Let tests use sessions of PostgreSQL of earlier tests, unless they are about connections."""
    with contextlib.nullcontext() if request.path.stem in _BY_CONNECTION else databases.sessions.lent():
        yield


@pytest.fixture(params=PAIRS, ids="-".join)
def bare(request: pytest.FixtureRequest, databases: SharedDatabases) -> Iterator[Bench]:
    """Each kind of store on each database, its table not made."""
    type_, database = request.param
    bench = databases.bench(type_, database, folder_for(request, database))
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
