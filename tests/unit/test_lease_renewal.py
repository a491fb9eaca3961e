"""The run watchdog and the renewers of leases: what they do, and when.

The tests use SQLite in memory, and set the clock.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from copy import copy
from datetime import UTC, datetime
from typing import Any

import pytest

from psched.acquisition.task_source import TaskSource
from psched.application import Application, Base
from psched.backends import open_stores
from psched.errors import ImmediateProcessStopError, PreemptedError
from psched.execution.active_runs import ActiveRun, ActiveRuns
from psched.execution.batch_size import BatchSizer
from psched.execution.fetched_task_poller import FetchedTaskPoller
from psched.execution.fetcher_connection import FetcherConnection
from psched.execution.handler_loop import HandlerLoop, WaitingTaskReleaser, settle_stopped
from psched.execution.lease_renewal import LeaseRenewer
from psched.execution.poll_timer import PollTimer
from psched.execution.poller import Poller, SectionPoller
from psched.execution.run_watchdog import RunWatchdog
from psched.execution.stop_event import StopEvent
from psched.model import LeaseTimes, Rule
from psched.process.dispatch_socket import Connection, DispatchSocket, decode_claims, encode_claims
from psched.process.running_table import RunningTable
from psched.schedules.settlement import ScheduleSettlement
from psched.store import ScheduleStore, StoreSettings
from psched.task import Task
from tests.prepared_sqlite import make_tables_in_memory

NOON = int(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp())
ALIVE, SHORT, MARGIN, KILL_INTERVAL = 60.0, 15.0, 3.0, 2.0


class Left(BaseException):
    """Raised instead of ending the process."""


class Hands:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Handler(Base):
    """A handler that records the reasons of its stops."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.reasons: list[Exception] = []
        self.told = threading.Event()

    def perform(self) -> None:
        """Do nothing."""

    def kill(self, reason: Exception) -> None:
        """Record the reason."""
        self.reasons.append(reason)
        self.told.set()


class Child:
    """The parts of a worker around one handler thread, without its processes."""

    def __init__(self, store: ScheduleStore, task_timeout: float | None = None) -> None:
        self.store = store
        self.clock = Hands()
        self.source = TaskSource(store, ScheduleSettlement(store, "vixie"), LeaseTimes(ALIVE, 300, SHORT), self.clock)
        self.runs = ActiveRuns(RunningTable(1))
        self.poller: Poller = SectionPoller(
            "schedules", self.source, Application(()), BatchSizer(3), PollTimer(1.0), task_timeout, MARGIN
        )
        self.watchdog = RunWatchdog(self.runs, KILL_INTERVAL, self._leave, self.clock)
        self.runner = HandlerLoop(0, [self.poller], self.runs, StopEvent(), self.clock)
        self.lease_renewer = LeaseRenewer([self.source], [self.runner], interval=2.0, clock=self.clock)
        self.releaser = WaitingTaskReleaser([self.runner])
        self.prefetched_renewer = LeaseRenewer(
            [self.source], [self.runner], interval=2.0, prefetched=True, clock=self.clock
        )

    def begin(self) -> ActiveRun:
        """Acquire one task, and record that its handler runs."""
        (task,) = self.source.poll_multi(1)
        run = ActiveRun(task, self.poller, Handler(task))
        self.runs.begin(0, run)
        return run

    def steal(self, key: str) -> None:
        """Delete the row, so that its lease is lost, as if another worker had taken it."""
        self.store.delete(key)

    def _leave(self, why: str) -> None:
        raise Left(why)


@pytest.fixture
def store() -> Iterator[ScheduleStore]:
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", schedules="psched_schedules")).schedules
    assert store is not None
    make_tables_in_memory(store, "psched_schedules")
    for key in "abc":
        store.add(key, "t", Rule("0 * * * *", "UTC"), NOON, NOON, {})
    yield store
    store.close()


@pytest.fixture
def child(store: ScheduleStore) -> Child:
    return Child(store)


def reason_of(run: ActiveRun) -> Exception:
    handler = run.handler
    assert isinstance(handler, Handler)
    assert handler.told.wait(10)
    assert handler.reasons == [run.task.stop_reason]
    return handler.reasons[0]


def refuse(*_: object, **__: object) -> None:
    raise ConnectionError("reset by peer")


def test_a_run_whose_lease_is_renewed_is_left_alone(child: Child) -> None:
    run = child.begin()
    for _ in range(20):
        child.clock.time += ALIVE / 3
        assert child.lease_renewer.tick()
        assert child.watchdog.tick()
    assert run.stopped_at is None


