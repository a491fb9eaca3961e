"""Wakeups on Redis: each row that becomes due notifies one waiting client, and never a client that is busy."""

from __future__ import annotations

import select
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from faultlab.laboratory import Lab
from faultlab.redis import Redis
from psched.backends.redis.wakeup import WakeList
from psched.model import NewTask
from psched.store import LeaseStore, ScheduleStore, TaskStore, Wakeup
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, eventually, new_row, soon
from tests.stores.queue.bench import QueueBench
from tests.stores.rows import RedisRows

SILENCE = 0.1
"""Seconds after which a notification counts as not sent. A notification takes a millisecond."""


def armed(store: LeaseStore) -> Wakeup:
    wakeup = store.open_wakeup()
    assert wakeup is not None
    wakeup.listen(60)
    return wakeup


@pytest.fixture
def wakeup(queue: TaskStore) -> Iterator[Wakeup]:
    """An armed wakeup that has already received a notification."""
    with closing(armed(queue)) as wakeup:
        assert eventually(lambda: not wakeup.is_notified() and wakeup.proven)
        yield wakeup


def rings(wakeup: Wakeup) -> bool:
    """Return whether the wakeup is notified within `SILENCE`. If so, it is then armed again."""
    end = time.monotonic() + SILENCE
    while (left := end - time.monotonic()) > 0:
        if select.select([wakeup.fileno()], [], [], left)[0] and wakeup.is_notified():
            wakeup.listen(60)
            return True
    return False


def test_what_makes_tasks_due_wakes_workers(tasks: QueueBench, queue: TaskStore, wakeup: Wakeup) -> None:
    tasks.submit(queue, ["key"])
    assert rings(wakeup)
    queue.release(tasks.claim(queue, "key").lease, soon())
    assert rings(wakeup)
    queue.retry(tasks.claim(queue, "key").lease, 0, None, soon())
    assert rings(wakeup)
    claim = tasks.claim(queue, "key")
    queue.give_back(claim.row.node or "", [], 10)
    assert rings(wakeup)
    queue.retire(tasks.claim(queue, "key"), "failed", None, None, soon())
    queue.retry_failed("key")
    assert rings(wakeup)
    queue.submit([NewTask("later", "t", run_at=FAR_OFF)])
    assert rings(wakeup), "whoever sleeps until something else is due must look again"


def test_taking_renewing_and_finishing_call_nobody(tasks: QueueBench, queue: TaskStore, wakeup: Wakeup) -> None:
    tasks.submit(queue, ["key", "other"])
    while rings(wakeup):
        pass
    done, late = queue.acquire(2, 1)
    queue.extend([done.lease, late.lease], 2)
    queue.retire(done, "finished", None, 10, soon())
    queue.retry(late.lease, 1000, None, soon())
    assert not rings(wakeup)


def test_a_run_that_ends_calls_for_those_who_waited_for_it(tasks: QueueBench, queue: TaskStore, wakeup: Wakeup) -> None:
    tasks.submit(queue, ["a", "b"], user="u", max_running=1)
    claim = tasks.claim(queue, "a")
    assert queue.acquire(1, 100) == []
    while rings(wakeup):
        pass
    queue.retire(claim, "finished", None, 10, soon())
    assert rings(wakeup)


def test_schedules_wake_workers_when_they_are_due_earlier_than_was_known(bench: Bench, store: ScheduleStore) -> None:
    with closing(armed(store)) as wakeup:
        bench.add(store, "key")
        assert rings(wakeup)
        store.advance(bench.take(store, "key"), LONG_AGO + 1, LONG_AGO + 1, soon())
        assert rings(wakeup)
        claim = bench.take(store, "key")
        store.extend([claim.lease], 200)
        store.advance(claim, FAR_OFF, FAR_OFF, soon())
        assert not rings(wakeup)


