"""Headers of tasks: passed to submit, seen by each run and by each reader of the task, and limited in size."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from psched.errors import NotSupportedError
from psched.model import Claim, LeaseTimes, NewTask, TaskFilter, TaskRow
from psched.queue.queue import Queue
from psched.store import TaskStore
from tests.stores.queue.bench import QueueBench, row_of

HEADERS = {"trace": "00-4bf9\"'\\😀", "retries": 3, "of": {"tenant": None}}
TIMES = LeaseTimes(alive_time=100, retry_wait=0)


def claimed_headers(claim: Claim) -> Mapping[str, Any]:
    assert isinstance(claim.row, TaskRow)
    return claim.row.headers


def test_a_run_sees_the_headers_that_its_task_was_submitted_with(ours: QueueBench) -> None:
    queue = Queue(ours.queue(), TIMES)
    queue.submit("key", "type1", {"n": 1}, headers=HEADERS)
    for _ in range(2):
        task = queue.poll()
        assert task is not None
        assert (task.headers, task.data) == (HEADERS, {"n": 1})
        task.retry(0)
    assert queue["key"].metadata().headers == HEADERS
    assert queue["key"].preempt().headers == HEADERS


def test_each_of_many_tasks_keeps_its_own_headers(ours: QueueBench) -> None:
    store = ours.queue()
    given: list[dict[str, Any]] = [{}, {"n": 1}, {"n": 1}, {"n": 2}, {}, HEADERS]
    store.submit([NewTask(f"key{n}", "type1", headers=headers) for n, headers in enumerate(given)])
    assert [row.headers for row in store.list(TaskFilter())] == given
    leased = {claim.row.key: claimed_headers(claim) for claim in store.acquire(10, 100)}
    assert [leased[f"key{n}"] for n in range(len(given))] == given


def test_a_task_without_headers_has_empty_ones_which_are_json(bench: QueueBench, store: TaskStore) -> None:
    bench.submit(store, ["key"])
    assert json.dumps(claimed_headers(bench.claim(store, "key"))) == "{}"
    assert json.dumps(row_of(store, "key").headers) == "{}"


def test_ten_thousand_headers_are_refused_before_anything_is_written(ours: QueueBench) -> None:
    queue = Queue(ours.queue(), TIMES)
    many = {f"header{n}": n for n in range(10_000)}
    with pytest.raises(ValueError, match=r"the 10000 headers have \d{6} bytes as JSON, at most 4096 can be stored"):
        queue.submit_many([NewTask("first", "type1"), NewTask("key", "type1", headers=many)])
    assert list(queue.list()) == []


@pytest.mark.parametrize("text", ["x" * 4088, "ä" * 2044])
def test_headers_may_have_4096_bytes_as_json(ours: QueueBench, text: str) -> None:
    queue = Queue(ours.queue(), TIMES)
    queue.submit("key", "type1", headers={"h": text})
    assert queue["key"].metadata().headers == {"h": text}
    with pytest.raises(ValueError, match="have 4097 bytes"):
        queue.submit("more", "type1", headers={"h": text + "x"})


def test_headers_that_are_no_json_object_are_refused_by_their_place(ours: QueueBench) -> None:
    queue = Queue(ours.queue(), TIMES)
    with pytest.raises(ValueError, match=r"headers cannot be stored as JSON: headers\['at'\] is a set"):
        queue.submit("key", "type1", headers={"at": {1}})
    with pytest.raises(ValueError, match=r"headers must be a JSON object \(a dict\), got list"):
        queue.submit("key", "type1", headers=["a"])  # type: ignore[arg-type]
    assert list(queue.list()) == []


def test_headers_spoilt_from_outside_make_their_row_unrunnable(ours: QueueBench) -> None:
    store = ours.queue()
    store.submit([NewTask("key", "type1", headers=HEADERS)])
    ours.write("key", headers="[1]")
    claim = ours.claim(store, "key")
    assert claim.row.problem is not None
    assert claim.row.problem.startswith("column headers should hold a JSON object")
    assert claimed_headers(claim) == {}


def test_rdb_compat_refuses_headers(bench: QueueBench, store: TaskStore) -> None:
    if bench.compat:
        with pytest.raises(NotSupportedError, match="rdb_compat cannot store priority, max_attempts or headers"):
            store.submit([NewTask("key", "t", headers={"a": 1})])