@pytest.mark.parametrize("ended", [False, True])
def test_what_cannot_be_renewed_is_tried_again_soon_whatever_else_is_renewed_until_it_is_or_has_ended(
    child: Child, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ended: bool
) -> None:
    store = copy(child.store)
    away = TaskSource(store, ScheduleSettlement(store, "vixie"), LeaseTimes(ALIVE, 300, SHORT), child.clock)
    lease_renewer = LeaseRenewer([away, child.source], [child.runner], interval=2.0, clock=child.clock)
    tasks = [*away.poll_multi(1), *child.source.poll_multi(1)]
    assert all(task.begin() for task in tasks)
    with monkeypatch.context() as fault, caplog.at_level("WARNING"):
        fault.setattr(store, "extend", refuse)
        for _ in range(5):
            child.clock.time += ALIVE / 10
            assert lease_renewer.tick()
            assert lease_renewer.interval == 0.25
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == ["leases cannot be renewed"]
    if ended:
        tasks[0].forget()
    assert lease_renewer.tick()
    assert lease_renewer.interval == 1.0


def test_a_run_whose_lease_cannot_be_renewed_is_told_before_it_ends_and_ended_before_it_ends(child: Child) -> None:
    run = child.begin()
    child.clock.time = run.task.deadline - MARGIN - 0.1
    child.watchdog.tick()
    assert run.stopped_at is None
    child.clock.time = run.task.deadline - MARGIN
    child.watchdog.tick()
    assert isinstance(reason_of(run), PreemptedError)
    child.clock.time = run.task.deadline - 0.6
    with pytest.raises(Left, match="schedules:a"):
        child.watchdog.tick()


def test_a_lost_lease_is_told_to_its_handler_at_the_next_renewal(child: Child) -> None:
    run = child.begin()
    child.steal(run.task.key)
    child.clock.time += 2
    child.lease_renewer.tick()
    assert isinstance(reason_of(run), PreemptedError)


