"""Lists of tasks with a filter, by key and in pages, for filters that few or many rows pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from psched.model import NewTask, TaskFilter
from psched.store import TaskStore
from tests.stores.bench import FAR_OFF, soon
from tests.stores.queue.bench import QueueBench, keys_in, row_of
from tests.stores.redis.consistency import Snapshot
from tests.stores.rows import RedisRows
from tests.stores.statements import Watch, watched

KEYS = [f"key{n:02}" for n in range(40)]
MANY = 3000
"""The number of tasks: more rows than a script of Redis sorts."""
PAGE = 7
"""The number of rows that a store reads at a time."""
STEP = 3
"""Lists are continued after every third row. So each place within a page occurs."""


@pytest.fixture(params=["few", "many"])
def rows(request: pytest.FixtureRequest, bench: QueueBench, store: TaskStore) -> Iterator[TaskStore]:
    """40 tasks. With "few" a list finds them by the filter's index, with "many" by the index of keys."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "many":
            patch.setattr("psched.backends.sql.paging.FEW", 3)
        patch.setattr("psched.backends.sql.paging.BATCH", PAGE)
        patch.setattr("psched.backends.redis.task_store._PAGE", PAGE)
        users = (None, "ann", "bob")
        due = [FAR_OFF + n if n % 2 else 1_600_000_000 + n for n in range(len(KEYS))]
        tasks = [NewTask(key, f"type{n % 4}", user=users[n % 3], run_at=due[n]) for n, key in enumerate(KEYS)]
        assert store.submit(tasks) == []
        yield store


def test_each_filter_passes_its_tasks_in_the_order_of_keys(rows: TaskStore) -> None:
    assert keys_in(rows) == KEYS
    assert keys_in(rows, type="type1") == KEYS[1::4]
    assert keys_in(rows, user="ann") == KEYS[1::3]
    assert keys_in(rows, prefix="key1") == KEYS[10:20]
    assert keys_in(rows, prefix="key3", type="type0", user="bob") == ["key32"]
    assert keys_in(rows, late=60) == KEYS[::2]
    assert keys_in(rows, late=60, prefix="key1") == KEYS[10:20:2]
    assert keys_in(rows, late=10**9) == []


def test_a_list_goes_on_behind_a_key(rows: TaskStore) -> None:
    for wanted in ({}, {"type": "type2"}, {"prefix": "key2"}, {"late": 60}, {"status": "waiting"}):
        whole = keys_in(rows, **wanted)
        for place, key in [*enumerate(whole)][::STEP]:
            rest = rows.list(TaskFilter(after=key, **wanted))
            found = [row.key for row in itertools.islice(rest, PAGE + 1)]
            assert found == whole[place + 1 : place + PAGE + 2], (wanted, key)
        assert keys_in(rows, after="kez", **wanted) == []


def test_each_status_passes_its_tasks(bench: QueueBench, rows: TaskStore) -> None:
    claims = rows.acquire(6, 100)
    by_status: dict[str, list[str]] = {"running": sorted(claim.row.key for claim in claims[4:])}
    statuses = ("finished",) if bench.compat else ("finished", "failed", "cancelled")
    for status, claim in zip(statuses, claims, strict=False):
        rows.retire(claim, status, None, 100, soon())
        by_status[status] = [claim.row.key]
    for claim in claims[len(statuses) : 4]:
        rows.release(claim.lease, soon())
    for status, keys in by_status.items():
        found = keys_in(rows, status=status)
        assert keys == [key for key in found if not (bench.compat and key in KEYS[1::2])], status  # not told apart
    gone = {key for keys in by_status.values() for key in keys}
    assert set(keys_in(rows, status="waiting")) >= set(KEYS[::2]) - gone
    assert not set(keys_in(rows, status="waiting")) & gone


@pytest.mark.parametrize("retention", [100, None])
def test_a_failed_task_is_listed_until_it_is_tried_again_or_deleted(ours: QueueBench, retention: float | None) -> None:
    store = ours.queue()
    ours.submit(store, ["again", "gone", "kept", "purged"])
    for claim in store.acquire(4, 100):
        store.retire(claim, "failed", "it broke", 0 if claim.row.key == "purged" else retention, soon())
    store.retry_failed("again")
    store.delete("gone")
    store.purge(10)
    assert keys_in(store, status="failed") == ["kept"]
    assert row_of(store, "again").status == "waiting"
    store.cancel_request("again", 100)
    assert keys_in(store, status="cancelled") == ["again"]
    assert keys_in(store, status="failed", after="kept") == []
    if isinstance(ours.rows, RedisRows):
        assert Snapshot(ours.rows).faults() == []


def test_many_tasks_of_a_status_are_listed_in_pages(ours: QueueBench) -> None:
    store = ours.queue()
    names = [f"{n:04}" for n in range(MANY)]
    store.submit([NewTask(name, "t", user=f"user{name[-1]}", max_running=1, run_at=FAR_OFF) for name in names[::2]])
    store.submit([NewTask(name, "t", user=f"user{name[-1]}", max_running=1) for name in names[1::2]])
    running = sorted(claim.row.key for claim in store.acquire(50, 100))
    assert keys_in(store, status="running") == running
    assert keys_in(store, status="waiting") == [name for name in names if name not in running]
    assert keys_in(store, status="waiting", prefix="29", after="2950") == names[2951:]
    assert keys_in(store, status="finished") == []


@pytest.mark.new_table
@pytest.mark.parametrize("ours", ["sqlite", "mariadb", "postgresql"], indirect=True)
@pytest.mark.parametrize("status", ["failed", "cancelled", "running", "waiting"])
def test_a_status_is_found_by_an_index(ours: QueueBench, status: str) -> None:
    store = ours.queue()
    ours.submit(store, [f"{n:04}" for n in range(1500)])
    retired = "due = NULL, band = NULL, finished_at = updated, purge_at = updated + 300000"
    ours.execute("UPDATE {table} SET status = 'finished', " + retired)
    if ours.database == "mysql":
        ours.execute("ALTER TABLE {table} FORCE")  # else the entries that the UPDATE has left in indexes are counted
    ours.submit(store, ["9failed", "9cancelled", "9running"])
    for claim in store.acquire(3, 100):
        if claim.row.key != "9running":
            store.retire(claim, claim.row.key[1:], None, None, soon())
    ours.submit(store, ["9waiting"])
    with watched(ours) as watch:
        assert [row.key for row in store.list(TaskFilter(status))] == [f"9{status}"]
    see_that_few_rows_were_read(watch)


def see_that_few_rows_were_read(watch: Watch) -> None:
    assert sum(watch.reads) < 50, [*watch.statements, *watch.plans, watch.reads]
