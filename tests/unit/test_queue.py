"""The queue as a client uses it. On SQLite in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import psched
from psched.backends import open_stores
from psched.errors import (
    AlreadyExistsError,
    ConfigError,
    IdempotentAlreadyFinishedError,
    NotFoundError,
    NotSupportedError,
)
from psched.model import NewTask
from psched.queue.queue import Queue
from psched.queue.settlement import TaskSettlement
from psched.store import StoreSettings
from psched.task import Task
from tests.unit.fake_task import Ledger
from tests.unit.in_memory_queue import take


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


def test_a_key_can_be_submitted_once_until_its_retention_ends(queue: Queue) -> None:
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
        ({"type": ""}, "type must be non-empty text"),
        ({"data": {"x": float("nan")}}, "data cannot be stored as JSON"),
        ({"run_at": True}, "run_at must be unix seconds"),
        ({"run_at": float("nan")}, "run_at must be unix seconds"),
        ({"user": ""}, "user must be non-empty text"),
        ({"max_running": 2}, "needs a user"),
        ({"user": "u", "max_running": 0}, "max_running must be a whole number from 1 to 2147483647, got 0"),
        ({"max_attempts": 1.5}, "max_attempts must be a whole number"),
        ({"priority": 101}, "priority must be a whole number from -100 to 100, got 101"),
        ({"priority": True}, "priority must be"),
        ({"priority": 1.0}, "priority must be"),
        ({"compression": "zip"}, "compression must be 'gzip' or None, got 'zip'"),
    ],
)
def test_values_that_cannot_be_stored_are_refused_before_anything_is_written(
    queue: Queue, fields: dict[str, Any], fault: str
) -> None:
    with pytest.raises(ValueError, match=fault):
        queue.submit_many([NewTask("first", "t"), NewTask("key", "t")._replace(**fields)])
    assert list(queue.list()) == []
    with pytest.raises(ValueError, match="status must be one of waiting"):
        queue.list(status="done")


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


def test_update_data_refuses_values_that_are_no_json_and_changes_nothing(queue: Queue) -> None:
    queue.submit("key", "t", {"n": 1})
    task = take(queue)
    with pytest.raises(ValueError, match="JSON"):
        task.update_data({"x": {1, 2}})
    assert task.data == {"n": 1}


def test_a_run_cannot_update_the_data_of_its_schedule(queue: Queue) -> None:
    ledger = Ledger()
    ledger.keeps_data = False
    with pytest.raises(NotSupportedError, match="only the runs of queue tasks can"):
        ledger.task().update_data({"x": 1})


# Preempting, purging, opening


def test_a_preempted_task_can_be_settled_only_by_its_new_holder(queue: Queue) -> None:
    queue.submit("key", "t", run_at=2e9)
    task = queue["key"].preempt()
    assert (task.key, task.started) == ("key", True)
    task.heartbeat()
    task.finish()
    assert queue["key"].metadata().status == "finished"


def test_polling_deletes_tasks_whose_retention_has_ended(queue: Queue) -> None:
    for n in range(3):
        queue.submit(f"key{n}", "t")
        queue.store.force_finish(f"key{n}", 0 if n else 100)
    queue.source._maintained_at = 0.0
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
    with pytest.raises(ConfigError, match="has no section `queue:`"):
        psched.open_queue({**config, "schedules": {}})


def test_retired_tasks_are_deleted_some_hundreds_at_a_time(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """This keeps each statement short, and no poll waits for all deletions."""
    queue.submit_many(NewTask(f"key{number}", "t") for number in range(1200))
    for number in range(1200):
        queue.store.force_finish(f"key{number}", 0)
    asked: list[tuple[int, int]] = []
    purge = queue.store.purge

    def noted(limit: int) -> int:
        asked.append((limit, purge(limit)))
        return asked[-1][1]

    monkeypatch.setattr(queue.store, "purge", noted)
    settlement = TaskSettlement(queue.store, 0, None)
    assert [settlement.maintain(), settlement.maintain(), settlement.maintain()] == [True, True, False]
    assert asked == [(500, 500), (500, 500), (500, 200)]