def test_a_lost_lease_is_told_to_its_handler_even_if_the_renewal_then_fails_for_other_runs(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = child.begin()
    (other,) = child.source.poll_multi(1)
    other.alive_time = ALIVE / 2  # so that another statement renews its lease
    child.steal(run.task.key)
    answers = iter((child.store.extend, refuse))

    def extend(*given: Any) -> Any:
        return next(answers)(*given)

    monkeypatch.setattr(child.store, "extend", extend)
    child.clock.time += ALIVE * 0.6
    child.lease_renewer.tick()
    assert isinstance(reason_of(run), PreemptedError)


def test_a_run_longer_than_task_timeout_is_told_and_then_ended(store: ScheduleStore) -> None:
    child = Child(store, task_timeout=7)
    run = child.begin()
    child.clock.time += 6.9
    child.watchdog.tick()
    assert run.stopped_at is None
    child.clock.time += 0.1
    child.watchdog.tick()
    assert isinstance(reason_of(run), TimeoutError)
    child.clock.time += KILL_INTERVAL
    with pytest.raises(Left):
        child.watchdog.tick()


def test_an_immediate_stop_tells_every_run_and_ends_the_process_after_its_grace(child: Child) -> None:
    run = child.begin()
    child.watchdog.stop(grace=0.4)
    child.watchdog.tick()
    assert isinstance(reason_of(run), ImmediateProcessStopError)
    child.clock.time += 0.4
    with pytest.raises(Left, match="immediate stop"):
        child.watchdog.tick()


def test_a_later_stop_can_only_hasten_the_end(child: Child) -> None:
    child.watchdog.stop(grace=0.4)
    child.watchdog.stop()
    child.clock.time += 0.4
    with pytest.raises(Left):
        child.watchdog.tick()


def test_what_stopped_at_once_is_released_and_what_took_too_long_is_retried(child: Child) -> None:
    for reason, outcome in ((ImmediateProcessStopError("stop"), "released"), (TimeoutError("slow"), "retried")):
        (task,) = child.source.poll_multi(1)
        task.stop_reason = reason
        settle_stopped(task)
        assert task.outcome == outcome


def test_what_was_preempted_is_left_alone(child: Child) -> None:
    (task,) = child.source.poll_multi(1)
    task.stop_reason = PreemptedError("gone")
    settle_stopped(task)
    assert not task.settled


def test_a_task_prefetched_has_a_short_lease_until_it_begins(child: Child) -> None:
    first, second, _ = child.source.poll_multi(3, ahead=True)
    assert {first.deadline, second.deadline} == {child.clock.time + SHORT}
    assert first.begin()
    child.clock.time += 2
    child.lease_renewer.tick()
    child.prefetched_renewer.tick()
    assert first.deadline == child.clock.time + ALIVE
    assert second.deadline == child.clock.time + SHORT


def test_a_lease_is_not_written_again_before_it_is_due(child: Child) -> None:
    run = child.begin()
    child.clock.time += 1.9
    before = run.task.lease
    child.lease_renewer.tick()
    assert run.task.lease is before


def test_a_task_whose_lease_is_about_to_end_does_not_begin(child: Child) -> None:
    (task,) = child.source.poll_multi(1)
    child.clock.time = task.deadline - MARGIN
    assert not task.begin(MARGIN)


def test_a_task_whose_lease_is_found_lost_does_not_begin(child: Child) -> None:
    first, second = child.source.poll_multi(2, ahead=True)
    child.steal(first.key)
    child.clock.time += 2
    child.prefetched_renewer.tick()
    assert not first.begin()
    assert second.begin()


def test_a_task_that_is_being_settled_is_not_renewed_meanwhile(child: Child) -> None:
    run = child.begin()
    child.clock.time += 5
    before = run.task.lease
    with run.task.lock:
        other = threading.Thread(target=child.lease_renewer.tick)
        other.start()
        other.join(10)
    assert run.task.lease is before


def waiting_since(child: Child) -> dict[str, float]:
    """Return the due time of each waiting row."""
    return {row.key: row.next_run_time for row in child.store.list() if row.status == "waiting"}


def test_a_stop_releases_prefetched_tasks_and_keeps_running_ones(child: Child) -> None:
    running, *waiting = child.source.poll_multi(3, ahead=True)
    assert running.begin()
    child.runner.queue([running, *waiting])
    child.releaser.stop()
    assert child.releaser.tick()
    assert [task.outcome for task in waiting] == ["released", "released"]
    assert not running.settled
    assert waiting_since(child) == {"b": NOON, "c": NOON}


def test_what_waits_behind_a_long_run_is_given_back(child: Child) -> None:
    running, *waiting = child.source.poll_multi(3, ahead=True)
    assert running.begin()
    child.runner.queue([running, *waiting])
    child.runs.begin(0, ActiveRun(running, child.poller, Handler(running)))
    assert child.releaser.tick()
    assert not any(task.settled for task in waiting)
    running.begun_at -= 10_000
    child.releaser.tick()
    assert [task.outcome for task in waiting] == ["released", "released"]


@pytest.fixture
def dispatch() -> Iterator[DispatchSocket]:
    dispatch = DispatchSocket("host/test/1")
    yield dispatch
    dispatch.close()


def fetched_tasks(
    child: Child, dispatch: DispatchSocket
) -> tuple[FetchedTaskPoller, Connection, Sequence[Task], WaitingTaskReleaser]:
    """Return a handler child's poller, the fetching child's connection, three tasks, and the releaser of waiting tasks.

    The first task is running.
    """
    connection = FetcherConnection(dispatch, "host/w1/1", (), lambda: None)
    poller = FetchedTaskPoller("schedules", child.source, Application(()), None, MARGIN, connection)
    assert poller.poll() == []
    ((_, fetcher),) = dispatch.accept()
    claims, deadline = child.source.fetch_multi(3)
    fetcher.send(("run", "schedules", encode_claims(claims), deadline))
    tasks = poller.poll()
    assert [message[0] for message in fetcher.receive()] == ["hello"]
    loop = HandlerLoop(0, [poller], child.runs, StopEvent(), child.clock)
    loop._poller = poller
    assert tasks[0].begin()
    loop.queue(tasks)
    child.runs.begin(0, ActiveRun(tasks[0], poller, Handler(tasks[0])))
    return poller, fetcher, tasks, WaitingTaskReleaser([loop])


def test_the_sections_of_a_child_that_leaves_share_one_connection_and_close_it_once(
    child: Child, dispatch: DispatchSocket
) -> None:
    connection = FetcherConnection(dispatch, "host/w1/1", (), lambda: None)
    pollers = [
        FetchedTaskPoller(name, child.source, Application(()), None, MARGIN, connection)
        for name in ("schedules", "queue")
    ]
    for poller in pollers:
        assert poller.poll() == []
    for poller in pollers:
        poller.close()
    ((_, fetcher),) = dispatch.accept()
    assert [message[0] for message in fetcher.receive()] == ["hello", "left"]
    fetcher.close()


def test_what_waits_behind_a_run_of_30_ms_is_returned_to_the_fetching_child(
    child: Child, dispatch: DispatchSocket
) -> None:
    poller, fetcher, (running, *waiting), releaser = fetched_tasks(child, dispatch)
    child.clock.time += 0.02
    assert releaser.tick()
    assert not any(task.settled for task in waiting)
    child.clock.time += 0.02
    releaser.tick()
    assert not any(task.begin() for task in waiting)
    assert not running.settled
    ((kind, section, returned, deadlines),) = fetcher.receive()
    assert (kind, section) == ("returned", "schedules")
    assert decode_claims(returned) == [task.claim for task in waiting]
    assert deadlines == [task.deadline for task in waiting]
    assert {row.key for row in child.store.list() if row.status == "running"} == {"a", "b", "c"}, "with their leases"
    fetcher.close()
    poller.close()


def test_tasks_that_came_before_the_end_of_the_fetching_child_are_not_lost_when_a_report_finds_the_end(
    child: Child, dispatch: DispatchSocket
) -> None:
    connection = FetcherConnection(dispatch, "host/w1/1", (), lambda: None)
    poller = FetchedTaskPoller("schedules", child.source, Application(()), None, MARGIN, connection)
    assert poller.poll() == []
    ((_, fetcher),) = dispatch.accept()
    assert len(list(fetcher.receive())) == 1
    claims, deadline = child.source.fetch_multi(3)
    fetcher.send(("run", "schedules", encode_claims(claims), deadline))
    fetcher.close()
    connection.report_ended("schedules", 0, {})
    connection.renew()
    assert [task.key for task in poller.poll()] == ["a", "b", "c"]
    poller.close()


def test_what_waits_behind_a_long_run_is_released_while_there_is_no_fetching_child(
    child: Child, dispatch: DispatchSocket
) -> None:
    poller, fetcher, (running, *waiting), releaser = fetched_tasks(child, dispatch)
    fetcher.close()
    assert poller.poll() == []  # finds the end of the connection
    child.clock.time += 0.04
    releaser.tick()
    assert [task.outcome for task in waiting] == ["released", "released"]
    assert not running.settled
    assert waiting_since(child) == {"b": NOON, "c": NOON}
    poller.close()


def test_what_cannot_be_returned_as_the_fetching_child_has_just_left_is_released(
    child: Child, dispatch: DispatchSocket
) -> None:
    poller, fetcher, (running, *waiting), releaser = fetched_tasks(child, dispatch)
    fetcher.close()
    child.clock.time += 0.04
    releaser.tick()
    assert [task.outcome for task in waiting] == ["released", "released"]
    assert not running.settled
    assert waiting_since(child) == {"b": NOON, "c": NOON}
    poller.close()


def test_only_the_handler_thread_replaces_the_connection_that_it_waits_for(
    child: Child, dispatch: DispatchSocket
) -> None:
    poller, fetcher, _, _ = fetched_tasks(child, dispatch)
    (waited_for,) = poller.descriptors
    fetcher.close()
    poller.return_late()
    assert list(dispatch.accept()) == []
    assert poller.descriptors == (waited_for,)
    assert poller.poll() == []
    poller.return_late()
    ((_, next_fetcher),) = dispatch.accept()  # during a run any thread connects
    assert [message[0] for message in next_fetcher.receive()] == ["hello"]
    next_fetcher.close()
    poller.close()


def test_tasks_that_cannot_be_released_stay_until_the_next_tick(
    child: Child, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    running, *waiting = child.source.poll_multi(3, ahead=True)
    assert running.begin()
    child.runner.queue([running, *waiting])
    child.releaser.stop()
    with monkeypatch.context() as broken:
        broken.setattr(child.store, "release_many", refuse)
        child.releaser.tick()
    assert not any(task.settled for task in waiting)
    assert "2 tasks were not released: reset by peer" in caplog.text
    child.releaser.tick()
    assert [task.outcome for task in waiting] == ["released", "released"]


def test_nothing_delays_the_renewal_of_what_runs(child: Child) -> None:
    running, *waiting = child.source.poll_multi(3, ahead=True)
    assert running.begin()
    child.clock.time += 2
    with waiting[0].lock, waiting[1].lock:  # somebody is at their rows
        child.lease_renewer.tick()
    assert running.deadline == child.clock.time + ALIVE
    assert {task.deadline for task in waiting} == {child.clock.time - 2 + SHORT}
