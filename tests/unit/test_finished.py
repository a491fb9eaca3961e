"""Function handlers that returned are settled together, in time, and none is forgotten. On SQLite in memory."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from sqlalchemy.exc import OperationalError

from psched.application import App, Application
from psched.backends import open_stores
from psched.daemon.board import Board
from psched.daemon.finished import LONGEST
from psched.daemon.keeper import Keeper
from psched.daemon.lane import Lane
from psched.daemon.prefetch import FixedPrefetch
from psched.daemon.runner import Runner, give_back
from psched.daemon.runs import Runs
from psched.daemon.stop_order import StopOrder
from psched.errors import ScheduleError
from psched.model import Claim, NewTask
from psched.retire import Retire
from psched.source import LeaseTimes, Source
from psched.store import StoreSettings, TaskStore
from psched.task import Task
from tests.stores.queue.bench import keys_in

ALIVE, SHORT = 60.0, 15.0


class AwayError(OperationalError):
    """A database that does not answer."""

    def __init__(self) -> None:
        super().__init__("UPDATE", {}, OSError("away"))
        self.connection_invalidated = True


class Counting(Retire):
    """Counts in how large parts runs are finished; does `before` each, which may raise."""

    def __init__(self, store: TaskStore) -> None:
        super().__init__(store, retention=100, max_attempts=None)
        self.parts: list[int] = []
        self.before: Callable[[], None] = lambda: None

    def finish(self, claim: Claim, until: float) -> None:
        self.before()
        super().finish(claim, until)
        self.parts.append(1)

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        self.before()
        errors = super().finish_many(claims, until)
        self.parts.append(len(claims))
        return errors


class Child:
    """The parts of a child around one handler thread on a queue, with a clock of the test's own."""

    def __init__(self, store: TaskStore) -> None:
        self.store = store
        self.time = 1000.0
        self.ending = Counting(store)
        self.app = App()
        self.source = Source(store, self.ending, LeaseTimes(ALIVE, 300, SHORT), self.clock)
        self.lane = Lane("queue", self.source, Application((self.app,)), FixedPrefetch(10), 1.0, None, 3.0)
        self.lane.finished._clock = self.clock
        self.stopping = StopOrder()
        self.board = Board(1)
        runs = Runs(1)
        self.runner = Runner(0, [self.lane], runs, self.board, self.stopping, lambda: None, lambda: None, self.clock)
        self.keeper = Keeper([self.source], [self.runner], interval=2.0, clock=self.clock)

    def clock(self) -> float:
        return self.time

    def serve(self, *keys: str, known: bool = True) -> None:
        """Submit tasks of the type before the dot, and run what is due; `known`: such were run before."""
        for key in keys if known else ():
            self.lane.prefetch.note(key.partition(".")[0], 0.0)
        self.store.submit([NewTask(key, key.partition(".")[0], run_at=n) for n, key in enumerate(keys, 1)])
        self.runner._serve(self.lane)


@pytest.fixture
def store() -> Iterator[TaskStore]:
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", queue="psched_queue")).queue
    assert store is not None
    store.create_tables()
    yield store
    store.close()


@pytest.fixture
def child(store: TaskStore) -> Child:
    child = Child(store)
    child.app.task("quick")(lambda task: None)
    return child


def finished(child: Child) -> list[str]:
    return keys_in(child.store, status="finished")


