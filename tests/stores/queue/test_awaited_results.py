"""Waiting for results: what is returned or raised, and how many queries the database gets."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest

from psched.errors import (
    NoResultError,
    NotFoundError,
    NotSupportedError,
    ResultTimeoutError,
    ScheduleError,
    TaskCancelledError,
    TaskFailedError,
)
from psched.model import LeaseTimes, NewTask, Progress, TaskOutcome
from psched.queue.queue import Queue
from psched.store import TaskStore
from psched.task import Task
from tests.stores.queue.bench import QueueBench

TIMES = LeaseTimes(alive_time=100, retry_wait=0)


@pytest.fixture
def queue(ours: QueueBench) -> Iterator[Queue]:
    with Queue(ours.queue(), TIMES) as queue:
        yield queue


def begun(queue: Queue, key: str = "key") -> Task:
    queue.submit(key, "type1")
    task = queue.poll()
    assert task is not None
    return task


def test_a_result_that_is_there_is_returned(queue: Queue) -> None:
    begun(queue).finish({"rows": [1, None]})
    assert queue["key"].result() == queue["key"].result(timeout=0) == {"rows": [1, None]}
    assert asyncio.run(queue["key"].aresult(timeout=10)) == {"rows": [1, None]}
    assert queue["key"].status() == asyncio.run(queue["key"].astatus()) == "finished"


def test_a_result_is_waited_for(queue: Queue) -> None:
    task = begun(queue)
    timer = threading.Timer(0.5, task.finish, ["late"])
    timer.start()
    assert queue["key"].result(timeout=60) == "late"
    timer.join()


def test_coroutines_wait_for_many_results_at_once(queue: Queue) -> None:
    tasks = [begun(queue, f"key{n}") for n in range(20)]

    async def main() -> list[Any]:
        waiting = [asyncio.create_task(queue[task.key].aresult(timeout=60)) for task in tasks]
        await asyncio.sleep(0.2)
        for task in tasks:
            await asyncio.to_thread(task.finish, task.key)
        return await asyncio.gather(*waiting)

    assert asyncio.run(main()) == [task.key for task in tasks]


@pytest.mark.parametrize("timeout", [0, 0.2])
def test_a_task_that_has_not_ended_in_time_goes_on(queue: Queue, timeout: float) -> None:
    task = begun(queue)
    calls: list[Callable[[], Any]] = [
        lambda: queue["key"].result(timeout),
        lambda: asyncio.run(queue["key"].aresult(timeout)),
    ]
    for call in calls:
        with pytest.raises(
            ResultTimeoutError, match="'key' has not ended within `timeout`; it is running, and is not cancelled"
        ) as raised:
            call()
        assert isinstance(raised.value, TimeoutError)
    task.finish(1)
    assert queue["key"].result(timeout) == 1


def test_a_failed_task_raises_the_error_that_was_kept(queue: Queue) -> None:
    begun(queue).fail("ValueError('no luck')\nTraceback: …")
    with pytest.raises(TaskFailedError, match=r"'key' has failed: ValueError\('no luck'\)") as raised:
        queue["key"].result(10)
    assert raised.value.error == "ValueError('no luck')\nTraceback: …"


def test_a_cancelled_task_raises(queue: Queue) -> None:
    begun(queue).cancel()
    with pytest.raises(TaskCancelledError, match="'key' was cancelled"):
        queue["key"].result(10)


def test_a_task_that_does_not_exist_any_more_raises(queue: Queue) -> None:
    begun(queue).finish(1)
    queue["key"].delete()
    for call in (queue["key"].status, lambda: queue["key"].result(10)):
        with pytest.raises(NotFoundError, match="never submitted, or was deleted, .* retention_time is over"):
            call()


def test_a_task_that_is_deleted_while_it_is_waited_for_raises(queue: Queue) -> None:
    begun(queue)
    timer = threading.Timer(0.3, queue["key"].delete)
    timer.start()
    with pytest.raises(NotFoundError):
        queue["key"].result(60)
    timer.join()


def test_a_task_without_result_names_the_option(queue: Queue) -> None:
    begun(queue).finish()
    with pytest.raises(NoResultError, match=r"'type1'.* stores no result; .*@app.task\(store_result=True\)"):
        queue["key"].result(10)


def test_progress_is_read_from_the_reference(queue: Queue) -> None:
    task = begun(queue)
    assert queue["key"].progress() is None
    task.progress(1, 2, "half")
    task.heartbeat()
    assert queue["key"].progress() == asyncio.run(queue["key"].aprogress()) == Progress(1, 2, "half", 1)


def test_rdb_compat_refuses_results_and_knows_statuses(bench: QueueBench, store: TaskStore) -> None:
    if not bench.compat:
        return
    with Queue(store, TIMES) as queue:
        queue.submit("key", "type1")
        assert queue["key"].status() == "waiting"
        with pytest.raises(
            NotSupportedError, match="'key': rdb_compat keeps neither results nor progress; use `type: rdb`"
        ):
            queue["key"].result(10)


class Counted:
    """Counts the queries for outcomes. `queries`: the number of tasks in each query."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queries: list[int] = []
        outcomes = queue._results._outcomes

        def counted(keys: Sequence[str]) -> Mapping[str, TaskOutcome]:
            self.queries.append(len(keys))
            return outcomes(keys)

        monkeypatch.setattr(queue._results, "_outcomes", counted)


