"""How the fetching child settles the runs of its handler children together. On SQLite in memory."""

from __future__ import annotations

import errno
import math
import os
import threading
from collections.abc import Iterator, Sequence

import pytest

from psched.backends import open_stores
from psched.clock import Clock, boottime
from psched.errors import AlreadyFinishedError, ScheduleError
from psched.execution import fetcher_settlement
from psched.execution.fetcher_settlement import (
    GroupAnswer,
    GroupSettlement,
    GroupSettlementThread,
    SettlementConnection,
)
from psched.execution.settlement_buffer import LONGEST, SettlementBuffer
from psched.execution.stop_event import StopEvent
from psched.model import Claim, NewTask
from psched.process.dispatch_socket import ConnectionSocket, Encoded, decode_claims
from psched.schedules.settlement import ScheduleSettlement
from psched.store import StoreSettings
from psched.task import Task
from psched.telemetry import attach
from tests.unit.settling_child import AwayError, Child, finished, opened_child

GAP = 0.03
"""Seconds: longer than the pause between two settlements of the fetching child."""
PAUSE = 5.1
"""Seconds: longer than the time in which a child settles its runs itself after a missing answer."""


class Group:
    """A fetching child's part, and buffers of two handler children. All settle runs of one queue."""

    def __init__(self, child: Child) -> None:
        self.child = child
        self.socket = ConnectionSocket()
        self.stopping = StopEvent()
        self.thread = GroupSettlementThread({"queue": child.source}, self.socket, self.stopping, child.clock)
        self.connections = [self.connection(f"w{number}") for number in (1, 2)]
        self.buffers = [self._buffer(connection) for connection in self.connections]
        self._flushing: list[threading.Thread] = []
        self._number = 0

    def connection(self, child: str, clock: Clock | None = None) -> SettlementConnection:
        """Return the connection of a handler child that is stopped with the group."""
        return SettlementConnection(self.socket, child, self.stopping, self.child.clock if clock is None else clock)

    def _buffer(self, connection: SettlementConnection) -> SettlementBuffer:
        group = GroupSettlement("queue", self.child.source, connection, self.child.clock)
        return SettlementBuffer("queue", self.child.source, self.child.clock, group)

    def run(self, buffer: SettlementBuffer, count: int, data: str = "") -> Sequence[Task]:
        """Run `count` tasks successfully, and leave them unsettled."""
        keys = [f"quick.{self._number + number}" for number in range(count)]
        self._number += count
        self.child.store.submit([NewTask(key, "quick", {"data": data}) for key in keys])
        tasks = self.child.source.poll_multi(count)
        assert len(tasks) == count
        for task in tasks:
            task.finished_later = True
            task.conclude()
            buffer.add(task, self.child.time)
        return tasks

    def flush(self, buffer: SettlementBuffer) -> None:
        """Settle a child's runs in a thread, as the child does."""
        self._flushing.append(threading.Thread(target=buffer.flush))
        self._flushing[-1].start()

    def take(self) -> None:
        """Wait until requests have come, and settle them."""
        ready = self.thread._wait()
        self.thread.work(ready)

    def join(self) -> None:
        for thread in self._flushing:
            thread.join(10.0)
            assert not thread.is_alive()

    def close(self) -> None:
        self.stopping.set()
        self.join()
        self.thread.run()  # stopped: only closes the connections
        for connection in self.connections:
            if connection._connection is not None:
                connection._connection.close()
        self.socket.close()
        self.stopping.close()


@pytest.fixture
def child() -> Iterator[Child]:
    with opened_child() as child:
        yield child


@pytest.fixture
def group(child: Child) -> Iterator[Group]:
    group = Group(child)
    yield group
    group.close()


