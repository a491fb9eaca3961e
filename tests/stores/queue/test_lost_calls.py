"""A client's call that is sent again after a lost answer affects the task for which it was meant, and no later one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from psched.errors import NotFoundError
from psched.model import LeaseTimes
from psched.queue.queue import Queue
from psched.store import TaskStore
from tests.stores.bench import soon
from tests.stores.databases import SQL_PAIRS
from tests.stores.lost_answers import answer_lost, conflict_before_delete, sent_again, writes_of
from tests.stores.queue.bench import QueueBench, row_of

CALLS: dict[str, Callable[[TaskStore, str], object]] = {
    "delete": lambda store, key: store.delete(key),
    "cancel_request": lambda store, key: store.cancel_request(key, 100),
    "force_finish": lambda store, key: store.force_finish(key, 100),
    "preempt": lambda store, key: store.preempt(key, 100),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_task_that_was_created_since_is_left_alone(ours: QueueBench, call: str) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["rehearsed", "key"])
    number = writes_of(lambda: CALLS[call](store, "rehearsed"))

    def create_anew() -> None:
        if call != "delete":
            other.delete("key")
        ours.submit(other, ["key"], data={"theirs": 1})

    with answer_lost(ours.database, number, create_anew):
        if call == "delete":
            store.delete("key")
        else:
            with pytest.raises(NotFoundError, match="'key'"):
                CALLS[call](store, "key")
    row = row_of(store, "key")
    assert (row.status, row.data, row.attempts) == ("waiting", {"theirs": 1}, 0)


@pytest.mark.parametrize("call", [*CALLS, "retry_failed"])
@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_task_that_is_created_while_a_call_is_sent_again_is_left_alone(
    ours: QueueBench, call: str, place: int
) -> None:
    store, other = ours.queue(), ours.queue()
    status = "failed" if call == "retry_failed" else "waiting"

    def create(where: TaskStore, key: str, data: dict[str, int]) -> None:
        ours.submit(where, [key], data=data)
        if status == "failed":
            where.retire(ours.claim(where, key), "failed", "it broke", None, soon())

    verb = CALLS.get(call, lambda store, key: store.retry_failed(key))
    create(store, "rehearsed", {})
    number = writes_of(lambda: verb(store, "rehearsed"))
    if call != "delete":
        store.delete("rehearsed")
    create(store, "key", {})

    def create_anew() -> None:
        with contextlib.suppress(NotFoundError):  # `delete` has deleted it
            other.delete("key")
        create(other, "key", {"theirs": 1})

    with sent_again(ours.database, number, place, create_anew) as created, contextlib.suppress(NotFoundError):
        verb(store, "key")
    row = store.get("key")
    if created:
        assert row is not None
        assert (row.status, row.data, row.cancel_requested) == (status, {"theirs": 1}, False)


def test_a_task_that_was_created_since_is_not_deleted(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["rehearsed", "key"])
    number = writes_of(lambda: store.delete("rehearsed"))
    other = bench.queue()
    with answer_lost(bench.database, number, lambda: bench.submit(other, ["key"], data={"theirs": 1})):
        store.delete("key")
    assert row_of(store, "key").data == {"theirs": 1}


@pytest.mark.parametrize("bench", SQL_PAIRS, indirect=True, ids="-".join)
def test_a_task_that_another_client_deletes_while_a_conflict_is_waited_out_is_not_found(
    bench: QueueBench, store: TaskStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.submit(store, ["key"])
    other = bench.queue()
    with (
        conflict_before_delete(bench.database, store, monkeypatch, lambda: other.delete("key")),
        pytest.raises(NotFoundError),
    ):
        store.delete("key")


def test_a_task_that_failed_again_is_not_tried_a_third_time(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    for key in ("rehearsed", "key"):
        ours.submit(store, [key])
        store.retire(ours.claim(store, key), "failed", "it broke", None, soon())
    number = writes_of(lambda: store.retry_failed("rehearsed"))
    store.delete("rehearsed")

    def fail_again() -> None:
        other.retire(ours.claim(other, "key"), "failed", "it broke again", None, soon())

    with answer_lost(ours.database, number, fail_again):
        store.retry_failed("key")
    assert row_of(store, "key").status == "failed"


def test_a_submit_sent_again_runs_nothing_twice_however_short_the_retention(
    bench: QueueBench, store: TaskStore
) -> None:
    queue, worker = (Queue(one, LeaseTimes(60, 60, 60), retention=0) for one in (store, bench.queue()))
    number = writes_of(lambda: queue.submit("rehearsed", "t"))
    store.delete("rehearsed")
    ran: list[str] = []

    def run_and_purge() -> None:
        task = worker.poll()
        assert task is not None
        task.finish()
        ran.append(task.key)
        worker.store.purge(100)

    with answer_lost(bench.database, number, run_and_purge):
        queue.submit("key", "t")
    assert ran == ["key"]
    assert worker.poll() is None
    assert store.sent_within >= 10
