"""When a handler child settles the tasks that its fetching child sent. On SQLite in memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from psched.application import Application
from psched.execution.active_runs import ActiveRuns
from psched.execution.fetched_task_poller import FetchedTaskPoller
from psched.execution.fetcher_connection import FetcherConnection
from psched.execution.handler_loop import HandlerLoop, WaitingTaskReleaser
from psched.execution.settlement_buffer import LONGEST
from psched.model import NewTask, TaskFilter
from psched.process.dispatch_socket import Connection, DispatchSocket, decode_claims, encode_claims
from tests.unit.settling_child import AwayError, Child, finished, opened_child

IDLE = 0.03
"""Seconds: longer than a run waits for its settlement in an idle child."""
SOON = 1.0
"""Seconds: much longer than the pause before the rest of a message is sent."""


@pytest.fixture
def child() -> Iterator[Child]:
    with opened_child() as child:
        yield child


class FetchedTasks:
    """The poller of a handler child, with both ends of its connection."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self._dispatch = DispatchSocket("host/test/1")
        connection = FetcherConnection(self._dispatch, "host/w1/1", (), lambda: None)
        self.poller = FetchedTaskPoller(
            "queue", child.source, Application((child.app,)), None, 3.0, connection, clock=child.clock
        )
        self.poller.settlement_buffer._clock = child.clock
        assert self.poller.poll() == []
        ((_, self.fetcher),) = self._dispatch.accept()

        self._sent = 0

    def send_large(self) -> None:
        """Send the child a task that is larger than the socket's buffer."""
        self.send(1, "x" * 1_000_000)

    def send(self, count: int, data: str = "", records_begin: bool = False) -> None:
        """Acquire `count` tasks, and send them to the child."""
        keys = [f"quick.{self._sent + number}" for number in range(count)]
        self._sent += count
        self.child.store.submit([NewTask(key, "quick", {"data": data}) for key in keys])
        claims, deadline = self.child.source.fetch_multi(count)
        claims = [claim._replace(records_begin=records_begin) for claim in claims]
        self.fetcher.send(("run", "queue", encode_claims(claims), deadline))

    def run(self, count: int) -> None:
        """Run `count` tasks successfully, and leave them unsettled."""
        self.send(count)
        tasks = self.poller.poll()
        assert len(tasks) == count
        for task in tasks:
            assert task.begin(3.0)
            task.finished_later = True
            task.conclude()
            self.poller.settlement_buffer.add(task, self.child.time)

    def run_late(self) -> None:
        """Run a task that arrives when its lease has nearly ended."""
        self.child.store.submit([NewTask("quick.late", "quick", run_at=1)])
        claims, deadline = self.child.source.fetch_multi(1)
        self.child.time = deadline - 1.0
        self.fetcher.send(("run", "queue", encode_claims(claims), deadline))
        loop = HandlerLoop(
            0, [self.poller], ActiveRuns(self.child.running_table), self.child.stopping, self.child.clock
        )
        for _ in loop._batches(self.poller):
            loop._run_waiting(self.poller)

    def close(self) -> None:
        self.poller.close()
        self.fetcher.close()
        self._dispatch.close()


@pytest.fixture
def fetched(child: Child) -> Iterator[FetchedTasks]:
    fetched = FetchedTasks(child)
    yield fetched
    fetched.close()


def settled_messages(fetcher: Connection) -> int:
    return sum(message[0] == "settled" for message in fetcher.receive())


def test_an_idle_child_settles_within_moments(child: Child, fetched: FetchedTasks) -> None:
    fetched.run(2)
    fetched.poller.settle_idle()
    assert fetched.poller.settle(), "another run may begin at once"
    assert (finished(child), settled_messages(fetched.fetcher)) == ([], 0)
    child.time += IDLE
    assert not fetched.poller.settle()
    assert (len(finished(child)), settled_messages(fetched.fetcher)) == (2, 1)


def test_a_busy_child_collects_runs_for_longer(child: Child, fetched: FetchedTasks) -> None:
    fetched.run(2)
    child.time += LONGEST * 0.9
    assert fetched.poller.settle()
    assert not finished(child)
    child.time += LONGEST * 0.2
    assert not fetched.poller.settle()
    assert len(finished(child)) == 2


def test_the_time_without_runs_ends_with_the_next_task(child: Child, fetched: FetchedTasks) -> None:
    fetched.poller.settle_idle()
    child.time += IDLE
    fetched.run(1)
    child.time += IDLE
    assert fetched.poller.settle()
    assert not finished(child)