def settle(group: Group, buffer: SettlementBuffer) -> None:
    """Settle the runs of one child through the fetching child."""
    group.flush(buffer)
    while any(thread.is_alive() for thread in group._flushing):
        group.child.time += GAP
        ready = group.stopping.wait_for([group.socket.fileno(), *group_descriptors(group)], 0.01)
        group.thread.work(ready)
    group.join()


def group_descriptors(group: Group) -> list[int]:
    return [connection.fileno() for connection in group.thread._connections if connection.is_open]


def test_the_runs_of_two_children_are_settled_by_one_statement(child: Child, group: Group) -> None:
    events = []
    detach = attach(lambda event, fields: events.append(len(fields["tasks"])), "settle")
    first, second = group.buffers
    group.run(first, 3)
    group.run(second, 2)
    group.thread._settle_at = child.time + GAP  # both requests come before the next settlement
    group.flush(first)
    group.flush(second)
    while sum(len(request.claims) for request in group.thread._requests) < 5:
        group.thread.work(group.stopping.wait_for([group.socket.fileno(), *group_descriptors(group)], 1.0))
    child.time += GAP
    group.thread.work(())
    group.join()
    detach()
    assert child.ending.parts == [5]
    assert len(finished(child)) == 5
    assert sorted(events) == [2, 3]
    assert child.source.held == []