def test_schedules_that_are_added_together_wake_a_worker_of_each_type(store: ScheduleStore) -> None:
    assert store.add_many([new_row(type_, {}, type=type_) for type_ in "ab"]) == []
    wakeups = [store.open_wakeup(lambda type_: type_ == "a"), store.open_wakeup(lambda type_: type_ == "b")]
    with ExitStack() as stack:
        for wakeup in wakeups:
            assert wakeup is not None
            stack.enter_context(closing(wakeup))
            wakeup.listen(60)
            assert eventually(lambda wakeup=wakeup: not wakeup.is_notified() and wakeup.proven)
        assert store.add_many([new_row(f"{type_} {n}", {}, type=type_) for type_ in "ab" for n in (1, 2)]) == []
        assert [wakeup is not None and rings(wakeup) for wakeup in wakeups] == [True, True]


def test_each_row_calls_one(queue: TaskStore, wakeup: Wakeup) -> None:
    with closing(armed(queue)) as other:
        queue.submit([NewTask("one", "t")])
        assert sorted([rings(wakeup), rings(other)]) == [False, True]
        queue.submit([NewTask("two", "t"), NewTask("three", "t")])
        assert rings(wakeup)
        assert rings(other)


def test_workers_of_some_types_are_called_for_these_besides_and_for_no_others(queue: TaskStore, wakeup: Wakeup) -> None:
    queue.submit([NewTask("known", "a"), NewTask("as well", "b")])
    while rings(wakeup):
        pass
    wakeups = [queue.open_wakeup(lambda type_: type_ == "a"), queue.open_wakeup(lambda type_: type_ == "b")]
    for choosy in wakeups:
        assert choosy is not None
        choosy.listen(60)
        assert eventually(lambda choosy=choosy: not choosy.is_notified() and choosy.proven)
    of_a, of_b = (choosy for choosy in wakeups if choosy is not None)
    with closing(of_a), closing(of_b):
        for type_, wanted in (("a", of_a), ("b", of_b), ("a", of_a)):
            queue.submit([NewTask(f"{type_}{time.monotonic()}", type_)])
            assert rings(wakeup)
            assert rings(wanted)
            assert not rings(of_b if wanted is of_a else of_a)


def test_workers_of_some_types_are_called_for_a_type_that_is_new_to_the_table(queue: TaskStore, wakeup: Wakeup) -> None:
    choosy = queue.open_wakeup(lambda type_: type_.startswith("video."))
    assert choosy is not None
    with closing(choosy):
        choosy.listen(60)
        assert eventually(lambda: not choosy.is_notified() and choosy.proven)
        queue.submit([NewTask("new", "video.new")])
        assert rings(choosy)
        while rings(choosy):  # a few more, for others that may take it
            pass
        queue.submit([NewTask("more", "video.new")])
        assert rings(choosy)
        claim = queue.acquire(1, 100, ["video.new"])[0]
        while rings(choosy):
            pass
        queue.release(claim.lease, soon())
        assert rings(choosy)


def test_all_that_wait_get_to_know_a_new_type_when_they_look(queue: TaskStore) -> None:
    wakeups = [queue.open_wakeup(lambda type_: type_ == "new") for _ in range(6)]
    with ExitStack() as stack:
        waiting = [stack.enter_context(closing(choosy)) for choosy in wakeups if choosy is not None]
        for choosy in waiting:
            choosy.listen(60)
            assert eventually(lambda choosy=choosy: not choosy.is_notified() and choosy.proven)
        queue.submit([NewTask("first", "new")])
        for choosy in waiting:  # more than are called at once
            assert eventually(choosy.is_notified)
        for choosy in waiting:
            choosy.listen(60)
        while [choosy for choosy in waiting if rings(choosy)]:  # for the row itself
            pass
        queue.submit([NewTask(f"key{n}", "new") for n in range(6)])
        for choosy in waiting:
            assert eventually(choosy.is_notified)


