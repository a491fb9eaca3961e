"""Events during a run: its lease is recovered, its rule changed, its row created again, or the clock set back."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from psched import cron
from psched.errors import NotFoundError, PreemptedError, ScheduleError
from psched.model import LeaseTimes
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from psched.task import Task
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon
from tests.stores.databases import on_our_tables

HOUR = 3600
ROUNDS = 30


def collection(bench: Bench, store: ScheduleStore) -> ScheduleCollection:
    dialect = "perfectsched" if bench.compat else "vixie"
    return ScheduleCollection(store, LeaseTimes(300, 300, 300), Defaults("UTC", dialect))


def polled(schedules: ScheduleCollection) -> Task:
    task = schedules.poll()
    assert task is not None
    return task


def see_that_all_is_proved(schedules: ScheduleCollection, since: int) -> None:
    if schedules.store.ledger is not None:
        [verdict] = schedules.audit(since, int(schedules.store.now()))
        assert verdict.violations == []


def at_once(*calls: Callable[[], object]) -> list[object]:
    """Make all calls at the same moment, each in a thread.

    Return their results, or the ScheduleErrors that they raise.
    """
    start, found = threading.Barrier(len(calls)), dict[int, object]()

    def run(number: int, call: Callable[[], object]) -> None:
        start.wait(10)
        try:
            found[number] = call()
        except ScheduleError as error:
            found[number] = error

    threads = [threading.Thread(target=run, args=each) for each in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return [found[number] for number in range(len(calls))]


@on_our_tables
def test_a_run_is_either_settled_or_given_back(bench: Bench, store: ScheduleStore) -> None:
    worker = bench.open("host/1/worker")
    for number in range(ROUNDS):
        key = f"key{number}"
        bench.add(store, key)
        claim = bench.take(worker, key)
        refused, given_back = at_once(
            lambda: worker.advance(claim, FAR_OFF, FAR_OFF, soon()),  # noqa: B023 – called at once
            lambda: store.give_back("host/1/worker", [], 300),
        )
        row = store.get(key)
        assert row is not None
        assert row.attempts == 0
        if given_back:
            assert isinstance(refused, PreemptedError)
            assert (row.next_time, row.status) == (LONG_AGO, "waiting")
        else:
            assert refused is None
            assert row.next_time == FAR_OFF
        store.delete(key)


def test_a_rule_that_was_changed_during_a_run_counts_from_its_occurrence_on(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    worker, client = collection(bench, store), collection(bench, other)
    start = int(store.now()) // HOUR * HOUR - 6 * HOUR
    client.add("key", "t", cron="0 * * * *", next_time=start)
    task = polled(worker)
    client["key"].modify(cron="15 * * * *", timezone="Asia/Kolkata")  # half an hour off the hours of UTC
    task.finish()
    dialect = "perfectsched" if bench.compat else "vixie"
    expected = cron.next_time("15 * * * *", start, "Asia/Kolkata", dialect)
    assert expected == start + 45 * 60
    assert client["key"].metadata().next_time == expected
    ran = []
    while (task_ := worker.poll()) is not None:
        ran.append(task_.scheduled_time)
        task_.finish()
    assert ran[:3] == [expected, expected + HOUR, expected + 2 * HOUR]
    see_that_all_is_proved(client, start)


@pytest.mark.parametrize("settle", ["finish", "retry", "release"])
def test_a_run_whose_schedule_was_deleted_and_added_anew_ends_nothing_of_the_new_one(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, settle: str
) -> None:
    worker, client = collection(bench, store), collection(bench, other)
    start = int(store.now()) // HOUR * HOUR - 2 * HOUR
    client.add("key", "t", cron="0 * * * *", next_time=start)
    task = polled(worker)
    client["key"].delete()
    client.add("key", "t", cron="30 * * * *", next_time=start)
    before = bench.raw("key")
    with pytest.raises((PreemptedError, NotFoundError)):
        getattr(task, settle)()
    assert bench.raw("key") == before
    again = polled(worker)
    assert again.scheduled_time == start + HOUR // 2
    if not bench.compat:
        assert again.fence is not None
        assert task.fence is not None
        assert again.fence > task.fence
    again.finish()
    assert client["key"].metadata().next_time == start + HOUR + HOUR // 2


@on_our_tables
def test_a_clock_that_is_set_back_during_a_run_makes_nothing_run_early_or_twice(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    now = int(store.now())
    for key, due in (("runs", now - 10), ("ends", now - 9), ("waits", now + 30)):
        bench.add(store, key, due=due)
    for key in ("runs", "ends", "waits"):
        bench.write(key, fence=(now + 60) * 1000)
    claims = {claim.row.key: claim for claim in store.acquire(10, 100)}
    assert sorted(claims) == ["ends", "runs"]
    bench.rows.pass_time(-60)
    assert other.acquire(10, 100) == []
    (lease,) = store.extend([claims["runs"].lease], 100)
    assert lease is not None
    assert other.acquire(10, 100) == []
    assert store.advance(claims["runs"], now - 5, now - 5, soon()) is None
    assert store.advance(claims["ends"], FAR_OFF, FAR_OFF, soon()) is None
    following = bench.take(other, "runs")
    assert following.lease.fence > claims["runs"].lease.fence > (now + 60) * 1000
    with pytest.raises(ScheduleError):
        store.advance(claims["runs"], FAR_OFF, FAR_OFF, soon())
    assert other.advance(following, FAR_OFF, FAR_OFF, soon()) is None
