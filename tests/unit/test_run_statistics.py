"""Runs are counted by the minute of the database's clock, and their counts reach the process that writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from psched.execution.fetcher_connection import FetcherConnection
from psched.execution.run_stats import (
    CountedTable,
    CountReporter,
    RunCounter,
    RunCounts,
    StatsWriter,
    run_counter,
    write_rest,
)
from psched.histogram import BOUNDS
from psched.model import Lease, Rule, ScheduleRow, TaskRow
from psched.process.dispatch_socket import DispatchSocket
from psched.store.run_stats import MOST_TYPES, RunKind, RunSums
from psched.task import Task

MINUTE_BEGIN = 1_600_000_020
"""Unix seconds by the database's clock. The process's own clock shows 100 then."""


class FakeStats:
    """Records what is written. Raises an error while `fails` is true."""

    def __init__(self) -> None:
        self.written: list[tuple[RunKind, Sequence[int]]] = []
        self.calls = 0
        self.fails = False

    def add(self, node: str, counted: Sequence[tuple[RunKind, Sequence[int]]], retention: float) -> None:
        if self.fails:
            raise OSError("away")
        self.calls += 1
        self.written += counted


class FakeStore:
    def __init__(self) -> None:
        self.stats: FakeStats | None = FakeStats()


class FakeSettlement:
    def __init__(self, store: Any) -> None:
        self.store = store


class FakeTask:
    """A settled run. It began `at` seconds after MINUTE_BEGIN, by the database's clock."""

    def __init__(
        self, store: Any, at: float = 0, duration: float = 0.5, type: str = "t", outcome: str | None = "finished"
    ) -> None:
        self._settlement = FakeSettlement(store)
        self.type, self.outcome, self.duration = type, outcome, duration
        self.begun_at = 100 + at
        self.deadline = 400.0
        self.lease = Lease("k", 1, MINUTE_BEGIN + 300.0)
        self.row: Any = TaskRow("k", type, {}, "running", run_at=MINUTE_BEGIN - 2.0, due=None, attempts=1)

    waited = Task.waited


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
def counts(store: Any, clock: Clock) -> RunCounts:
    return RunCounts(store, 1000.0, clock)


@pytest.fixture
def counter(counts: RunCounts) -> RunCounter:
    return RunCounter({"queue": counts})


def settle(counter: RunCounter, *tasks: Any, error: Any = None, section: str = "queue") -> None:
    counter("settle", {"section": section, "tasks": tasks, "error": error})


def test_a_run_counts_in_the_minute_of_the_database_in_which_it_ended(store: Any, counter: RunCounter) -> None:
    settle(counter, FakeTask(store, at=1, duration=2), FakeTask(store, at=59.5, duration=0.6))
    found = dict(counter.sections["queue"].take())
    first, second = RunKind(MINUTE_BEGIN, "t", "finished"), RunKind(MINUTE_BEGIN + 60, "t", "finished")
    assert found.keys() == {first, second}
    assert found[first] == one(2, 3) and found[second] == one(0.6, 61.5)


def one(duration: float, wait: float | None) -> RunSums:
    sums = RunSums()
    sums.add_run(duration, wait)
    return sums


def test_runs_that_are_settled_together_count_like_single_runs(store: Any, counter: RunCounter) -> None:
    took = [*BOUNDS, 0.0, 1e-5, 0.003, 0.003, 0.0031, 70.0, 20_000.0]
    tasks = [FakeTask(store, at=30 - seconds, duration=seconds, type=f"t{n % 3}") for n, seconds in enumerate(took)]
    expected: dict[str, RunSums] = {}
    for task in tasks:
        expected.setdefault(task.type, RunSums()).add_run(task.duration, task.waited)
    settle(counter, *tasks)
    found = {kind.type: sums for kind, sums in counter.sections["queue"].take()}
    assert found == {type_: pytest.approx(sums, rel=1e-5) for type_, sums in expected.items()}


def test_outcomes_are_counted_apart_and_a_run_that_was_not_settled_is_lost(store: Any, counter: RunCounter) -> None:
    settle(counter, FakeTask(store, outcome="retried"), FakeTask(store, outcome="failed"))
    settle(counter, FakeTask(store, outcome=None), error="left open")
    assert [kind.outcome for kind, _ in counter.sections["queue"].take()] == ["retried", "failed", "lost"]
    assert counter.is_empty


