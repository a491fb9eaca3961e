"""How the attempts of a queue task end: failed for good, deferred, cancelled. On SQLite in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from psched.acquisition.unrunnable_rows import LOST_ATTEMPTS
from psched.errors import CancelRequestedError, ImmediateProcessStopError
from psched.execution.handler_loop import settle_stopped
from psched.queue.queue import Queue
from psched.task import Task
from tests.unit.in_memory_queue import TIMES, take

# Attempts


def fail(queue: Queue) -> str | None:
    task = take(queue)
    task.retry(error="it broke")
    return task.outcome


def test_a_task_fails_for_good_when_its_attempts_are_used_up(queue: Queue) -> None:
    queue.submit("key", "t", max_attempts=3)
    assert [fail(queue) for _ in range(3)] == ["retried", "retried", "failed"]
    row = queue["key"].metadata()
    assert (row.status, row.attempts, row.last_error) == ("failed", 3, "it broke")
    assert queue.poll() is None
    queue["key"].retry()
    assert take(queue).attempts == 1


def test_max_attempts_of_a_task_come_before_those_of_its_type_and_of_the_configuration(queue: Queue) -> None:
    strict = Queue(queue.store, TIMES, 100, max_attempts=2)
    for key, own, of_type, allowed in (("a", 1, 3, 1), ("b", None, 1, 1), ("c", None, None, 2)):
        queue.submit(key, "t", max_attempts=own)
        for attempt in range(1, allowed + 1):
            task = take(strict)
            task.max_attempts = of_type
            assert task.last_attempt == (attempt == allowed)
            task.retry()
        assert task.outcome == "failed"


def test_released_runs_do_not_count(queue: Queue) -> None:
    queue.submit("key", "t", max_attempts=1)
    for _ in range(3):
        take(queue).release()
    assert fail(queue) == "failed"


def test_a_task_whose_workers_all_died_fails_without_another_run(queue: Queue) -> None:
    queue.submit("key", "t", max_attempts=2)
    for _ in range(2):
        take(queue)
        queue.store.give_back("host/test/1", ["key"], 0)
    assert queue.poll() is None
    row = queue["key"].metadata()
    assert (row.status, row.attempts, row.last_error) == ("failed", 2, LOST_ATTEMPTS)


def test_a_deferred_run_counts_as_no_attempt_and_keeps_the_reason(queue: Queue) -> None:
    queue.submit("key", "t", max_attempts=1)
    for _ in range(3):
        task = take(queue)
        task.defer("no handler here")
        row = queue["key"].metadata()
        assert (task.outcome, row.status, row.attempts, row.last_error) == ("retried", "waiting", 0, "no handler here")
    assert fail(queue) == "failed"


# Cancel


@pytest.mark.parametrize("verb", [Task.release, Task.retry])
def test_a_run_that_was_to_be_cancelled_is_not_tried_again(queue: Queue, verb: Callable[[Task], None]) -> None:
    queue.submit("key", "t")
    task = take(queue)
    queue["key"].cancel_request()
    task.heartbeat()
    assert task.cancel_requested
    verb(task)
    assert task.outcome == "cancelled"
    assert queue["key"].metadata().status == "cancelled"


def test_a_cancelled_run_that_finishes_has_finished(queue: Queue) -> None:
    queue.submit("key", "t")
    task = take(queue)
    queue["key"].cancel_request()
    task.heartbeat()
    task.finish()
    assert queue["key"].metadata().status == "finished"


def test_a_released_task_with_a_cancel_request_is_retired_without_a_run(queue: Queue) -> None:
    queue.submit("key", "t")
    task = take(queue)
    queue["key"].cancel_request()
    task.retry()
    assert queue.poll() is None
    assert queue["key"].metadata().status == "cancelled"


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (CancelRequestedError("cancel"), "cancelled"),
        (ImmediateProcessStopError("stop"), "released"),
        (TimeoutError("slow"), "failed"),
        (None, None),
    ],
)
def test_an_unsettled_run_is_settled_by_the_reason_of_its_stop(
    queue: Queue, reason: Exception | None, outcome: str | None
) -> None:
    queue.submit("key", "t", max_attempts=1)
    task = take(queue)
    task.stop_reason = reason
    settle_stopped(task)
    assert task.outcome == outcome
