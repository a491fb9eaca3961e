"""asubmit: concurrent calls in one event loop share a transaction, and nothing else."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import pytest

from psched.errors import AlreadyExistsError, NotSupportedError
from psched.model import LeaseTimes, NewTask
from psched.queue.queue import Queue
from psched.store import TaskStore
from tests.stores.bench import FAR_OFF
from tests.stores.queue.bench import QueueBench, keys_in, row_of


class RecordedCalls:
    """Records the keys of each call of the store's `submit`. `before`: called before each of them."""

    def __init__(self, store: TaskStore) -> None:
        self.batches: list[list[str]] = []
        self.before: Callable[[Sequence[NewTask]], None] = lambda tasks: None
        submit = store.submit

        def recorded(tasks: Sequence[NewTask], connection: Any = None) -> list[str]:
            self.batches.append([task.key for task in tasks])
            self.before(tasks)
            return submit(tasks, connection)

        store.submit = recorded  # type: ignore[method-assign]


@pytest.fixture
def queue(store: TaskStore) -> Iterator[Queue]:
    with Queue(store, LeaseTimes(100, 1, 100)) as queue:
        yield queue


@pytest.fixture
def calls(queue: Queue) -> RecordedCalls:
    return RecordedCalls(queue.store)


def test_calls_at_the_same_time_are_one_call_of_the_store(queue: Queue, calls: RecordedCalls) -> None:
    async def main() -> list[str]:
        submitted = (queue.asubmit(f"key{n:03}", f"type{n % 3}", {"n": n}, run_at=FAR_OFF + n) for n in range(200))
        return [task.key for task in await asyncio.gather(*submitted)]

    keys = asyncio.run(main())
    assert keys == [f"key{n:03}" for n in range(200)] == keys_in(queue.store)
    row = row_of(queue.store, "key101")
    assert (row.type, row.data, row.due) == ("type2", {"n": 101}, FAR_OFF + 101)
    assert [len(batch) for batch in calls.batches] == [200]


def test_each_caller_gets_its_own_result_or_error(queue: Queue, bench: QueueBench) -> None:
    queue.submit("old", "type1")
    unfit: dict[str, Any] = {"max_running": 0}

    async def main() -> list[Any]:
        return await asyncio.gather(
            queue.asubmit("new", "type1"),
            queue.asubmit("old", "type2"),
            queue.asubmit("unstorable", "type1", {"set": {1}}),
            queue.asubmit("unchecked", "type1", user="u", **unfit),
            queue.asubmit("large", "type1", {"text": "x" * 8_000_001}),
            queue.asubmit("new too", "type1", None, user=None, headers=None),
            queue.asubmit("", "type1"),
            queue.asubmit("picky", "type1", priority=1),
            return_exceptions=True,
        )

    new, old, unstorable, unchecked, large, too, empty, picky = asyncio.run(main())
    assert (new.key, too.key) == ("new", "new too")
    assert isinstance(old, AlreadyExistsError)
    assert "'old'" in str(old)
    assert isinstance(unstorable, ValueError)
    assert "max_running" in str(unchecked)
    assert "compress it" in str(large)
    assert "key must be" in str(empty)
    assert isinstance(picky, NotSupportedError) == bench.compat
    assert keys_in(queue.store) == sorted(["new", "new too", "old", *([] if bench.compat else ["picky"])])


def test_one_of_several_calls_with_one_key_succeeds(queue: Queue) -> None:
    async def main() -> list[Any]:
        return await asyncio.gather(
            *(queue.asubmit("key", "type1", {"n": n}) for n in range(3)), return_exceptions=True
        )

    answers = asyncio.run(main())
    [first] = [n for n, answer in enumerate(answers) if not isinstance(answer, AlreadyExistsError)]
    assert answers[first].key == "key"
    assert row_of(queue.store, "key").data == {"n": first}


def test_an_error_of_the_database_reaches_every_caller_of_its_batch(queue: Queue, calls: RecordedCalls) -> None:
    error = OSError("the database is away")

    def fail(tasks: Sequence[NewTask]) -> None:
        raise error

    async def main() -> list[Any]:
        calls.before = fail
        failed = await asyncio.gather(*(queue.asubmit(f"k{n}", "t") for n in range(3)), return_exceptions=True)
        calls.before = lambda tasks: None
        await queue.asubmit("later", "t")
        return failed

    assert asyncio.run(main()) == [error] * 3
    assert calls.batches == [["k0", "k1", "k2"], ["later"]]
    assert keys_in(queue.store) == ["later"]


def test_a_caller_that_is_cancelled_takes_only_its_own_task_along(queue: Queue, calls: RecordedCalls) -> None:
    reached, go_on = threading.Event(), threading.Event()

    def wait(tasks: Sequence[NewTask]) -> None:
        reached.set()
        assert go_on.wait(10)

    async def main() -> list[Any]:
        calls.before = wait
        sent = [asyncio.create_task(queue.asubmit(f"sent{n}", "t")) for n in range(3)]
        await asyncio.to_thread(reached.wait, 10)
        unsent = [asyncio.create_task(queue.asubmit(f"unsent{n}", "t")) for n in range(3)]
        await asyncio.sleep(0)
        sent[1].cancel()
        unsent[1].cancel()
        await asyncio.sleep(0)
        go_on.set()
        return await asyncio.gather(*sent, *unsent, return_exceptions=True)

    outcomes = [getattr(outcome, "key", type(outcome)) for outcome in asyncio.run(main())]
    cancelled = asyncio.CancelledError
    assert outcomes == ["sent0", cancelled, "sent2", "unsent0", cancelled, "unsent2"]
    assert keys_in(queue.store) == ["sent0", "sent1", "sent2", "unsent0", "unsent2"]  # sent1 was on its way


def test_a_batch_that_waits_for_a_lock_keeps_later_calls_waiting_for_a_moment_only(
    queue: Queue, calls: RecordedCalls
) -> None:
    go_on = threading.Event()

    def wait(tasks: Sequence[NewTask]) -> None:
        if tasks[0].key == "stuck":
            assert go_on.wait(10)

    async def main() -> None:
        calls.before = wait
        stuck = asyncio.create_task(queue.asubmit("stuck", "t"))
        await asyncio.sleep(0.01)
        await queue.asubmit("later", "t")
        assert not stuck.done()
        go_on.set()
        await stuck

    asyncio.run(main())
    assert keys_in(queue.store) == ["later", "stuck"]


def test_several_event_loops_share_a_queue(queue: Queue) -> None:
    async def main(name: int) -> None:
        await asyncio.gather(*(queue.asubmit(f"loop{name}-{n}", "t") for n in range(20)))

    threads = [threading.Thread(target=lambda name=name: asyncio.run(main(name))) for name in range(3)]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(keys_in(queue.store)) == 60
    assert queue._submit_combiners == {}, "an event loop that has ended is kept"


request_id: ContextVar[str] = ContextVar("request_id", default="none")


def test_a_batch_has_no_caller_s_context_variables(queue: Queue, calls: RecordedCalls) -> None:
    seen: list[str] = []
    calls.before = lambda tasks: seen.append(request_id.get())

    async def main() -> None:
        request_id.set("one caller's")
        await queue.asubmit("key", "t")

    asyncio.run(main())
    assert seen == ["none"]


def test_many_tasks_are_submitted_in_a_thread(queue: Queue) -> None:
    async def main() -> list[str]:
        await queue.asubmit_many([NewTask("one", "t")])
        return await queue.asubmit_many(NewTask(key, "t") for key in ("one", "two"))

    assert asyncio.run(main()) == ["one"]
    assert keys_in(queue.store) == ["one", "two"]
