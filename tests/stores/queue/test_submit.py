"""Submitting tasks: stored values, existing keys, many tasks, and a caller's transaction."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.orm import Session

from psched.errors import NotSupportedError
from psched.model import NewTask, TaskFilter
from psched.store import TaskStore
from tests.stores.bench import FAR_OFF, LONG_AGO, keys_of, soon
from tests.stores.databases import SQL_PAIRS
from tests.stores.queue.bench import QueueBench, keys_in, row_of


def test_the_claim_tells_all_that_was_submitted(bench: QueueBench, store: TaskStore) -> None:
    more = {} if bench.compat else {"priority": 3, "max_attempts": 4}
    store.submit([NewTask("key", "type1", {"a": [1, None, "ä😀"]}, LONG_AGO, "user", 2, **more)])
    row = bench.claim(store, "key").row
    assert (row.key, row.type, row.data) == ("key", "type1", {"a": [1, None, "ä😀"]})
    stored = row_of(store, "key")
    assert (stored.user, stored.max_running, stored.status) == ("user", 2, "running")
    assert stored.created_at is not None
    assert abs(stored.created_at - store.now()) < 60
    if not bench.compat:
        assert (stored.priority, stored.max_attempts, stored.scheduled_time) == (3, 4, LONG_AGO)


def test_a_key_that_exists_is_reported_and_left_alone(bench: QueueBench, store: TaskStore, other: TaskStore) -> None:
    assert store.submit([NewTask("key", "type1", {"n": 1})]) == []
    before = bench.raw("key")
    assert other.submit([NewTask("key", "type2", {"n": 2}, user="u")]) == ["key"]
    assert bench.raw("key") == before


def test_a_key_is_taken_while_its_finished_task_is_retained(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["key"])
    store.retire(bench.claim(store, "key"), "finished", None, 100, soon())
    assert store.submit([NewTask("key", "type1")]) == ["key"]
    assert store.acquire(10, 100) == []
    assert store.purge(100) == 0


def test_of_many_tasks_only_those_with_new_keys_are_written(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["key3", "key5"])
    tasks = [NewTask(f"key{n}", "type2", {"n": n}) for n in range(9)]
    assert store.submit(tasks) == ["key3", "key5"]
    assert keys_in(store, type="type2") == [f"key{n}" for n in (0, 1, 2, 4, 6, 7, 8)]


def test_thousands_of_tasks_are_written_as_they_were_given(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["key0007"])
    data = {"quotes": "\"'\\ \u2028 %s :x $.y", "text": "ä😀" * 150}
    tasks = [NewTask(f"key{n:04}", "type1", data, LONG_AGO + n) for n in range(2100)]
    tasks[3] = NewTask("key0003", "type2", {"large": '"😀' * 200_000}, FAR_OFF, "user '\\😀", 2)
    assert store.submit(tasks) == ["key0007"]
    large, middle, last = (row_of(store, f"key{n:04}") for n in (3, 1050, 2099))
    same = large.data == tasks[3].data
    assert same, len(large.data["large"])
    assert (large.due, large.user, large.max_running) == (FAR_OFF, "user '\\😀", 2)
    assert (middle.data, middle.due, middle.user, middle.max_running) == (data, LONG_AGO + 1050, None, None)
    assert last.data == data
    assert len(keys_in(store)) == 2100


def test_keys_compare_byte_by_byte(bench: QueueBench, store: TaskStore) -> None:
    keys = [key for key in ["M", "m", "m ", "ä", "a", "😀", "'; --"] if bench.takes(key)]
    assert store.submit([NewTask(key, "type1") for key in keys]) == []
    assert sorted(keys_in(store)) == sorted(keys)


def test_a_task_waits_for_its_time(bench: QueueBench, store: TaskStore) -> None:
    store.submit([NewTask("later", "type1", run_at=FAR_OFF), NewTask("now", "type1"), NewTask("past", "t", run_at=5)])
    assert sorted(keys_of(store.acquire(10, 100))) == ["now", "past"]


def test_compressed_data_is_read_as_it_was_given(bench: QueueBench, store: TaskStore) -> None:
    data = {"text": "ä" * 5000}
    store.submit([NewTask("key", "type1", data, compression="gzip")])
    raw = bench.raw("key")
    assert raw is not None
    assert len(raw["data"]) < 1000
    claim = bench.claim(store, "key")
    assert claim.row.data == data
    store.update_data(claim, {"text": "b" * 5000}, soon())
    raw = bench.raw("key")
    assert raw is not None
    assert len(raw["data"]) < 1000, "the data is compressed no more"
    assert row_of(store, "key").data == {"text": "b" * 5000}


def test_the_list_is_ordered_and_filtered_over_all_pages(bench: QueueBench, store: TaskStore) -> None:
    tasks = [NewTask(f"key{n:04}", f"type{n % 2}", run_at=LONG_AGO + n, user=f"u{n % 3}") for n in range(1203)]
    store.submit(tasks)
    assert keys_in(store) == [task.key for task in tasks]
    assert keys_in(store, type="type1", user="u2") == [t.key for t in tasks if t.type == "type1" and t.user == "u2"]
    assert keys_in(store, status="finished") == []
    assert len(keys_in(store, status="waiting")) == 1203
    assert list(store.list(TaskFilter(type="none"))) == []


def test_rdb_compat_refuses_what_its_table_cannot_hold(bench: QueueBench, store: TaskStore) -> None:
    if not bench.compat:
        return
    for task in (NewTask("key", "t", priority=1), NewTask("key", "t", max_attempts=3)):
        with pytest.raises(NotSupportedError, match="use `type: rdb`"):
            store.submit([task])
    with pytest.raises(ValueError, match="32 bits"):
        store.submit([NewTask("key", "t", run_at=4_000_000_000)])


# In the caller's transaction, which SQL databases have

in_sql = pytest.mark.parametrize("bench", SQL_PAIRS, indirect=True, ids="-".join)


@in_sql
def test_a_task_is_there_once_its_caller_commits(bench: QueueBench, store: TaskStore) -> None:
    with bench.connect() as connection:
        assert store.submit([NewTask("one", "type1")], connection) == []
        if bench.database != "sqlite":  # which lets nobody else write meanwhile, and readers see what was before
            assert store.acquire(10, 100) == []
    assert keys_of(store.acquire(10, 100)) == ["one"]


@in_sql
def test_a_rollback_of_the_caller_leaves_no_task(bench: QueueBench, store: TaskStore) -> None:
    with bench.connect() as connection:
        store.submit([NewTask(f"key{n}", "type1", user="u") for n in range(3)], connection)
        connection.rollback()
    assert keys_in(store) == []


@in_sql
def test_a_key_that_exists_does_not_spoil_the_callers_transaction(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["old"])
    with bench.connect() as connection:
        assert store.submit([NewTask("old", "type2")], connection) == ["old"]
        assert store.submit([NewTask("new", "type2"), NewTask("old", "type2")], connection) == ["old"]
        assert connection.execute(sa.text("SELECT 1")).scalar() == 1
    assert keys_in(store) == ["new", "old"]
    assert row_of(store, "old").type == "type1"


@in_sql
@pytest.mark.parametrize("commits", [True, False])
def test_a_session_will_do(bench: QueueBench, store: TaskStore, commits: bool) -> None:
    engine = sa.create_engine(bench.plain_url)
    with Session(engine) as session:
        store.submit([NewTask("key", "type1")], session)
        if commits:
            session.commit()
    engine.dispose()
    assert keys_in(store) == (["key"] if commits else [])


def test_a_connection_of_another_kind_of_database_is_refused(bench: QueueBench, store: TaskStore) -> None:
    kind = "sqlite://" if bench.database == "postgresql" else "postgresql+psycopg://"
    engine = sa.create_engine(kind)
    connection = sa.Connection.__new__(sa.Connection)  # of a server that is not there
    connection.dialect = engine.dialect
    with pytest.raises(NotSupportedError, match="connection"):
        store.submit([NewTask("key", "type1")], connection)
