"""Every store returns when its earliest row is due, by the database's clock, and reads few rows for that."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from psched.errors import NotSupportedError
from psched.model import NewTask
from psched.store import LeaseStore, ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, keys_of, soon
from tests.stores.databases import PAIRS, SQL_PAIRS, SharedDatabases, on_sql
from tests.stores.queue.bench import QueueBench
from tests.stores.queue.conftest import made_bench
from tests.stores.rows import RedisRows
from tests.stores.statements import Watch, watched

SLACK = 1.0
"""Seconds by which the clock may advance between two statements of a test."""
MANY = 600
BANDS = 5
FEW = 4 * BANDS + 10
"""The maximum number of rows that the call may read, of thousands."""


@pytest.fixture(params=PAIRS, ids="-".join)
def tasks(
    request: pytest.FixtureRequest, databases: SharedDatabases, tmp_path: Path, new_table: bool
) -> Iterator[QueueBench]:
    """Each kind of queue on each database, with an empty table."""
    with made_bench(databases, *request.param, tmp_path, new=new_table) as bench:
        yield bench


def is_about(store: LeaseStore, due: float) -> bool:
    """Return whether the store's earliest row is due at this time, within `SLACK`."""
    wait = store.next_due()
    return wait is not None and -SLACK <= wait - (due - store.now()) <= SLACK


def test_an_empty_table_has_nothing_due(store: ScheduleStore) -> None:
    assert store.next_due() is None


def test_the_earliest_row_counts(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "late", due=FAR_OFF)
    bench.add(store, "early", due=FAR_OFF - 1000)
    assert is_about(store, FAR_OFF - 1000)
    bench.add(store, "due", due=LONG_AGO)
    assert store.next_due() == 0.0


def test_after_the_wait_that_it_tells_the_row_can_be_acquired(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "soon", due=int(store.now()) + 2)
    wait = store.next_due()
    assert wait is not None
    assert 0.5 < wait <= 2
    time.sleep(wait)
    assert keys_of(store.acquire(1, 100)) == ["soon"]