def test_runs_that_their_handlers_settle_are_reported_soon_and_together(child: Child, fetched: FetchedTasks) -> None:
    """A report of each run would cost more than the run itself."""
    wakes: list[float] = []
    fetched.poller.wake_settlement = lambda: wakes.append(child.time)
    for _ in range(3):
        fetched.send(1)
        (task,) = fetched.poller.poll()
        assert task.begin(3.0)
        task.finish()
        fetched.poller.run_ended(task, more=False)
    assert len(wakes) == 1
    assert not fetched.poller.settle()
    assert settled_messages(fetched.fetcher) == 1
    assert fetched.poller.next_settlement() < IDLE
    fetched.poller.settle()
    assert fetched.poller.next_settlement() > IDLE


def test_the_handler_thread_settles_many_runs_itself(child: Child, fetched: FetchedTasks) -> None:
    fetched.run(499)
    assert fetched.poller.poll() == []
    assert not finished(child)
    child.store.submit([NewTask("last", "quick")])
    (task,) = child.source.poll_multi(1)
    assert task is not None and task.begin(3.0)
    task.finished_later = True
    task.conclude()
    fetched.poller.settlement_buffer.add(task, child.time)
    assert fetched.poller.poll() == []
    assert len(finished(child)) == 500


def test_a_task_that_waits_behind_a_long_run_is_returned(child: Child, fetched: FetchedTasks) -> None:
    fetched.run(1)
    list(fetched.fetcher.receive())
    fetched.send(1)
    assert fetched.poller.return_late()
    assert list(fetched.fetcher.receive()) == [], "the run may end in this moment"
    assert fetched.poller.return_late()
    assert [message[:2] for message in fetched.fetcher.receive()] == [["returned", "queue"], ["ended", "queue"]]
    assert fetched.poller.poll() == []


def test_a_task_that_waits_behind_a_long_run_is_returned_while_a_settlement_hangs(
    child: Child, fetched: FetchedTasks
) -> None:
    loop = HandlerLoop(0, [fetched.poller], ActiveRuns(child.running_table), child.stopping, child.clock)
    releaser = WaitingTaskReleaser([loop])
    fetched.run(1)
    list(fetched.fetcher.receive())
    with fetched.poller.settlement_buffer._flushing:
        fetched.send(1)
        assert releaser.tick()
        releaser.tick()
    assert [message[:2] for message in fetched.fetcher.receive()] == [["returned", "queue"], ["ended", "queue"]]


def test_a_task_that_arrives_too_late_to_begin_is_released(child: Child, fetched: FetchedTasks) -> None:
    fetched.run_late()
    assert (finished(child), child.source.held) == ([], [])
    row = child.store.get("quick.late")
    assert row is not None
    assert (row.status, row.due) == ("waiting", 1)


def test_the_lease_of_a_task_that_cannot_even_be_released_is_not_renewed(
    child: Child, fetched: FetchedTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object) -> None:
        raise AwayError

    monkeypatch.setattr(child.ending, "release", away)
    fetched.run_late()
    assert child.source.held == []
    assert not fetched.poller.settle(), "the fetcher must hear that the child no longer has the task"
    assert settled_messages(fetched.fetcher) == 1


