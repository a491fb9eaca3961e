"""Results and progress are stored by the run that still holds its task, and as long as the task itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from psched.errors import NotFoundError, NotSupportedError, PreemptedError, UnstorableResultError
from psched.execution.handler_loop import give_back
from psched.model import Claim, LeaseTimes, NewTask, Progress, RunResult, TaskFilter
from psched.payload import encode_result
from psched.queue.queue import Queue
from psched.store import TaskStore
from psched.task import NO_RESULT, Task, finish_many
from tests.stores.bench import soon
from tests.stores.queue.bench import QueueBench, keys_in, row_of

TIMES = LeaseTimes(alive_time=100, retry_wait=0)
VALUES: list[Any] = [None, 0, False, "", "a\0b \u2028 '\"\\😀", [1, [None]], {"a": {"b": 1.5}}, [], {}]


def with_result(claim: Claim, result: object, progress: str | None = None) -> Claim:
    return claim._replace(result=RunResult(encode_result(result), progress))


def take(queue: Queue) -> Task:
    task = queue.poll()
    assert task is not None
    return task


def kept(store: TaskStore, key: str) -> tuple[str, Any, Progress | None]:
    """Return the stored status, result (`NO_RESULT` if there is none) and progress."""
    row = row_of(store, key)
    return row.status, row.result if row.has_result else NO_RESULT, row.progress


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_result_is_read_as_it_was_returned(ours: QueueBench, value: object) -> None:
    store = ours.queue()
    ours.submit(store, ["alone", "one", "two"])
    claims = {claim.row.key: claim for claim in store.acquire(3, 100)}
    store.retire(with_result(claims["alone"], value), "finished", None, 100, soon())
    both = [with_result(claims["one"], value), with_result(claims["two"], [value])]
    assert store.retire_many(both, "finished", 100, soon()) == [None, None]
    assert [row.result for row in store.list(TaskFilter())] == [value, value, [value]]
    assert all(row.has_result for row in store.list(TaskFilter()))
    assert {key: found.result for key, found in store.outcomes(["alone", "two", "no such"]).items()} == {
        "alone": encode_result(value),
        "two": encode_result([value]),
    }


def test_of_many_runs_each_keeps_its_own_result_or_none(ours: QueueBench) -> None:
    store = ours.queue()
    keys = [f"key{n:03}" for n in range(100)]
    ours.submit(store, keys)
    claims = {claim.row.key: claim for claim in store.acquire(100, 100)}
    large = '"' * 32_000  # all of them are more than one statement of MariaDB's holds
    left: dict[str, Any] = {key: large + key if n % 8 else NO_RESULT for n, key in enumerate(keys)}
    ended = [claims[key] if value is NO_RESULT else with_result(claims[key], value) for key, value in left.items()]
    assert store.retire_many(ended, "finished", 100, soon()) == [None] * 100
    assert {row.key: row.result if row.has_result else NO_RESULT for row in store.list(TaskFilter())} == left


def test_a_run_that_lost_its_lease_stores_no_result(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["alone", "one", "two"])
    first = {claim.row.key: claim for claim in store.acquire(3, 100)}
    for key in first:
        second = other.preempt(key, 100)
        other.retire(with_result(second, f"second {key}"), "finished", None, 100, soon())
    with pytest.raises(PreemptedError):
        store.retire(with_result(first["alone"], "first"), "finished", None, 100, soon())
    refused = store.retire_many([with_result(first[key], "first") for key in ("one", "two")], "finished", 100, soon())
    assert [type(each) for each in refused] == [PreemptedError] * 2
    with pytest.raises(PreemptedError):
        store.update_progress(first["one"], '{"done":1}', soon())
    assert {key: kept(store, key) for key in first} == {key: ("finished", f"second {key}", None) for key in first}


def test_the_progress_of_an_earlier_run_is_no_part_of_a_later_ones_result(ours: QueueBench) -> None:
    queue = Queue(ours.queue(), TIMES)
    queue.submit_many(NewTask(key, "t") for key in ("alone", "one", "two"))
    for task in [take(queue) for _ in range(3)]:
        task.progress(5, 10, "half")
        task.retry(0, "again")
        assert kept(queue.store, task.key) == ("waiting", NO_RESULT, Progress(5, 10, "half", 1))
    tasks = {task.key: task for task in (take(queue) for _ in range(3))}
    tasks["alone"].finish(1)
    assert finish_many([tasks["one"], tasks["two"]], soon()) == {}
    assert kept(queue.store, "alone") == ("finished", 1, None)
    assert kept(queue.store, "one") == kept(queue.store, "two") == ("finished", NO_RESULT, None)


def test_the_last_progress_is_written_with_the_settling(ours: QueueBench) -> None:
    queue = Queue(ours.queue(), TIMES)
    queue.submit_many(NewTask(key, "t") for key in ("cancelled", "failed", "finished", "retried"))
    tasks = {task.key: task for task in (take(queue) for _ in range(4))}
    for task in tasks.values():
        for done in range(1000):
            task.progress(done, 1000)
    tasks["finished"].finish()
    tasks["failed"].fail("it is broken")
    tasks["cancelled"].cancel()
    tasks["retried"].retry(0)
    last = Progress(999, 1000, None, 1)
    assert {row.key: row.progress for row in queue.list()} == dict.fromkeys(tasks, last)
    assert queue["failed"].metadata().last_error == "it is broken"


def test_a_renewal_writes_the_progress(ours: QueueBench) -> None:
    queue = Queue(ours.queue(), TIMES)
    queue.submit("key", "t")
    task = take(queue)
    task.progress(1, 2.5, "x" * 1000)
    assert kept(queue.store, "key") == ("running", NO_RESULT, None)
    task.heartbeat()
    assert kept(queue.store, "key") == ("running", NO_RESULT, Progress(1, 2.5, "x" * 500, 1))


def test_a_task_that_is_tried_again_by_hand_shows_no_progress(ours: QueueBench) -> None:
    queue = Queue(ours.queue(), TIMES)
    queue.submit("key", "t")
    task = take(queue)
    task.progress(1)
    task.fail("it is broken")
    queue["key"].retry()
    assert kept(queue.store, "key") == ("waiting", NO_RESULT, None)


@pytest.mark.parametrize("verb", ["cancel_request", "force_finish"])
def test_a_waiting_task_that_is_ended_by_hand_shows_no_progress(ours: QueueBench, verb: str) -> None:
    queue = Queue(ours.queue(), TIMES)
    queue.submit("key", "t")
    task = take(queue)
    task.progress(1)
    task.retry(0)
    getattr(queue["key"], verb)()
    assert kept(queue.store, "key")[1:] == (NO_RESULT, None)


def test_only_a_finished_run_has_a_result(ours: QueueBench) -> None:
    queue = Queue(ours.queue(), TIMES)
    queue.submit("key", "t")
    task = take(queue)
    task._set_result("left of a finish whose answer was lost")
    task.fail("it is broken")
    assert kept(queue.store, "key") == ("failed", NO_RESULT, None)


def test_a_concluded_run_keeps_its_result_when_it_is_given_back(ours: QueueBench) -> None:
    """A stop releases the runs of a worker, but finishes runs that have been concluded."""
    queue = Queue(ours.queue(), TIMES)
    queue.submit("key", "t")
    task = take(queue)
    task.finished_later = True
    task.conclude("done")
    assert kept(queue.store, "key") == ("running", NO_RESULT, None)
    assert give_back(task)
    assert kept(queue.store, "key") == ("finished", "done", None)


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        ({"at": {1}}, r"result\['at'\] is a set; expected text"),
        ({1: 2}, "the name 1 in result is not text"),
        (float("nan"), "result is nan, which is not valid JSON"),
        ("x" * 65_535, "the result has 65537 bytes as JSON, at most 65536 can be stored"),
    ],
    ids=["set", "name", "nan", "large"],
)
def test_a_result_that_cannot_be_stored_is_refused_and_nothing_is_written(
    ours: QueueBench, value: object, fault: str
) -> None:
    queue = Queue(ours.queue(), TIMES)
    queue.submit("key", "t")
    task = take(queue)
    with pytest.raises(UnstorableResultError, match=fault):
        task.finish(value)
    assert kept(queue.store, "key") == ("running", NO_RESULT, None)
    task.finish("x" * 65_534)
    assert kept(queue.store, "key") == ("finished", "x" * 65_534, None)


def test_types_keep_their_tasks_for_times_of_their_own(ours: QueueBench) -> None:
    queue = Queue(ours.queue(), TIMES, retention=1000)
    queue.submit_many(NewTask(key, "t") for key in ("longer", "shorter", "usual"))
    tasks = {task.key: task for task in (take(queue) for _ in range(3))}
    tasks["longer"].keep_for(5000, None)
    tasks["shorter"].keep_for(500, None)
    assert finish_many(list(tasks.values()), soon()) == {}
    now = queue.store.now()
    ends = {key: (ours.raw(key) or {})["purge_at"] / 1000 - now for key in tasks}
    assert {key: round(seconds, -2) for key, seconds in ends.items()} == {
        "longer": 5000,
        "shorter": 500,
        "usual": 1000,
    }


def test_a_failed_task_is_kept_for_ever_or_as_long_as_its_type_says(ours: QueueBench) -> None:
    queue = Queue(ours.queue(), TIMES)
    queue.submit_many(NewTask(key, "t") for key in ("for a while", "for ever"))
    tasks = {task.key: task for task in (take(queue) for _ in range(2))}
    tasks["for a while"].keep_for(None, 500)
    for task in tasks.values():
        task.fail("it is broken")
    ends = {key: (ours.raw(key) or {}).get("purge_at") for key in tasks}
    assert ends["for ever"] is None
    assert ends["for a while"] is not None
    assert abs(ends["for a while"] / 1000 - queue.store.now() - 500) < 60
    assert keys_in(queue.store, status="failed") == ["for a while", "for ever"]


def test_progress_of_a_deleted_task_tells_so(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["key"])
    claim = ours.claim(store, "key")
    store.delete("key")
    with pytest.raises(NotFoundError):
        store.update_progress(claim, '{"done":1}', soon())


def test_rdb_compat_refuses_results_by_name(bench: QueueBench, store: TaskStore) -> None:
    if not bench.compat:
        return
    queue = Queue(store, TIMES)
    queue.submit("key", "t")
    task = take(queue)
    calls: list[Callable[[], None]] = [lambda: task.finish(1), lambda: task.progress(1), lambda: task.fail("broken")]
    for call in calls:
        with pytest.raises(NotSupportedError, match="'key': rdb_compat keeps n.*; use `type: rdb`"):
            call()
    task.finish()