def test_those_who_wait_in_one_process_share_its_queries(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.submit_many(NewTask(f"key{n}", "type1") for n in range(100))
    counted = Counted(queue, monkeypatch)

    async def main() -> list[Any]:
        waiting = [queue[f"key{n % 100}"].aresult(timeout=2) for n in range(300)]
        return await asyncio.gather(*waiting, return_exceptions=True)

    begun = time.monotonic()
    assert {type(each) for each in asyncio.run(main())} == {ResultTimeoutError}
    took = time.monotonic() - begun
    assert max(counted.queries) == 100
    # Each caller is due nine times. Callers that came later are due at other times, on a slow machine in most rounds,
    # but two rounds are at least 0.05 s apart. Without sharing there would be 2,700 queries.
    assert len(counted.queries) <= took / 0.05 + 2


def test_who_stops_waiting_is_not_asked_for_any_more(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    begun(queue)
    counted = Counted(queue, monkeypatch)

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(queue["key"].aresult(), 0.2)

    asyncio.run(main())
    asked = len(counted.queries)
    queue.submit("other", "type1")
    with pytest.raises(ResultTimeoutError):
        queue["other"].result(0)
    assert counted.queries[asked:] == [1]


def test_closing_the_queue_ends_the_wait(queue: Queue) -> None:
    begun(queue)
    timer = threading.Timer(0.3, queue.close)
    timer.start()
    with pytest.raises(ScheduleError, match="the queue was closed before 'key' ended"):
        queue["key"].result()
    timer.join()


def test_a_closed_queue_connects_anew_for_every_call(queue: Queue) -> None:
    task = begun(queue)
    with pytest.raises(ResultTimeoutError):
        queue["key"].result(timeout=0)
    queue.close()
    timer = threading.Timer(0.3, task.finish, ["done"])
    timer.start()
    assert queue["key"].result(timeout=60) == "done"
    timer.join()
    queue.close()
    assert asyncio.run(queue["key"].aresult(timeout=60)) == "done"
    queue.close()
    queue.submit("other", "type1")
    queue.close()
    assert {row.key for row in queue.list()} == {"key", "other"}


def test_an_error_of_the_database_reaches_all_waiting_threads(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(keys: Sequence[str]) -> Mapping[str, TaskOutcome]:
        raise OSError("the disk is gone")

    monkeypatch.setattr(queue._results, "_outcomes", fails)

    async def main() -> list[Any]:
        return await asyncio.gather(*(queue[f"key{n}"].aresult() for n in range(3)), return_exceptions=True)

    assert [str(each) for each in asyncio.run(main())] == ["the disk is gone"] * 3