def test_tasks_that_are_given_up_while_the_child_leaves_are_released(
    child: Child, fetched: FetchedTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetching child reads no message after "left"."""
    fetched.send(2)
    tasks = fetched.poller.poll()
    connection = fetched.poller._connection
    take_last = connection._take_last

    def give_up_first() -> None:
        fetched.poller.give_up(tasks, child.time)
        take_last()

    monkeypatch.setattr(connection, "_take_last", give_up_first)
    fetched.poller.close()
    assert [row.status for row in child.store.list(TaskFilter())] == ["waiting", "waiting"]


@pytest.mark.parametrize("is_received", [True, False])
def test_a_child_does_not_exit_while_it_returns_a_task(
    child: Child, fetched: FetchedTasks, monkeypatch: pytest.MonkeyPatch, is_received: bool
) -> None:
    """Before a child exits, it releases each task that it still has. For this it waits for the task's lock."""
    fetched.send(1)
    (task,) = fetched.poller.poll()
    exits: list[bool] = []

    def exit_meanwhile() -> None:
        exits.append(not child.source.held or task.lock.acquire(blocking=False))

    def watched(*_: object, **__: object) -> bool:
        thread = threading.Thread(target=exit_meanwhile)
        thread.start()
        thread.join()
        return is_received

    monkeypatch.setattr(fetched.poller._connection, "send_if_heard", watched)
    monkeypatch.setattr(child.source, "release", watched)
    fetched.poller.give_up([task], child.time)
    assert exits == ([False] if is_received else [False, False])
    assert child.source.held == []


def test_a_waiting_task_whose_lease_is_being_renewed_is_returned_later(child: Child, fetched: FetchedTasks) -> None:
    fetched.run(1)
    list(fetched.fetcher.receive())
    fetched.send(1)
    fetched.poller.return_late()
    (waiting,) = [task for task in child.source.held if not task.started]
    renewal = threading.Thread(target=waiting.lock.acquire)
    renewal.start()
    renewal.join()
    fetched.poller.return_late()
    assert list(fetched.fetcher.receive()) == []
    waiting.lock = threading.RLock()
    fetched.poller.return_late()
    assert [message[:2] for message in fetched.fetcher.receive()] == [["returned", "queue"], ["ended", "queue"]]


def test_a_waiting_task_that_can_neither_be_returned_nor_released_runs_later(
    child: Child, fetched: FetchedTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no fetching child, and the database does not answer."""

    def away(*_: object, **__: object) -> None:
        raise AwayError

    def refused(*_: object) -> None:
        raise BlockingIOError

    monkeypatch.setattr(child.store, "release_many", away)
    monkeypatch.setattr(DispatchSocket, "connect", refused)
    fetched.run(1)
    fetched.send(1)
    fetched.poller.return_late()
    (waiting,) = [task for task in child.source.held if not task.started]
    fetched.fetcher.close()
    fetched.poller.return_late()
    assert fetched.poller.poll() == [waiting]


def test_a_task_whose_start_must_be_recorded_is_returned_as_such(child: Child, fetched: FetchedTasks) -> None:
    """The task's last lease has expired, so the task may be one that kills its host."""
    fetched.run(1)
    list(fetched.fetcher.receive())
    fetched.send(1, records_begin=True)
    fetched.poller.return_late()
    fetched.poller.return_late()
    ((_, _, returned, _), _) = fetched.fetcher.receive()
    assert [claim.records_begin for claim in decode_claims(returned)] == [True]


def test_returned_tasks_that_are_larger_than_the_socket_arrive_during_the_run(
    child: Child, fetched: FetchedTasks
) -> None:
    fetched.run(1)
    fetched.send_large()
    messages: list[str] = []
    while "ended" not in messages:
        assert fetched.poller.return_late()
        fetched.fetcher.flush()
        messages += [message[0] for message in fetched.fetcher.receive()]
    assert messages == ["hello", "returned", "ended"]


def test_an_idle_child_sends_the_rest_of_its_messages(child: Child, fetched: FetchedTasks) -> None:
    fetched.send_large()
    while not (tasks := fetched.poller.poll()):
        fetched.fetcher.flush()
    fetched.poller.give_up(tasks, child.time)
    assert not child.source.held
    messages: list[str] = []
    while "returned" not in messages:
        assert fetched.poller.pause() < SOON
        assert fetched.poller.poll() == []
        messages += [message[0] for message in fetched.fetcher.receive()]
    assert fetched.poller.pause() > SOON


@pytest.mark.parametrize("leaves", [True, False], ids=["the child leaves", "the fetching child leaves"])
def test_returned_tasks_that_were_only_sent_in_part_are_released(
    child: Child, fetched: FetchedTasks, leaves: bool
) -> None:
    fetched.send_large()
    while not (tasks := fetched.poller.poll()):
        fetched.fetcher.flush()
    fetched.poller.give_up(tasks, child.time)
    assert fetched.poller.has_unsent
    if leaves:
        fetched.poller.close()
    else:
        assert [message[0] for message in fetched.fetcher.receive_last()] == ["hello"]
        fetched.poller.poll()
    assert [row.status for row in child.store.list(TaskFilter())] == ["waiting"]


def test_tasks_are_not_returned_to_a_fetching_child_that_may_never_come(child: Child) -> None:
    """At a reload the old fetching child is gone, and no other accepts the connections of the old handler children."""
    fetched = FetchedTasks(child)
    fetched.send(1)
    (task,) = fetched.poller.poll()
    fetched.fetcher.close()
    fetched.poller.return_late()
    assert fetched.poller._connection.is_open, "connected again, but nobody has accepted"
    fetched.poller.give_up([task], child.time)
    assert [row.status for row in child.store.list(TaskFilter())] == ["waiting"]
    fetched.close()
