"""The queue as a client sees it, on SQLite in memory: what is refused, how attempts end, what runs leave behind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

import psched
from psched.backends import open_stores
from psched.daemon.runner import settle_stopped
from psched.errors import (
    AlreadyExistsError,
    CancelRequestedError,
    ConfigError,
    IdempotentAlreadyFinishedError,
    ImmediateProcessStopError,
    NotFoundError,
    NotSupportedError,
)
from psched.model import NewTask
from psched.queue import Queue
from psched.retire import Retire
from psched.source import LOST_ATTEMPTS, LeaseTimes
from psched.store import StoreSettings
from psched.task import Task
from tests.unit.ledger import Ledger

TIMES = LeaseTimes(alive_time=60, retry_wait=0, prefetch_time=15)


@pytest.fixture
def queue() -> Iterator[Queue]:
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", queue="psched_queue")).queue
    assert store is not None
    store.create_tables()
    with Queue(store, TIMES, retention=100, max_attempts=None) as queue:
        yield queue


def take(queue: Queue) -> Task:
    task = queue.poll()
    assert task is not None
    return task


def test_a_task_is_submitted_run_and_finished(queue: Queue) -> None:
    reference = queue.submit("task-id", "type1", {"uid": 1})
    task = take(queue)
    assert (task.key, task.type, task.data, task.attempts) == ("task-id", "type1", {"uid": 1}, 1)
    assert task.fence is not None
    task.finish()
    assert queue.poll() is None
    assert reference.metadata().status == "finished"
    with pytest.raises(IdempotentAlreadyFinishedError):
        task.finish()


def test_a_key_can_be_submitted_once_also_while_it_is_retained(queue: Queue) -> None:
    queue.submit("key", "type1")
    with pytest.raises(AlreadyExistsError, match="'key'"):
        queue.submit("key", "type2")
    take(queue).finish()
    with pytest.raises(AlreadyExistsError):
        queue.submit("key", "type1")
    assert queue["key"].exists()
    assert not queue["none"].exists()
    with pytest.raises(NotFoundError):
        queue["none"].metadata()


def test_many_tasks_are_submitted_at_once(queue: Queue) -> None:
    queue.submit("b", "t")
    assert queue.submit_many(NewTask(key, "t") for key in "abc") == ["b"]
    assert queue.submit_many([]) == []
    assert [row.key for row in queue.list(status="waiting")] == ["a", "b", "c"]
    with pytest.raises(ValueError, match="'x' is given twice"):
        queue.submit_many([NewTask("x", "t"), NewTask("x", "t")])


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"key": ""}, "key must be non-empty text"),
        ({"key": "k" * 256}, "at most 255"),
        ({"type": ""}, "type is not usable"),
        ({"data": {"x": float("nan")}}, "data cannot be stored as JSON"),
        ({"run_at": True}, "run_at must be unix seconds"),
        ({"run_at": float("nan")}, "run_at must be unix seconds"),
        ({"user": ""}, "user is not usable"),
        ({"max_running": 2}, "needs a user"),
        ({"user": "u", "max_running": 0}, "max_running must be a whole number, 1 or more, got 0"),
        ({"max_attempts": 1.5}, "max_attempts must be a whole number"),
        ({"priority": 101}, "priority must be a whole number from -100 to 100, got 101"),
        ({"priority": True}, "priority must be"),
        ({"compression": "zip"}, "compression must be 'gzip' or None, got 'zip'"),
    ],
)
def test_what_cannot_be_stored_is_refused_before_anything_is_written(
    queue: Queue, fields: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        queue.submit_many([NewTask("first", "t"), replace(NewTask("key", "t"), **fields)])
    assert list(queue.list()) == []
    with pytest.raises(ValueError, match="status must be one of waiting"):
        queue.list(status="done")


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


def test_the_task_says_more_than_its_type_and_that_more_than_the_configuration(queue: Queue) -> None:
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


def test_a_task_whose_workers_all_died_fails_unrun(queue: Queue) -> None:
    queue.submit("key", "t", max_attempts=2)
    for _ in range(2):
        take(queue)
        queue.store.give_back("host/test/1", ["key"], 0)
    assert queue.poll() is None
    row = queue["key"].metadata()
    assert (row.status, row.attempts, row.last_error) == ("failed", 2, LOST_ATTEMPTS)


def test_a_run_that_is_put_off_counts_as_no_attempt_and_keeps_the_reason(queue: Queue) -> None:
    queue.submit("key", "t", max_attempts=1)
    for _ in range(3):
        task = take(queue)
        task.put_off("no handler here")
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


def test_what_comes_back_cancelled_is_retired_unrun(queue: Queue) -> None:
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
def test_what_is_left_open_is_settled_by_why_it_was_stopped(
    queue: Queue, reason: Exception | None, outcome: str | None
) -> None:
    queue.submit("key", "t", max_attempts=1)
    task = take(queue)
    task.stop_reason = reason
    settle_stopped(task)
    assert task.outcome == outcome


# Data


@pytest.mark.parametrize("settle", [Task.finish, Task.retry, Task.release, Task.cancel])
def test_changed_data_is_written_however_the_run_is_settled(queue: Queue, settle: Callable[[Task], None]) -> None:
    queue.submit("key", "t", {"n": 1})
    task = take(queue)
    task.update_data({"progress": 40})
    task.update_data({"progress": 60, "more": [1]})
    assert task.data == {"n": 1, "progress": 60, "more": [1]}
    assert queue["key"].metadata().data == {"n": 1}
    settle(task)
    assert queue["key"].metadata().data == {"n": 1, "progress": 60, "more": [1]}


def test_changed_data_is_written_with_the_heartbeat(queue: Queue) -> None:
    queue.submit("key", "t", {"n": 1})
    task = take(queue)
    task.update_data({"progress": 40})
    task.heartbeat()
    assert queue["key"].metadata().data == {"n": 1, "progress": 40}


def test_what_is_no_json_is_refused_and_changes_nothing(queue: Queue) -> None:
    queue.submit("key", "t", {"n": 1})
    task = take(queue)
    with pytest.raises(ValueError, match="JSON"):
        task.update_data({"x": {1, 2}})
    assert task.data == {"n": 1}


def test_a_schedules_data_is_its_owners(queue: Queue) -> None:
    ledger = Ledger()
    ledger.keeps_data = False
    with pytest.raises(NotSupportedError, match="queue tasks can"):
        ledger.task().update_data({"x": 1})


# Preempting, purging, opening


def test_a_preempted_task_is_the_new_holders(queue: Queue) -> None:
    queue.submit("key", "t", run_at=2e9)
    task = queue["key"].preempt()
    assert (task.key, task.started) == ("key", True)
    task.heartbeat()
    task.finish()
    assert queue["key"].metadata().status == "finished"


def test_polling_removes_what_is_retained_no_longer(queue: Queue) -> None:
    for n in range(3):
        queue.submit(f"key{n}", "t")
        queue.store.force_finish(f"key{n}", 0 if n else 100)
    queue.source._tidied = 0.0
    assert queue.poll() is None
    assert [row.key for row in queue.list()] == ["key0"]


def test_a_configuration_opens_its_queue(tmp_path: Any) -> None:
    config = {"type": "rdb", "url": f"sqlite:///{tmp_path}/psched.db"}
    with pytest.raises(ConfigError, match="psched init"):
        psched.open_queue(config)
    store = open_stores("rdb", StoreSettings(config["url"], "host/1/x", queue="psched_queue")).queue
    assert store is not None
    store.create_tables()
    store.close()
    with psched.open_queue(config) as queue:
        queue.submit("key", "t")
    with pytest.raises(ConfigError, match="has no queue"):
        psched.open_queue({**config, "schedules": {}})


def test_retired_tasks_are_removed_some_hundreds_at_a_time(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no statement takes long, and no poll waits for all of them."""
    brief = Queue(queue.store, TIMES, retention=0, max_attempts=None)
    brief.submit_many(NewTask(f"key{number}", "t") for number in range(1200))
    for number in range(1200):
        brief[f"key{number}"].force_finish()
    asked: list[tuple[int, int]] = []
    purge = queue.store.purge

    def noted(limit: int) -> int:
        asked.append((limit, purge(limit)))
        return asked[-1][1]

    monkeypatch.setattr(queue.store, "purge", noted)
    retire = Retire(queue.store, 0, None)
    assert [retire.tidy(), retire.tidy(), retire.tidy()] == [True, True, False]
    assert asked == [(500, 500), (500, 500), (500, 200)]