def test_only_first_attempts_wait_and_runs_on_request_do_not(store: Any, counter: RunCounter) -> None:
    again = FakeTask(store, type="again")
    again.row = again.row._replace(attempts=2)
    late, asked = FakeTask(store, type="late"), FakeTask(store, type="asked")
    late.row = ScheduleRow(
        "k", "late", {}, "running", 1, rule=Rule("* * * * *", "UTC", 5), next_time=MINUTE_BEGIN - 60, next_run_time=0
    )
    asked.row = ScheduleRow(
        "k", "asked", {}, "running", 1, rule=Rule("* * * * *", "UTC"), next_time=1000, next_run_time=0, extra=1000
    )
    settle(counter, again, late, asked)
    found = {kind.type: sums for kind, sums in counter.sections["queue"].take()}
    assert found == {"again": one(0.5, None), "late": one(0.5, 55), "asked": one(0.5, None)}


def test_types_beyond_a_bound_are_counted_as_other(store: Any, counter: RunCounter) -> None:
    settle(counter, *(FakeTask(store, type=f"t{n}") for n in range(MOST_TYPES + 10)))
    settle(counter, FakeTask(store, type="t0", outcome="failed"))
    found = counter.sections["queue"].take()
    assert len(found) == MOST_TYPES + 2
    assert {kind.type: sums.runs for kind, sums in found if kind.outcome == "finished"}["other"] == 10


def test_another_scheduler_of_this_process_counts_its_own_runs(store: Any, counter: RunCounter) -> None:
    settle(counter, FakeTask(FakeStore()))
    settle(counter, FakeTask(store), section="schedules")
    assert counter.is_empty


def test_minutes_are_written_when_they_are_over_and_the_rest_at_the_end(
    store: Any, counter: RunCounter, clock: Clock
) -> None:
    writer = StatsWriter(counter)
    settle(counter, FakeTask(store), FakeTask(store, at=1))
    clock.now = 130.0
    assert writer.tick()
    assert 30 < writer.interval < 36
    assert store.stats.calls == 0
    clock.now += writer.interval
    assert not writer.tick()
    assert [(kind.minute, sums.runs) for kind, sums in store.stats.written] == [(MINUTE_BEGIN, 2)]
    assert not writer.tick() and store.stats.calls == 1
    settle(counter, FakeTask(store, at=65))
    write_rest(counter)
    assert [kind.minute for kind, _ in store.stats.written] == [MINUTE_BEGIN, MINUTE_BEGIN + 60]


def test_what_cannot_be_written_is_kept_up_to_a_bound(store: Any, counter: RunCounter, clock: Clock) -> None:
    writer = StatsWriter(counter)
    store.stats.fails = True
    for minute in range(100):
        settle(counter, FakeTask(store, at=60 * minute))
        clock.now = 100 + 60 * (minute + 1) + 10
        with pytest.raises(OSError, match="away"):
            writer.tick()
    store.stats.fails = False
    assert not writer.tick()
    minutes = [kind.minute for kind, _ in store.stats.written]
    assert len(minutes) == 30 and max(minutes) == MINUTE_BEGIN + 99 * 60


def test_a_handler_child_sends_its_numbers_to_the_child_that_writes(store: Any, counter: RunCounter) -> None:
    other = FakeStore()
    fetching = RunCounter({"queue": RunCounts(other, 1000.0)})  # type: ignore[arg-type]
    connected = False

    def send(kind: str, *content: Any) -> bool:
        if connected:
            assert kind == "counted"
            fetching.add(*content)
        return connected

    reporter = CountReporter(counter, send)
    settle(counter, FakeTask(store), FakeTask(store))
    assert reporter.tick()
    assert fetching.is_empty
    connected = True
    assert reporter.tick()
    assert not reporter.tick()
    [(kind, sums)] = fetching.sections["queue"].take()
    assert (kind, sums.runs) == (RunKind(MINUTE_BEGIN, "t", "finished"), 2)
    assert fetching.sections["queue"].offset == counter.sections["queue"].offset


def test_nothing_is_counted_where_statistics_are_off_or_have_no_place(store: Any) -> None:
    bare = FakeStore()
    bare.stats = None
    tables = [CountedTable("queue", store, 0.0), CountedTable("schedules", bare, 1000.0)]  # type: ignore[arg-type]
    assert run_counter(tables).sections == {}


def test_numbers_wait_until_a_fetching_child_is_known_to_be_there() -> None:
    dispatch = DispatchSocket("holder")
    connection = FetcherConnection(dispatch, "worker 1", (), lambda: None)
    connection.receive()
    assert connection.is_open
    assert not connection.send_if_heard("counted", "queue", [], 0.0), "perhaps no fetching child follows"
    [(_, fetching)] = dispatch.accept()
    fetching.send(("recovered",))
    connection.receive()
    assert connection.send_if_heard("counted", "queue", [], 0.0)
    assert [message[0] for message in fetching.receive()] == ["hello", "counted"]
    fetching.close()
    connection.close()
    dispatch.close()