def test_a_child_without_descriptors_to_wait_for_the_answer_settles_its_runs(
    child: Child, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_descriptors() -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    buffer = group.buffers[0]
    group.run(buffer, 3)
    with monkeypatch.context() as patch:
        patch.setattr(group.stopping, "_descriptor", without_descriptors)
        settle(group, buffer)
    assert len(finished(child)) == 3
    assert child.source.held == []


def test_a_child_settles_its_runs_itself_if_the_fetching_child_does_not_answer(
    child: Child, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetcher_settlement, "_ANSWER", 0.01)
    connection = group.connection("w1", boottime)
    buffer = group._buffer(connection)
    group.run(buffer, 2)
    buffer.flush()
    assert len(finished(child)) == 2
    group.run(buffer, 1)
    monkeypatch.setattr(group.socket, "connect", lambda _: pytest.fail("asked again at once"))
    buffer.flush()
    assert child.ending.parts == [2, 1]


def test_a_child_asks_again_after_a_pause(child: Child, group: Group) -> None:
    (first, _), (connection, _) = group.buffers, group.connections
    connection._retry_at = child.time + PAUSE - 0.2
    group.run(first, 1)
    first.flush()
    assert group.thread._connections == []
    child.time += PAUSE
    group.run(first, 1)
    settle(group, first)
    assert len(group.thread._connections) == 1
    assert len(finished(child)) == 2


def test_a_child_settles_its_runs_itself_when_the_fetching_child_ends(child: Child, group: Group) -> None:
    first, _ = group.buffers
    group.run(first, 1)
    settle(group, first)
    group.run(first, 2)
    group.flush(first)
    (connection,) = group.thread._connections
    group.stopping.wait_for([connection.fileno()], 10.0)
    connection.close()
    group.join()
    assert len(finished(child)) == 3
    assert child.ending.parts == [1, 2]


def test_a_stopping_child_settles_its_runs_itself(child: Child, group: Group) -> None:
    first, _ = group.buffers
    group.stopping.set()
    group.run(first, 1)
    first.flush()
    assert len(finished(child)) == 1
    assert list(group.socket.accept()) == []


def test_a_stop_ends_the_wait_for_an_answer(child: Child, group: Group) -> None:
    first, _ = group.buffers
    group.run(first, 1)
    group.flush(first)
    group.stopping.wait_for([group.socket.fileno()], 10.0)
    group.stopping.set()
    group.join()
    assert child.ending.parts == [1]


def test_a_run_that_was_settled_without_an_answer_is_not_settled_twice(
    child: Child, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fetching child dies after its commit."""
    errors = []
    detach = attach(lambda event, fields: errors.append(fields["error"]), "settle")
    first, _ = group.buffers
    group.run(first, 1)
    settle(group, first)
    (connection,) = group.thread._connections
    monkeypatch.setattr(connection, "send", lambda _: connection.close())
    tasks = group.run(first, 2)
    settle(group, first)
    detach()
    assert child.ending.parts == [1, 2, 2]
    assert errors == [None, None], "of the first run, and of the others"
    assert [task.outcome for task in tasks] == ["finished", "finished"]


def test_only_the_run_whose_lease_is_lost_is_refused(child: Child, group: Group) -> None:
    errors: list[object] = []
    detach = attach(lambda event, fields: errors.append((len(fields["tasks"]), type(fields["error"]))), "settle")
    first, _ = group.buffers
    lost, *_ = group.run(first, 3)
    child.store.release_many([lost.lease], child.time + 60.0, begun=False)
    (again,) = child.source.poll_multi(1)
    assert again.key == lost.key
    settle(group, first)
    detach()
    assert len(finished(child)) == 2
    assert errors == [(2, type(None)), (1, AlreadyFinishedError)]
    assert child.source.held == [again]


def test_children_settle_their_runs_themselves_if_the_fetching_child_cannot(child: Child, group: Group) -> None:
    failures = [AwayError()]

    def fail_once() -> None:
        if failures:
            raise failures.pop()

    child.ending.before = fail_once
    first, _ = group.buffers
    group.run(first, 2)
    settle(group, first)
    assert not failures
    assert len(finished(child)) == 2


def test_runs_whose_leases_end_soon_and_large_batches_are_settled_by_the_child(child: Child, group: Group) -> None:
    first, _ = group.buffers
    (task,) = group.run(first, 1)
    child.time = task.deadline - 2.9
    first.flush()
    child.time = 1000.0
    group.run(first, 101)
    first.flush()
    assert child.ending.parts == [1, 101]
    assert list(group.socket.accept()) == []


@pytest.mark.parametrize(("type_", "expected"), [("rdb", True), ("rdb_compat", False)])
def test_only_schedules_that_one_statement_advances_are_settled_together(type_: str, expected: bool) -> None:
    """On `rdb_compat` the fetching child would advance the schedules of all children one after the other."""
    store = open_stores(type_, StoreSettings("sqlite://", "host/test/1", schedules="psched_schedules")).schedules
    assert store is not None
    assert ScheduleSettlement(store, "vixie").finishes_together is expected
    store.close()


def test_runs_that_are_finished_one_by_one_are_settled_by_the_child(child: Child, group: Group) -> None:
    child.ending.finishes_together = False
    first, _ = group.buffers
    group.run(first, 2)
    first.flush()
    assert child.ending.parts == [2]
    assert list(group.socket.accept()) == []


def test_the_data_of_tasks_are_not_sent(child: Child, group: Group) -> None:
    first, _ = group.buffers
    group.run(first, 1, "x" * 1_000_000)
    group.flush(first)
    group.thread._settle_at = child.time + GAP
    while not group.thread._requests:
        group.thread.work(group.stopping.wait_for([group.socket.fileno(), *group_descriptors(group)], 1.0))
    ((_, _, (claim,), _),) = group.thread._requests
    assert claim.row.data == {}
    child.time += GAP
    group.thread.work(())
    group.join()
    assert len(finished(child)) == 1


def receive(group: Group) -> None:
    """Let the fetching child receive the requests that have been sent, without settling them."""
    group.thread._settle_at = math.inf
    while not group.thread._requests:
        group.thread.work(group.stopping.wait_for([group.socket.fileno(), *group_descriptors(group)], 1.0))
    group.thread._settle_at = -math.inf


def test_a_request_whose_child_no_longer_waits_is_not_executed(child: Child, group: Group) -> None:
    """The fetching child was frozen."""
    first, _ = group.buffers
    group.run(first, 2)
    group.flush(first)
    receive(group)
    child.time += 1.1
    group.stopping.set()
    group.join()
    assert child.ending.parts == [2]
    group.thread.work(())
    assert child.ending.parts == [2], "the old request was executed"


def test_the_wait_for_an_answer_does_not_count_as_the_duration_of_the_statement(
    child: Child, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = []
    detach = attach(lambda event, fields: seconds.append(fields["seconds"]), "settle")
    (first, _), (connection, _) = group.buffers, group.connections
    group.run(first, 1)

    def answer_late(section: str, claims: Sequence[Claim]) -> GroupAnswer:
        child.time += 1.0
        return GroupAnswer(0.0, [None] * len(claims))

    monkeypatch.setattr(connection, "finish_many", answer_late)
    first.flush()
    group.run(first, 1)
    detach()
    assert seconds == [0.0]
    assert first.due_at == pytest.approx(child.time + LONGEST)


def test_after_slow_statements_the_wait_becomes_short_again_when_the_fetching_child_settles(
    child: Child, group: Group
) -> None:
    (first, _), (connection, _) = group.buffers, group.connections
    connection._retry_at = child.time + PAUSE

    def take_long() -> None:
        child.time += 0.1

    child.ending.before = take_long
    group.run(first, 1)
    first.flush()
    child.ending.before = lambda: None
    child.time += PAUSE
    for _ in range(10):
        group.run(first, 1)
        settle(group, first)
    group.run(first, 1)
    assert first.due_at == pytest.approx(child.time + LONGEST)


def test_the_fetching_child_settles_again_after_an_unexpected_error(
    child: Child, group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(fetcher_settlement, "_RESTART", 0.01)
    first, _ = group.buffers
    group.run(first, 1)
    failures = [RuntimeError("as told")]
    decode = decode_claims

    def fail_once(encoded: Encoded) -> list[Claim]:
        if failures:
            raise failures.pop()
        return decode(encoded)

    monkeypatch.setattr(fetcher_settlement, "decode_claims", fail_once)
    group.thread.start()
    first.flush()
    assert not failures
    assert child.ending.parts == [1], "settled by the handler child, without waiting for an answer"
    assert "as told" in caplog.text
    child.time += PAUSE
    group.run(first, 1)
    first.flush()
    assert threading.current_thread() not in child.ending.threads[1:], "settled by the fetching child"
    group.stopping.set()
    group.thread.join(10.0)


@pytest.mark.parametrize("is_asked", [True, False])
def test_only_runs_that_the_fetching_child_may_have_settled_count_as_doubtful(
    child: Child, group: Group, monkeypatch: pytest.MonkeyPatch, is_asked: bool
) -> None:
    (first, _), (connection, _) = group.buffers, group.connections
    doubtful: list[bool] = []
    finish_many = child.ending.finish_many

    def observe(claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        doubtful.extend(claim.lease.unanswered for claim in claims)
        return finish_many(claims, until)

    monkeypatch.setattr(child.ending, "finish_many", observe)
    monkeypatch.setattr(fetcher_settlement, "_ANSWER", 0.01)
    connection._clock = boottime
    connection._retry_at = -math.inf if is_asked else boottime() + PAUSE
    group.run(first, 1)
    first.flush()
    assert doubtful == [is_asked]


def test_of_two_runs_with_one_key_the_refused_one_is_refused(
    child: Child, group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lease of the first run ended, and the same child acquired the row again."""
    (task,) = group.run(group.buffers[0], 1)
    lost = task.claim._replace(lease=task.lease._replace(fence=task.lease.fence - 1))
    answer = GroupAnswer(0.0, [False, True])
    monkeypatch.setattr(group.connections[0], "finish_many", lambda *_: answer)
    settlement = GroupSettlement("queue", child.source, group.connections[0], child.clock)
    refused, finished_run = settlement.finish_many([lost, task.claim], task.deadline)
    assert isinstance(refused, ScheduleError)
    assert finished_run is None
