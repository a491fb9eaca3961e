"""Every store finds rows that no worker acquires or that keep failing, by an index, without reading the others."""

from __future__ import annotations

import pytest

from psched.model import Policy, ScheduleRow
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon
from tests.stores.databases import SQL_PAIRS
from tests.stores.rows import RedisRows
from tests.stores.statements import answers, watched
from tests.stores.test_plans import see_that_few_rows_were_read, stop_analysing

__all__ = ["answers"]


def keys(rows: list[ScheduleRow]) -> list[str]:
    return [row.key for row in rows]


def test_what_is_due_for_long_is_found_those_due_longest_first(bench: Bench, store: ScheduleStore) -> None:
    now = int(store.now())
    for key, due in (("fresh", now - 30), ("late", now - 300), ("later", now - 200), ("waits", FAR_OFF)):
        bench.add(store, key, due=due)
    assert keys(store.long_due(100, 10)) == ["late", "later"]
    assert keys(store.long_due(100, 1)) == ["late"]
    assert keys(store.long_due(0, 10)) == ["late", "later", "fresh"]


def test_what_a_worker_holds_is_not_due_until_its_lease_ends(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    bench.take(store, "key")
    assert store.long_due(0, 10) == []
    bench.make_due("key")
    assert keys(store.long_due(100, 10)) == ["key"]


def test_what_fails_is_found_until_it_is_settled(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    bench.add(store, "other")
    for claim in store.acquire(2, 100):
        if claim.row.key == "key":
            assert store.failing(0, 10) == []
            store.retry(claim.lease, 0, "ValueError: it broke", soon())
    if bench.compat:  # its table does not count attempts
        assert store.failing(0, 10) == []
        return
    [row] = store.failing(0, 10)
    assert (row.key, row.status, row.attempts, row.last_error) == ("key", "waiting", 1, "ValueError: it broke")
    claim = bench.take(store, "key")
    [row] = store.failing(0, 10)
    assert (row.key, row.status, row.attempts) == ("key", "running", 2)
    following = int(store.now()) - 30
    assert store.advance(claim, following, following, soon()) is None
    assert store.failing(0, 10) == []
    store.release(bench.take(store, "key").lease, soon())
    assert store.failing(0, 10) == []


def test_what_fails_is_found_by_how_late_its_occurrence_is(bench: Bench, store: ScheduleStore) -> None:
    if bench.compat:
        return
    now = int(store.now())
    for key, due in (("fresh", now - 30), ("late", now - 300), ("later", now - 200)):
        bench.add(store, key, due=due)
    for claim in store.acquire(3, 100):
        store.retry(claim.lease, 500, "it broke", soon())
    assert keys(store.failing(100, 10)) == ["late", "later"]
    assert keys(store.failing(100, 1)) == ["late"]
    assert keys(store.failing(0, 10)) == ["late", "later", "fresh"]


def test_what_a_dead_worker_was_running_is_found(bench: Bench, store: ScheduleStore) -> None:
    if bench.compat:
        return
    bench.add(store, "crashed")
    bench.add(store, "not begun")
    store.acquire(2, 100)
    [holder] = {str(row["holder"]) for row in (bench.raw("crashed"), bench.raw("not begun")) if row is not None}
    assert store.give_back(holder, ["crashed"], 300) == 2
    assert keys(store.failing(0, 10)) == ["crashed"]


def test_a_lease_that_ended_by_itself_is_a_failed_attempt(bench: Bench, store: ScheduleStore) -> None:
    if bench.compat:
        return
    bench.add(store, "key")
    bench.take(store, "key")
    bench.make_due("key")
    bench.take(store, "key")
    assert keys(store.failing(0, 10)) == ["key"]


def test_what_was_deleted_or_is_paused_is_not_found(bench: Bench, store: ScheduleStore) -> None:
    if bench.compat:
        return
    for key in ("deleted", "paused", "fails"):
        bench.add(store, key)
    for claim in store.acquire(3, 100):
        store.retry(claim.lease, 0, "it broke", soon())
    store.delete("deleted")
    bench.write("paused", paused_from=LONG_AGO * 1000)
    assert keys(store.failing(0, 10)) == ["fails"]
    bench.add(store, "deleted")
    assert keys(store.failing(0, 10)) == ["fails"]


def test_the_data_of_what_is_overdue_is_left_out(
    bench: Bench, store: ScheduleStore, answers: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.backends.sql.paging.MAX_BATCH_SIZE", 150_000)
    watched_over = {} if bench.compat else {"policy": Policy(alert_after=1)}
    for number in range(5):
        bench.add(store, f"key{number}", data={"a": "x" * 100_000}, **watched_over)
    for claim in store.acquire(5, 100):
        store.retry(claim.lease, 0, "it broke", soon())
    answers.clear()
    rows = bench.rows
    at_first = rows.bytes_sent() if isinstance(rows, RedisRows) else 0
    late, failing = store.long_due(0, 10), store.failing(0, 10)
    alerts = [] if store.alerts is None else store.alerts.overdue(10)
    assert not isinstance(rows, RedisRows) or rows.bytes_sent() - at_first < 50_000
    assert max(answers, default=0) <= (150_000 if bench.compat else 0), answers
    assert [(row.key, row.type, row.data, row.problem) for row in late] == [
        (f"key{number}", "type1", {}, None) for number in range(5)
    ]
    assert [row.data for row in failing] == [{}] * (0 if bench.compat else 5)
    assert len(alerts) == (0 if bench.compat else 5)


@pytest.mark.parametrize("bare", [*SQL_PAIRS, ("redis", "redis")], indirect=True, ids="-".join)
@pytest.mark.new_table
def test_looking_for_what_is_overdue_reads_nothing_else(bench: Bench, store: ScheduleStore) -> None:
    if bench.database != "redis":
        stop_analysing(bench)
    bench.fill(store, [f"key{n:05}" for n in range(5000)], lambda n: LONG_AGO + n if n < 20 else FAR_OFF + n)
    for claim in store.acquire(10, 100):
        store.retry(claim.lease, 500, "it broke", soon())
    with watched(bench) as watch:
        assert len(store.long_due(60, 100)) == 10
        assert len(store.failing(60, 100)) == (0 if bench.compat else 10)
    see_that_few_rows_were_read(watch)
    assert not any("TEMP B-TREE" in plan or "filesort" in plan for plan in watch.plans), watch.plans