def test_a_new_type_calls_each_worker_of_some_types_once_however_many_there_are(
    tasks: QueueBench, queue: TaskStore
) -> None:
    rows = tasks.rows
    assert isinstance(rows, RedisRows)
    wakeups = [queue.open_wakeup(lambda type_, n=n: type_ == f"type{n}") for n in range(9)]  # type: ignore[misc]
    with ExitStack() as stack:
        waiting = [stack.enter_context(closing(choosy)) for choosy in wakeups if choosy is not None]
        for choosy in waiting:  # the worker that takes the new type waits last
            choosy.listen(60)
            assert eventually(lambda choosy=choosy: not choosy.is_notified() and choosy.proven)
        called = [0] * len(waiting)

        def listen() -> None:
            for place, choosy in enumerate(waiting):
                if choosy.is_notified():
                    called[place] += 1
                    choosy.listen(60)

        def are_called() -> bool:
            listen()
            return all(called) and not rows.client.exists(f"{rows.prefix}wake:new")

        queue.submit([NewTask("wanted", "type8")])
        assert eventually(are_called)
        while [choosy for choosy in waiting if rings(choosy)]:  # the worker that takes it is called for the row, too
            pass
        called[:] = [0] * len(waiting)
        queue.submit([NewTask("foreign", "foreign")])
        assert eventually(are_called)
        assert not [choosy for choosy in waiting if rings(choosy)]
        assert called == [1] * len(waiting)


def test_a_wakeup_for_a_new_type_reaches_the_others_past_one_that_hangs(queue: TaskStore) -> None:
    wakeups = [queue.open_wakeup(lambda type_: type_ == "new") for _ in range(7)]
    with ExitStack() as stack:
        hanging, *others = (stack.enter_context(closing(choosy)) for choosy in wakeups if choosy is not None)
        for choosy in (hanging, *others):
            choosy.listen(60)
            assert eventually(lambda choosy=choosy: not choosy.is_notified() and choosy.proven)
        queue.submit([NewTask("first", "new")])
        for choosy in others:
            assert eventually(choosy.is_notified)


def test_a_wakeup_for_a_new_type_that_was_passed_on_leaves_the_connection_in_order(queue: TaskStore) -> None:
    choosy = queue.open_wakeup(lambda type_: type_.startswith("type"))
    assert choosy is not None
    with closing(choosy):
        choosy.listen(60)
        descriptor = choosy.fileno()
        for number in range(3):
            queue.submit([NewTask(f"key{number}", f"type{number}")])
            assert eventually(choosy.is_notified)
            assert not choosy.is_notified()
            choosy.stop_listening()
            choosy.listen(60)
            assert choosy.fileno() == descriptor
            assert choosy.proven


def test_a_wakeup_for_a_busy_worker_of_some_types_is_anothers(queue: TaskStore, wakeup: Wakeup) -> None:
    queue.submit([NewTask("known", "a")])
    choosy, other = (queue.open_wakeup(lambda type_: type_ == "a") for _ in range(2))
    assert choosy is not None and other is not None
    with closing(choosy), closing(other):
        choosy.listen(60)
        assert eventually(lambda: choosy.proven or choosy.is_notified())
        choosy.listen(60)
        queue.submit([NewTask("one", "a")])
        select.select([choosy.fileno()], [], [], 5)
        choosy.stop_listening()
        other.listen(60)
        assert rings(other)


def test_a_wakeup_is_trusted_once_the_server_has_answered_a_wait(queue: TaskStore, wakeup: Wakeup) -> None:
    wakeup.stop_listening()
    assert not wakeup.proven
    wakeup.listen(60)
    assert not wakeup.proven
    queue.submit([NewTask("key", "t")])
    assert rings(wakeup)
    assert wakeup.proven


def test_a_wakeup_for_a_busy_waiter_goes_to_another(queue: TaskStore, wakeup: Wakeup) -> None:
    queue.submit([NewTask("one", "t")])
    select.select([wakeup.fileno()], [], [], 5)
    wakeup.stop_listening()
    with closing(armed(queue)) as other:
        assert rings(other)


def test_a_busy_waiter_is_not_woken_and_listens_again_afterwards(
    tasks: QueueBench, queue: TaskStore, wakeup: Wakeup
) -> None:
    wakeup.stop_listening()
    wakeup.stop_listening()
    assert not wakeup.is_notified()
    rows = tasks.rows
    assert isinstance(rows, RedisRows)
    eventually(lambda: not [client for client in rows.client.client_list() if client["cmd"] == "blpop"])
    queue.submit([NewTask("unheard", "t")])
    eventually(lambda: not rows.client.exists(f"{rows.prefix}wake"))
    wakeup.listen(60)
    assert not rings(wakeup)
    queue.submit([NewTask("heard", "t")])
    assert rings(wakeup)


