"""Many tasks in one call are submitted in parts, so that no other client waits for long."""

from __future__ import annotations

import pytest
import redis

from psched.backends.redis.task_store import RedisTaskStore
from psched.model import NewTask
from tests.stores.lost_answers import refuse_second_part
from tests.stores.queue.bench import QueueBench, keys_in
from tests.stores.rows import RedisRows


@pytest.mark.parametrize("size", [1, 3000])
def test_many_tasks_are_submitted_in_parts(tasks: QueueBench, size: int) -> None:
    assert isinstance(tasks.rows, RedisRows)
    store = tasks.queue()
    assert store.submit([NewTask("key", "t"), NewTask("other", "t")]) == []  # the server knows the script
    count = 12_000 if size == 1 else 3000
    new = [NewTask(f"key{n:05}", "t", {"a": "x" * size}) for n in range(count)]
    before = tasks.rows.calls_of_scripts()
    assert store.submit(new) == []
    assert tasks.rows.calls_of_scripts() - before == 3
    assert keys_in(store) == sorted(["key", "other", *(task.key for task in new)])


def test_a_submit_that_failed_midway_may_be_repeated(tasks: QueueBench, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tasks.queue()
    assert isinstance(store, RedisTaskStore)
    new = [NewTask(f"key{n:05}", "t") for n in range(12_000)]
    refuse_second_part(monkeypatch, store, "_submit")
    with pytest.raises(redis.ResponseError):
        store.submit(new)
    assert len(keys_in(store)) == 5000
    assert store.submit(new) == [task.key for task in new[:5000]]
    assert len(keys_in(store)) == 12_000


def test_nothing_is_written_when_the_last_one_cannot_be(tasks: QueueBench) -> None:
    store = tasks.queue()
    new = [NewTask(f"key{n:05}", "t") for n in range(6000)]
    with pytest.raises(ValueError, match="JSON"):
        store.submit([*new, NewTask("bad", "t", {"a": float("nan")})])
    assert keys_in(store) == []
