"""Threads of one process that acquire at the same moment, and processes that claim tasks of the same user."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest
import sqlalchemy as sa

from faultlab.sql import connect
from psched.backends.rdb.acquire_combiner import AcquireCombiner
from psched.model import Claim, Lease, TaskRow
from psched.store import AcquireOptions
from tests.stores.bench import keys_of
from tests.stores.databases import KINDS
from tests.stores.queue.bench import QueueBench

PATIENCE = 20
OPTIONS = AcquireOptions(10, None, None, ahead=False)


class Slow:
    """An `acquire` that waits for the test, and then returns as many rows as requested, or raises an error."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.entered = threading.Semaphore(0)
        self.go_on = threading.Semaphore(0)
        self.error: BaseException | None = None

    def __call__(self, limit: int, options: AcquireOptions, askers: int) -> list[Claim]:
        self.asked.append(limit)
        self.entered.release()
        assert self.go_on.acquire(timeout=PATIENCE)
        if self.error is not None:
            raise self.error
        return [claim_on(f"{len(self.asked)}-{number}") for number in range(limit)]


def claim_on(key: str) -> Claim:
    return Claim(TaskRow(key=key, type="t", data={}, status="running", run_at=0, due=0), Lease(key, 1, 0))


@pytest.fixture
def slow() -> Slow:
    return Slow()


def together(slow: Slow, combined: AcquireCombiner, limits: list[int]) -> list[list[Claim] | BaseException]:
    """Acquire in one thread, and meanwhile in one further thread for each of `limits`.

    Return the results of the latter.
    """
    found: dict[int, list[Claim] | BaseException] = {}

    def ask(number: int, limit: int) -> None:
        try:
            found[number] = combined.acquire(limit, OPTIONS)
        except BaseException as error:  # noqa: BLE001 – told by the test's own thread
            found[number] = error

    threads = [threading.Thread(target=ask, args=(-1, 1))]
    threads += [threading.Thread(target=ask, args=given) for given in enumerate(limits)]
    threads[0].start()
    assert slow.entered.acquire(timeout=PATIENCE)
    for thread in threads[1:]:
        thread.start()
    while sum(len(requests) for requests in combined._requests.values()) < len(limits):
        threads[-1].join(0.001)
    for _ in range(len(threads)):
        slow.go_on.release()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    return [found[number] for number in range(len(limits))]


def test_those_who_ask_while_one_is_at_it_are_served_at_once_and_nobody_gets_more_than_he_wants(slow: Slow) -> None:
    claims = together(slow, AcquireCombiner(slow), [1, 3, 2])
    assert slow.asked == [1, 6]
    assert [len(some) for some in claims if isinstance(some, list)] == [1, 3, 2]
    keys = [key for some in claims if isinstance(some, list) for key in keys_of(some)]
    assert len(set(keys)) == len(keys) == 6, "one row went to two"


def test_what_the_database_refuses_is_reported_to_all_who_asked(slow: Slow) -> None:
    slow.error = sa.exc.OperationalError("SELECT", {}, Exception("gone"))
    assert together(slow, AcquireCombiner(slow), [1, 1]) == [slow.error, slow.error]


def test_an_interrupted_thread_leaves_the_others_to_acquire_themselves(slow: Slow) -> None:
    slow.error = KeyboardInterrupt()
    together(slow, AcquireCombiner(slow), [1, 1])
    assert slow.asked == [1, 2, 1], "the second request was lost"


def test_nothing_is_acquired_for_a_thread_that_is_interrupted_while_it_waits(slow: Slow) -> None:
    combined = AcquireCombiner(slow)
    first = threading.Thread(target=combined.acquire, args=(1, OPTIONS))
    first.start()
    assert slow.entered.acquire(timeout=PATIENCE)

    def interrupt(timeout: float | None) -> None:
        raise KeyboardInterrupt

    combined._changed.wait = interrupt  # type: ignore[method-assign, assignment]
    with pytest.raises(KeyboardInterrupt):
        combined.acquire(5, OPTIONS)
    slow.go_on.release(2)
    first.join(PATIENCE)
    assert len(combined.acquire(2, OPTIONS)) == 2
    assert slow.asked == [1, 2], "rows were leased for nobody"


def test_other_types_and_other_leases_are_asked_for_apart(slow: Slow) -> None:
    for _ in range(4):
        slow.go_on.release()
    combined = AcquireCombiner(slow)
    calls: list[Callable[[], list[Claim]]] = [
        lambda: combined.acquire(2, OPTIONS),
        lambda: combined.acquire(3, OPTIONS._replace(alive_time=20)),
        lambda: combined.acquire(4, OPTIONS._replace(types=("a",))),
        lambda: combined.acquire(5, OPTIONS._replace(types=("a",), ahead=True)),
    ]
    assert [len(call()) for call in calls] == [2, 3, 4, 5]


@pytest.mark.parametrize("ours", KINDS, indirect=True)
def test_a_user_whose_rows_another_worker_is_acquiring_is_passed_over_while_there_are_others(ours: QueueBench) -> None:
    """This cannot happen on SQLite and Redis, where nobody else writes meanwhile."""
    store = ours.queue()
    ours.submit(store, ["a1", "a2"], user="a", max_running=1)
    ours.submit(store, ["b1", "b2"], user="b", max_running=1)
    assert Counter(keys_of(store.acquire(2, 100))) == Counter(["a1", "b1"])
    for key in ("a1", "b1"):
        store.force_finish(key, 100)
    with connect(ours.url) as busy:
        busy.exec_driver_sql("BEGIN")
        busy.exec_driver_sql(f"SELECT * FROM {ours.table}_users WHERE user_name = 'a' FOR UPDATE")
        assert keys_of(store.acquire(2, 100)) == ["b2"]
        busy.exec_driver_sql("ROLLBACK")
    assert keys_of(store.acquire(2, 100)) == ["a2"]
