"""The cost of the queue's statements with many rows: finished rows, delayed rows, backlogs of users."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psched.model import NewTask, Retry, RunResult
from psched.store import TaskStore
from tests.stores.bench import FAR_OFF, LONG_AGO, keys_of, soon
from tests.stores.databases import DATABASES, SharedDatabases
from tests.stores.queue.bench import QueueBench
from tests.stores.queue.conftest import open_bench
from tests.stores.statements import Watch, watched
from tests.stores.test_plans import stop_analysing

FEW = 400
"""The maximum number of rows that a call may read, of about 4,500."""
WINDOW = 700
"""The maximum number of rows of a call if tasks have users. Such a call reads about 200 rows of users."""
USERS = 1000
"""The number of users: more than the rows that a call may read."""


@pytest.fixture(scope="module", params=DATABASES)
def crowd(
    request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path_factory: pytest.TempPathFactory
) -> QueueBench:
    """A queue with 1,500 rows that finished a minute ago, and 1,500 delayed rows, of 1,000 users."""
    bench = open_bench(databases, "rdb", request.param, tmp_path_factory.mktemp("queue"))
    store = bench.queue()
    store.create_tables()
    store.submit([NewTask(f"done{n:04}", "t", user=f"user{n % USERS:04}") for n in range(1500)])
    bench.execute(
        "UPDATE {table} SET status = 'finished', due = NULL, band = NULL, finished_at = updated,"
        " purge_at = updated + 300000, result = '[1]'"
    )
    store.submit([NewTask(f"later{n:04}", "t", user=f"user{n % USERS:04}", run_at=FAR_OFF + n) for n in range(1500)])
    bench.close()  # tests shall leave no connection behind: they connect anew
    return bench


@pytest.fixture
def store(crowd: QueueBench) -> Iterator[TaskStore]:
    """The store. Rows that a test adds are deleted afterwards."""
    yield crowd.queue()
    crowd.execute("DELETE FROM {table} WHERE type = 'backlog'")
    crowd.close()


def test_polling_an_idle_queue_reads_next_to_nothing(crowd: QueueBench, store: TaskStore) -> None:
    for _ in range(2):
        with watched(crowd) as watch:
            assert store.acquire(10, 100) == []
        see_that_few_rows_were_read(watch, 40)


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
def test_taking_tasks_without_user_reads_what_it_takes(crowd: QueueBench, store: TaskStore, analysed: bool) -> None:
    fill(crowd, store, None, analysed)
    for _ in range(2):
        with watched(crowd) as watch:
            assert len(store.acquire(10, 100)) == 10
        see_that_few_rows_were_read(watch, FEW)


@pytest.mark.new_table
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_a_queue_without_users_and_priorities_is_claimed_by_one_statement(ours: QueueBench) -> None:
    store = ours.queue()
    fill(ours, store, None, analysed=False)
    store.acquire(10, 100)
    with watched(ours) as watch:
        assert len(store.acquire(10, 100)) == 10
    assert len(watch.statements) == (3 if ours.database == "mysql" else 1), watch.statements


@pytest.mark.new_table
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_statistics_of_an_idle_queue_do_not_slow_down_a_backlog(ours: QueueBench) -> None:
    """Statistics without waiting tasks say that `band` and `due` are always NULL."""
    store = ours.queue()
    store.submit([NewTask(f"done{n:04}", "t") for n in range(1500)])
    ours.execute("UPDATE {table} SET status = 'finished', due = NULL, band = NULL, purge_at = updated + 300000")
    analyse(ours)
    fill(ours, store, None, analysed=False)
    for _ in range(2):
        for take in (lambda: store.acquire(10, 100), lambda: store.acquire(10, 100, ["backlog"]), store.next_due):
            with watched(ours) as watch:
                take()
            see_that_few_rows_were_read(watch, FEW)


@pytest.mark.new_table
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_settling_looks_up_each_task_even_in_a_small_table(ours: QueueBench) -> None:
    """A session keeps the plan that it made while the table was small."""
    store = ours.queue()
    store.submit([NewTask(f"key{n:02}", "t") for n in range(60)])
    for settle in (
        lambda claims: store.retire_many(claims, "finished", 100, soon()),
        lambda claims: store.release_many([claim.lease for claim in claims], soon()),
        lambda claims: store.retry_many([Retry(claim.lease, 5, "error") for claim in claims], soon()),
    ):
        claims = store.acquire(4, 100)
        with watched(ours) as watch:
            assert settle(claims) == [None] * 4
        assert sum(watch.reads) <= 30, "\n".join([*watch.statements, *watch.plans, str(watch.reads)])


@pytest.mark.new_table
@pytest.mark.parametrize("ours", ["sqlite"], indirect=True)
@pytest.mark.parametrize("earlier", ["waiting", "leased", "finished"])
def test_statistics_without_users_do_not_slow_down_a_users_tasks(ours: QueueBench, earlier: str) -> None:
    """With such statistics SQLite looked for all users, and sorted their tasks."""
    store = ours.queue()
    fill(ours, store, None, analysed=False)
    if earlier == "leased":
        ours.execute("UPDATE {table} SET status = 'running', holder = 'host/9/dead', due = updated + 300000")
    elif earlier == "finished":
        ours.execute("UPDATE {table} SET status = 'finished', due = NULL, band = NULL, purge_at = updated + 300000")
    analyse(ours)
    ours.execute("DELETE FROM {table}")
    fill(ours, store, "many", analysed=False)
    store.submit([NewTask("one", "backlog", user="one", run_at=LONG_AGO)])
    for _ in range(2):
        with watched(ours) as watch:
            assert store.acquire(10, 100)
        see_that_few_rows_were_read(watch, WINDOW)
        assert any("user_name=? AND due<?" in plan for plan in watch.plans)
        assert "USE TEMP B-TREE FOR ORDER BY" not in watch.plans


@pytest.mark.new_table
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_a_holder_without_leases_is_found_at_once(ours: QueueBench) -> None:
    """The statistics say that every task has the same holder."""
    store = ours.queue()
    fill(ours, store, None, analysed=False)
    ours.execute("UPDATE {table} SET status = 'running', holder = 'host/9/dead', due = updated + 300000")
    analyse(ours)
    for ask in (lambda: store.held_claims("host/9/none"), lambda: store.give_back("host/9/none", [], 10)):
        with watched(ours) as watch:
            assert not ask()
        see_that_few_rows_were_read(watch, FEW)


@pytest.mark.new_table
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
@pytest.mark.parametrize("generic", [False, True], ids=["own plan", "generic plan"])
@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed while all had one user"])
def test_taking_tasks_of_many_users_by_type_reads_no_backlog(ours: QueueBench, analysed: bool, generic: bool) -> None:
    """With such statistics, the index by type and user looks as good as those by type alone and by user alone."""
    store = ours.queue()
    stop_analysing(ours)
    keys = [f"key{n:05}" for n in range(2000)]
    store.submit([NewTask(keys[0], "backlog", run_at=LONG_AGO, user="one")])
    ours.rows.copy(keys, lambda _: LONG_AGO)
    if analysed:
        analyse(ours)
    ours.execute(f"UPDATE {{table}} SET user_name = substr({ours.quoted_key}, 7)")
    store.submit([NewTask("other", "other", run_at=LONG_AGO)])
    store.due_by_type()  # from now on, an acquire reads each type by itself
    for _ in range(2):
        with watched(ours, generic=generic) as watch:
            assert len(store.acquire(10, 100, ["backlog", "rare"])) == 10
        assert sum(watch.reads) <= WINDOW, "\n".join([*watch.statements, *watch.plans, str(watch.reads)])


@pytest.mark.new_table
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_leases_of_other_users_are_not_read(ours: QueueBench) -> None:
    """Statistics without leased tasks say that `holder` is always NULL."""
    store = ours.queue()
    stop_analysing(ours)
    store.submit([NewTask(f"key{n:04}", "t", run_at=LONG_AGO, user=f"user{n:04}") for n in range(2000)])
    analyse(ours)
    ours.execute("UPDATE {table} SET status = 'running', holder = 'host/1/dead', attempts = 1")  # the leases have ended
    with watched(ours) as watch:
        assert len(store.acquire(10, 100)) == 10
    assert sum(watch.reads) <= WINDOW, watch.plans


@pytest.mark.new_table
@pytest.mark.parametrize("ours", DATABASES, indirect=True)
def test_purging_reads_only_what_it_deletes(ours: QueueBench) -> None:
    """Statistics without ended tasks say that `purge_at` is always NULL."""
    store = ours.queue()
    stop_analysing(ours)
    store.submit([NewTask(f"key{n:04}", "t") for n in range(1500)])
    analyse(ours)
    ours.execute("UPDATE {table} SET status = 'finished', due = NULL, band = NULL, purge_at = updated - 300000")
    with watched(ours) as watch:
        assert store.purge(50) == 50
    see_that_few_rows_were_read(watch, FEW)


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
def test_taking_a_users_tasks_reads_no_backlog(crowd: QueueBench, store: TaskStore, analysed: bool) -> None:
    fill(crowd, store, "many", analysed)
    for count in (1, 1, 1, 0):  # half of the room that is left, of three; then there is none
        with watched(crowd) as watch:
            assert len(store.acquire(10, 100)) == count
        see_that_few_rows_were_read(watch, WINDOW)


def test_one_behind_a_backlog_is_found_without_reading_it(crowd: QueueBench, store: TaskStore) -> None:
    fill(crowd, store, "many", analysed=True)
    store.submit([NewTask("one", "backlog", user="one", run_at=LONG_AGO + 99999)])
    for _ in range(3):
        store.acquire(1, 100)  # leaves no room for the backlog's user
    found: list[str] = []
    for _ in range(USERS // 20):  # the delayed rows' users are looked at in turn
        with watched(crowd) as watch:
            found += keys_of(store.acquire(10, 100))
        see_that_few_rows_were_read(watch, WINDOW)
        if "one" in found:
            return
    pytest.fail("it was not found")


def get(store: TaskStore) -> None:
    assert store.get("done0005")
    assert store.outcomes(["done0005", "later0005", "none"]).keys() == {"done0005", "later0005"}


def submit(store: TaskStore) -> None:
    store.submit([NewTask("new", "backlog"), NewTask("done0005", "backlog")])


def settle(store: TaskStore) -> None:
    retired, written, renewed = store.acquire(3, 100)
    store.retire(retired._replace(result=RunResult("[1]", '{"done":1}')), "finished", None, 100, soon())
    store.update_progress(written, '{"done":1}', soon())
    store.update_data(written, {}, soon())
    for begun in (False, True):
        assert None not in store.extend([renewed.lease], 100, begun)


def steer(store: TaskStore) -> None:
    store.cancel_request("backlog0100", 100)
    store.force_finish("backlog0101", 100)
    store.preempt("backlog0102", 100)
    store.delete("backlog0103")


def purge(store: TaskStore) -> None:
    for key in ("backlog0200", "backlog0201"):
        store.force_finish(key, 0)
    assert store.purge(100) == 2
    assert store.purge(100) == 0


def test_no_verb_reads_the_whole_table(crowd: QueueBench, store: TaskStore) -> None:
    fill(crowd, store, None, analysed=True)
    for verb in (get, submit, settle, steer, purge):
        with watched(crowd) as watch:
            verb(store)
        see_that_few_rows_were_read(watch, FEW)


def fill(bench: QueueBench, store: TaskStore, user: str | None, analysed: bool) -> None:
    """Add 1,500 due rows. `user`: their user; `analysed`: whether the database then gathers statistics."""
    limit = None if user is None else 3
    keys = [f"backlog{n:04}" for n in range(1500)]
    store.submit([NewTask(keys[0], "backlog", run_at=LONG_AGO, user=user, max_running=limit)])
    bench.rows.copy(keys, lambda n: LONG_AGO + n)
    if analysed:
        analyse(bench)


def analyse(bench: QueueBench) -> None:
    """Let the database gather statistics."""
    bench.execute(
        {"sqlite": "ANALYZE", "mysql": "ANALYZE TABLE {table}", "postgresql": "ANALYZE {table}"}[bench.database]
    )


def see_that_few_rows_were_read(watch: Watch, few: int) -> None:
    """Fail with the statements and plans if a call has read more than `few` rows, or a whole table."""
    story = "\n".join([*watch.statements, *watch.plans, str(watch.reads)])
    assert sum(watch.reads) <= few, story
    plans = [plan for plan in watch.plans if "_users" not in plan]
    assert not [plan for plan in plans if plan.startswith("SCAN queue") or "Seq Scan" in plan], story
    assert not [plan for plan in plans if "type=ALL" in plan and "Deleting" not in plan], story
    # Where there are few rows MariaDB may look them up by another index, and sort or group these.
    in_order = [plan for plan in plans if "_due" in plan]
    assert not any("TEMP B-TREE FOR ORDER" in plan or "filesort" in plan for plan in in_order), story