def test_what_was_taken_together_is_settled_together(child: Child, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    child.serve("quick.1", "quick.2", "quick.3")
    assert child.ending.parts == [3]
    assert len(finished(child)) == 3
    assert child.source.held == []
    assert [record.getMessage() for record in caplog.records] == [
        "section=queue 3 runs finished, the last one key=quick.3"
    ]
    child.serve("quick.4")
    assert "key=quick.4 type=quick finished after 0." in caplog.text


@pytest.mark.parametrize("seconds", [None, LONGEST * 2])
def test_nobody_waits_for_a_run_that_is_slow_or_of_a_new_type(child: Child, seconds: float | None) -> None:
    seen: list[list[str]] = []
    child.app.task("other")(lambda task: seen.append(finished(child)))
    if seconds is not None:
        child.lane.prefetch.note("other", seconds)
    child.lane.prefetch.note("quick", 0.0)
    child.serve("quick.1", "quick.2", "other.3", known=False)
    assert seen == [["quick.1", "quick.2"]]


def test_the_first_waits_for_a_moment_only(child: Child) -> None:
    @child.app.task("takes")
    def takes(task: Task) -> None:
        child.time += LONGEST * 0.4

    child.serve(*(f"takes.{n}" for n in range(6)))
    assert max(child.ending.parts) <= 4
    assert sum(child.ending.parts) == 6


def test_the_keeper_settles_what_waits_for_a_handler_that_takes_long(child: Child) -> None:
    seen: list[list[str]] = []

    @child.app.task("stays")
    def stays(task: Task) -> None:
        child.keeper.tick()
        seen.append(finished(child))
        child.time += LONGEST * 2
        child.keeper.tick()
        seen.append(finished(child))

    child.serve("quick.1", "quick.2", "stays.3")
    assert seen == [[], ["quick.1", "quick.2"]]
    assert len(finished(child)) == 3


def test_what_the_keeper_cannot_settle_is_settled_later(child: Child) -> None:
    failures: list[Exception] = []

    def fail() -> None:
        if not failures:
            failures.append(AwayError())
            raise failures[0]

    @child.app.task("stays")
    def stays(task: Task) -> None:
        child.ending.before = fail
        child.time += LONGEST * 2
        child.keeper.tick()
        assert finished(child) == []

    child.serve("quick.1", "quick.2", "stays.3")
    assert len(failures) == 1
    assert finished(child) == ["quick.1", "quick.2", "stays.3"]


def test_the_leases_of_what_is_not_settled_yet_are_kept(child: Child) -> None:
    deadlines: list[float] = []

    @child.app.task("stays")
    def stays(task: Task) -> None:
        child.lane.finished._since = child.time + 1e9  # not overdue
        child.time += 2
        child.keeper.tick()
        deadlines.extend(held.deadline - child.time for held in child.source.held)

    child.serve("quick.1", "quick.2", "stays.3")
    assert deadlines == [ALIVE] * 3


def test_what_is_not_settled_yet_is_no_suspect(child: Child) -> None:
    seen: list[tuple[str, ...]] = []
    child.ending.before = lambda: seen.append(child.board.names())
    child.serve("quick.1", "quick.2")
    assert seen == [()]


def test_a_stop_settles_what_ran_and_gives_back_the_rest(child: Child) -> None:
    child.app.task("last")(lambda task: child.stopping.set())
    for type_ in ("quick", "last"):
        child.lane.prefetch.note(type_, 0.0)
    keys = ["quick.1", "last.2", "quick.3"]
    child.store.submit([NewTask(key, key.partition(".")[0], run_at=n) for n, key in enumerate(keys, 1)])
    child.runner.run()
    assert finished(child) == ["last.2", "quick.1"]
    assert keys_in(child.store, status="waiting") == ["quick.3"]


def test_leaving_by_force_finishes_what_ran(child: Child) -> None:
    seen: list[list[str]] = []

    @child.app.task("leaves")
    def leaves(task: Task) -> None:
        assert all(give_back(held) for held in child.source.held if held is not task)
        seen.append(finished(child))

    child.serve("quick.1", "leaves.2")
    assert seen == [["quick.1"]]
    assert finished(child) == ["leaves.2", "quick.1"]


def test_a_lost_lease_is_told_and_harms_no_other(child: Child, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @child.app.task("robs")
    def robs(task: Task) -> None:
        child.store.preempt("quick.1", 100)
        child.store.delete("quick.2")

    child.serve("quick.1", "quick.2", "quick.3", "robs.4")
    assert finished(child) == ["quick.3", "robs.4"]
    assert keys_in(child.store, status="running") == ["quick.1"]
    assert "key=quick.1 preempted: " in caplog.text
    assert "key=quick.2 was not settled: " in caplog.text
    assert "section=queue 2 runs finished" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert child.source.held == []


def test_a_database_that_stays_away_is_waited_for_until_the_leases_end(
    child: Child, caplog: pytest.LogCaptureFixture
) -> None:
    tries: list[float] = []

    def fail() -> None:
        tries.append(child.time)
        raise AwayError

    child.ending.before = fail
    child.serve("quick.1", "quick.2")
    assert len(tries) == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"key=quick.{n} type=quick could not be settled: away; it comes back" for n in (1, 2)
    ]
    assert child.source.held == []


def refuse_to_finish(store: TaskStore, key: str) -> None:
    """Let the database refuse to finish this task, whatever else the statement finishes."""
    statement = (
        "CREATE TRIGGER refusing BEFORE UPDATE ON psched_queue"
        f" WHEN NEW.status = 'finished' AND NEW.key = '{key}' BEGIN SELECT RAISE(ABORT, 'refused'); END"
    )
    cast("Any", store)._database.run(lambda connection, _: connection.exec_driver_sql(statement))


def test_what_cannot_be_finished_keeps_no_other_from_it(child: Child, caplog: pytest.LogCaptureFixture) -> None:
    refuse_to_finish(child.store, "quick.2")
    child.serve("quick.1", "quick.2", "quick.3")
    assert finished(child) == ["quick.1", "quick.3"]
    assert [record.getMessage() for record in caplog.records] == [
        "key=quick.2 type=quick could not be settled: refused; it comes back"
    ]
    assert child.source.held == []


def test_the_keeper_lets_nobody_wait_for_what_cannot_be_finished(child: Child) -> None:
    seen: list[list[str]] = []
    refuse_to_finish(child.store, "quick.1")

    @child.app.task("stays")
    def stays(task: Task) -> None:
        child.time += LONGEST * 2
        child.keeper.tick()
        seen.append(finished(child))

    child.serve("quick.1", "quick.2", "stays.3")
    assert seen == [["quick.2"]]


def test_changed_data_is_not_left_to_be_written_later(child: Child) -> None:
    seen: list[Any] = []

    @child.app.task("writes")
    def writes(task: Task) -> None:
        task.update_data({"n": 7})

    child.app.task("looks")(lambda task: seen.append(finished(child)))
    child.serve("writes.1", "looks.2")
    assert seen == [["writes.1"]]
    row = child.store.get("writes.1")
    assert row is not None
    assert row.data == {"n": 7}


def test_data_that_a_thread_of_a_handler_changes_later_is_written_all_the_same(child: Child) -> None:
    first: list[Task] = []
    child.app.task("leaves")(first.append)
    child.app.task("writes")(lambda task: first[0].update_data({"n": 7}))
    child.serve("leaves.1", "writes.2")
    row = child.store.get("leaves.1")
    assert row is not None
    assert (row.status, row.data) == ("finished", {"n": 7})
    assert child.ending.parts == [2]


def test_without_a_daemon_a_function_finishes_at_once(child: Child) -> None:
    child.store.submit([NewTask("quick.1", "quick")])
    task = child.source.poll()
    assert task is not None
    factory = child.app.route("quick")
    assert factory is not None
    factory(task).run()
    assert finished(child) == ["quick.1"]


def test_a_run_whose_lease_lasts_longer_is_still_settled_when_the_database_comes_back(child: Child) -> None:
    def fail_once() -> None:
        child.ending.before = lambda: None
        late = next(task for task in child.source.held if task.key == "quick.2")
        late.renewed(late.lease, late.deadline + 10)
        raise AwayError

    child.ending.before = fail_once
    child.serve("quick.1", "quick.2")
    assert finished(child) == ["quick.2"]