def test_listening_ends_after_a_while(queue: TaskStore, tasks: QueueBench) -> None:
    wakeup = queue.open_wakeup()
    assert wakeup is not None
    wakeup.listen(0.05)
    time.sleep(0.1)
    assert not wakeup.is_notified()
    wakeup.listen(60)
    queue.submit([NewTask("key", "t")])
    assert rings(wakeup)
    wakeup.close()
    wakeup.close()


def test_who_listens_on_keeps_his_connection_and_his_place(tasks: QueueBench, queue: TaskStore, wakeup: Wakeup) -> None:
    rows = tasks.rows
    assert isinstance(rows, RedisRows)
    wakeup.listen(0.05)
    before = wakeup.fileno(), [client["id"] for client in rows.client.client_list()]
    for _ in range(3):
        wakeup.listen(60)
    assert (wakeup.fileno(), [client["id"] for client in rows.client.client_list()]) == before
    queue.submit([NewTask("key", "t")])
    assert rings(wakeup)


def test_a_wait_that_was_prolonged_goes_on_when_the_first_ends(queue: TaskStore) -> None:
    wakeup = queue.open_wakeup()
    assert wakeup is not None
    with closing(wakeup):
        wakeup.listen(0.1)
        wakeup.listen(60)
        assert not rings(wakeup)
        time.sleep(0.1)
        assert not wakeup.is_notified()
        queue.submit([NewTask("key", "t")])
        assert rings(wakeup)


def test_few_wakeups_are_kept_while_no_worker_waits(tasks: QueueBench, queue: TaskStore) -> None:
    queue.submit([NewTask(f"key{n}", "t") for n in range(100)])
    rows = tasks.rows
    assert isinstance(rows, RedisRows)
    assert rows.client.llen(f"{rows.prefix}wake") <= 16
    assert 0 < rows.client.pttl(f"{rows.prefix}wake") <= 1000


def test_a_lost_connection_is_an_error_and_is_made_anew(lab: Lab) -> None:
    with lab.private(Redis) as server:
        assert isinstance(server, Redis)
        bench = QueueBench("redis", server.url("0"), "queue")
        queue = bench.queue()
        queue.create_tables()
        with closing(armed(queue)) as wakeup:
            server.kill()
            with pytest.raises(RedisConnectionError):
                eventually(wakeup.is_notified)
            server.start()
            wakeup.listen(60)
            queue.submit([NewTask("key", "t")])
            assert rings(wakeup)
            server.kill()
            wakeup.stop_listening()
        bench.close()


def test_a_connection_on_which_no_answer_comes_is_trusted_for_a_moment_only(queue: TaskStore, wakeup: Wakeup) -> None:
    assert isinstance(wakeup, WakeList)
    wakeup.listen(60)
    late = time.monotonic() + 70
    wakeup._clock = lambda: late  # as if nothing had come for so long
    wakeup.listen(60)
    assert not wakeup.proven
    assert eventually(lambda: not wakeup.is_notified() and wakeup.proven)
    queue.submit([NewTask("key", "t")])
    assert rings(wakeup)


def test_a_connection_that_was_lost_amid_a_run_is_made_anew(
    queue: TaskStore, tasks: QueueBench, wakeup: Wakeup
) -> None:
    queue.submit([NewTask("key", "t")])
    select.select([wakeup.fileno()], [], [], 5)
    assert wakeup.is_notified()
    wakeup.stop_listening()
    rows = tasks.rows
    assert isinstance(rows, RedisRows)
    rows.client.client_kill_filter(_type="normal", skipme=True)
    wakeup.listen(60)
    queue.submit([NewTask("other", "t")])
    assert rings(wakeup)


def test_a_woken_waiter_keeps_its_connection_and_takes_no_wakeups(queue: TaskStore, wakeup: Wakeup) -> None:
    queue.submit([NewTask("key", "t")])
    select.select([wakeup.fileno()], [], [], 5)
    assert wakeup.is_notified()
    with closing(armed(queue)) as other:
        queue.submit([NewTask("more", "t")])
        assert rings(other)
    before = wakeup.fileno()
    wakeup.listen(60)
    assert wakeup.fileno() == before