def test_a_lease_is_due_when_it_ends(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    lease = bench.take(store, "key", 100).lease
    assert is_about(store, lease.expires_at)
    store.release(lease, soon())
    assert store.next_due() == 0.0


def test_only_the_types_that_are_asked_for_count(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "a", due=LONG_AGO, type="a")
    bench.add(store, "b", due=FAR_OFF, type="b")
    if bench.compat:
        with pytest.raises(NotSupportedError):
            store.next_due(["a"])
        return
    assert store.next_due(["a"]) == store.next_due(["b", "a"]) == 0.0
    assert store.next_due(["b"])
    assert store.next_due(["c"]) is store.next_due([]) is None


def test_it_is_reported_by_type(bench: Bench, store: ScheduleStore) -> None:
    if bench.compat:
        with pytest.raises(NotSupportedError):
            store.due_by_type()
        return
    assert store.due_by_type() == {}
    for key, due, type_ in (("a", FAR_OFF, "a"), ("b", FAR_OFF, "Ä b"), ("due", LONG_AGO, "a"), ("c", FAR_OFF, "a ")):
        bench.add(store, key, due=due, type=type_)
    found = store.due_by_type()
    assert found.keys() == {"a", "Ä b", "a "}
    assert found["a"] == 0.0
    assert found["a "] == found["Ä b"] == pytest.approx(FAR_OFF - store.now(), abs=SLACK)
    store.delete("b")
    assert store.due_by_type().keys() == {"a", "a "}


@pytest.mark.parametrize("bare", [("rdb", "sqlite"), ("redis", "redis")], indirect=True, ids="-".join)
def test_types_that_are_no_text_are_not_told_and_hide_no_others(bench: Bench, store: ScheduleStore) -> None:
    for key in ("bytes", "good"):
        bench.add(store, key, type=key)
    if bench.database == "sqlite":
        bench.execute("UPDATE {table} SET type = X'FF' WHERE key = 'bytes'")
        assert store.due_by_type() == {"good": 0.0}
    else:
        assert isinstance(bench.rows, RedisRows)
        bench.rows.client.zadd(f"{bench.rows.prefix}types", {b"\xff": 1e15})
        bench.rows.client.zadd(f"{bench.rows.prefix}due:".encode() + b"\xff", {"bytes": 1})
        assert store.due_by_type()["good"] == 0.0


def test_of_tasks_too_in_each_band_and_none_of_what_is_retired(tasks: QueueBench) -> None:
    if tasks.compat:
        return
    store = tasks.queue()
    tasks.submit(store, ["done"], type="done")
    store.retire(tasks.claim(store, "done"), "finished", None, 100, soon())
    for band, (priority, user) in enumerate(((0, None), (3, None), (0, "user"), (-1, "user"))):
        tasks.submit(store, [f"a{band}"], type="a", priority=priority, user=user, run_at=FAR_OFF + band)
        tasks.submit(store, [f"b{band}"], type="b", priority=priority, user=user, run_at=FAR_OFF - 1000 - band)
    found = store.due_by_type()
    assert found.keys() == {"a", "b"}
    assert found["a"] == pytest.approx(FAR_OFF - store.now(), abs=SLACK)
    assert found["b"] == pytest.approx(found["a"] - 1003, abs=SLACK)
    tasks.submit(store, ["now"], type="c", user="other")
    assert store.due_by_type()["c"] == 0.0
    store.acquire(1, 100, ["c"])
    assert store.due_by_type()["c"] == pytest.approx(100, abs=SLACK)


def test_tasks_that_are_retired_are_never_due(tasks: QueueBench) -> None:
    store = tasks.queue()
    tasks.submit(store, ["done"])
    assert store.next_due() == 0.0
    store.retire(tasks.claim(store, "done"), "finished", None, 100, soon())
    assert store.next_due() is None


def test_a_task_counts_whatever_its_priority_and_user(tasks: QueueBench) -> None:
    store = tasks.queue()
    tasks.submit(store, ["late"], run_at=FAR_OFF)
    tasks.submit(store, ["user"], run_at=FAR_OFF - 1000, user="somebody")
    assert is_about(store, FAR_OFF - 1000)
    if not tasks.compat:
        tasks.submit(store, ["low"], run_at=FAR_OFF - 2000, priority=-3, type="rare")
        tasks.submit(store, ["high"], run_at=FAR_OFF - 1500, priority=3, type="rare")
        assert is_about(store, FAR_OFF - 2000)
        assert store.next_due(["type1"]) == pytest.approx(store.next_due(["rare"]) + 1000, abs=SLACK)


@pytest.mark.parametrize("count", [64, 500])
def test_many_types_with_many_priorities_are_asked_for_at_once(tasks: QueueBench, count: int) -> None:
    if tasks.compat:
        return
    store, types, priorities = tasks.queue(), [f"type{n:03}" for n in range(count)], range(17)
    new = [(type_, priority) for type_ in types for priority in priorities]
    store.submit([NewTask(f"{t}/{p}", t, run_at=FAR_OFF + n, priority=p) for n, (t, p) in enumerate(new)])
    store.submit([NewTask("first", types[-1], run_at=FAR_OFF - 1000, priority=16)])
    store.submit([NewTask("foreign", "foreign", run_at=FAR_OFF - 2000)])
    for _ in range(2):  # the second time the bands are known
        assert store.next_due(types) == pytest.approx(FAR_OFF - 1000 - store.now(), abs=SLACK)
    assert store.next_due(types[:-1]) == pytest.approx(FAR_OFF - store.now(), abs=SLACK)
    tasks.submit(store, ["due"], type=types[1], priority=-7)
    assert store.next_due(types) == 0.0
    assert store.next_due([]) is None


def test_many_types_of_schedules_are_asked_for_at_once(bench: Bench, store: ScheduleStore) -> None:
    if bench.compat:
        return
    types = [f"type{n:03}" for n in range(600)]
    bench.add(store, "foreign", due=LONG_AGO, type="foreign")
    bench.add(store, "late", due=FAR_OFF, type=types[0])
    bench.add(store, "early", due=FAR_OFF - 1000, type=types[-1])
    assert store.next_due(types) == pytest.approx(FAR_OFF - 1000 - store.now(), abs=SLACK)
    bench.add(store, "due", due=LONG_AGO, type=types[300])
    assert store.next_due(types) == 0.0


@on_sql
@pytest.mark.new_table
def test_looking_at_many_schedules_reads_one(bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, [f"key{n:05}" for n in range(MANY)], lambda i: FAR_OFF + i)
    for types in [None] if bench.compat else [None, ["type1", "other"]]:
        with watched(bench) as watch:
            assert store.next_due(types)
        see_that_it_is_cheap(watch, 10)


@on_sql
@pytest.mark.new_table
def test_looking_at_the_types_of_many_schedules_reads_a_few_of_each(bench: Bench, store: ScheduleStore) -> None:
    if bench.compat:
        return
    bench.fill(store, [f"key{n:05}" for n in range(MANY)], lambda i: FAR_OFF + i)
    for number in range(BANDS):
        bench.write(f"key{100 * number:05}", type=f"rare{number}")
    gather_statistics(bench)
    with watched(bench) as watch:
        assert len(store.due_by_type()) == 1 + BANDS
    see_that_it_is_cheap(watch, FEW)


@on_sql
@pytest.mark.new_table
def test_asking_for_some_types_of_schedules_reads_none_of_the_others(bench: Bench, store: ScheduleStore) -> None:
    if bench.compat:
        return
    bench.fill(store, [f"key{n:05}" for n in range(MANY)], lambda i: LONG_AGO + i)
    bench.add(store, "ours", due=FAR_OFF, type="ours")
    gather_statistics(bench)
    types = ["ours", *(f"none{n}" for n in range(FEW))]
    with watched(bench) as watch:
        assert store.next_due(types)
    see_that_it_is_cheap(watch, 2 * FEW + 10)


@pytest.mark.new_table
@pytest.mark.parametrize("tasks", SQL_PAIRS, indirect=True, ids="-".join)
def test_asking_for_some_types_of_tasks_reads_none_of_the_others(tasks: QueueBench) -> None:
    if tasks.compat:
        return
    store = tasks.queue()
    foreign = [NewTask(f"key{n:04}", f"foreign{n}", run_at=LONG_AGO, priority=n % BANDS) for n in range(MANY)]
    store.submit([*foreign, NewTask("ours", "ours", run_at=FAR_OFF)])
    gather_statistics(tasks)
    types = ["ours", *(f"none{n}" for n in range(FEW))]
    store.next_due(types)  # it gets to know the bands
    with watched(tasks) as watch:
        assert store.next_due(types)
    see_that_it_is_cheap(watch, FEW + 2 * len(types) * BANDS)


@pytest.mark.new_table
@pytest.mark.parametrize("tasks", SQL_PAIRS, indirect=True, ids="-".join)
def test_looking_at_many_tasks_reads_next_to_nothing(tasks: QueueBench) -> None:
    store = tasks.queue()
    if tasks.compat:
        tasks.submit(store, [f"key{n:05}" for n in range(MANY)], run_at=FAR_OFF)
    else:
        done = [NewTask(f"done{n:04}", "t") for n in range(MANY)]
        later = [NewTask(f"later{n:04}", "t", run_at=FAR_OFF, priority=n % BANDS) for n in range(MANY)]
        store.submit(done)
        tasks.execute("UPDATE {table} SET status = 'finished', due = NULL, band = NULL, purge_at = updated + 300000")
        store.submit(later)
    for types in [None] if tasks.compat else [None, ["t", "other"]]:
        store.next_due(types)  # it gets to know the bands
        with watched(tasks) as watch:
            assert store.next_due(types)
        # With types also the one that is due first in each band; and MariaDB counts what it is told of types and bands.
        see_that_it_is_cheap(watch, FEW if types is None else FEW + 3 * BANDS)
    if not tasks.compat:
        gather_statistics(tasks)
        with watched(tasks) as watch:
            assert store.due_by_type().keys() == {"t"}
        see_that_it_is_cheap(watch, FEW)
        # SQLite does not tell how many rows it reads; but by which columns it finds the next band.
        assert tasks.database != "sqlite" or any("(type=? AND band>?)" in plan for plan in watch.plans), watch.plans


def gather_statistics(bench: Bench) -> None:
    """Let MariaDB gather its statistics now, which it would otherwise do in some seconds. Other databases need none."""
    if bench.database == "mysql":
        bench.execute("ANALYZE TABLE {table}")


def see_that_it_is_cheap(watch: Watch, few: int) -> None:
    """Fail unless the call sent one statement, which read at most `few` rows."""
    story = "\n".join([*watch.statements, *watch.plans, str(watch.reads)])
    assert len(watch.statements) == 1, story
    assert sum(watch.reads) <= few, story
    assert not [plan for plan in watch.plans if "Seq Scan" in plan or f"{watch.bench.table} type=ALL" in plan], story
    assert not [
        plan for plan in watch.plans if plan.startswith(("SCAN schedules", "SCAN queue")) and "INDEX" not in plan
    ]
