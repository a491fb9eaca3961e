"""The runs of function handlers are settled together and in time, and none is forgotten. On SQLite in memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from psched.execution.batch_size import TOO_LONG, AdaptiveBatchSizer
from psched.execution.handler_loop import TURN, give_back
from psched.execution.settlement_buffer import LONGEST
from psched.model import NewTask
from psched.task import Task
from psched.telemetry import attach
from tests.stores.queue.bench import keys_in
from tests.unit.settling_child import ALIVE, SHORT, Child, finished, opened_child


@pytest.fixture
def child() -> Iterator[Child]:
    with opened_child() as child:
        yield child


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


def test_what_is_due_behind_a_full_batch_begins_before_that_is_settled(child: Child) -> None:
    child.serve(*(f"quick.{n}" for n in range(25)))
    assert child.ending.parts == [25]


def test_a_full_batch_is_settled_when_nothing_more_is_to_be_had(child: Child) -> None:
    child.serve(*(f"quick.{n}" for n in range(20)))
    assert child.ending.parts == [20]


def test_full_batches_are_settled_before_the_next_due_time_is_queried(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[int] = []
    monkeypatch.setattr(child.store, "next_due", lambda **_: settled.append(len(finished(child))))
    child.serve(*(f"quick.{n}" for n in range(20)))
    child.poll()
    assert set(settled) == {20}


def test_other_lanes_have_their_turn_however_much_is_due(child: Child) -> None:
    @child.app.task("takes")
    def takes(task: Task) -> None:
        child.time += TURN / 15

    child.serve(*(f"takes.{n}" for n in range(55)))
    assert child.ending.parts == [20]


def test_a_child_goes_on_after_a_long_run_behind_which_all_tasks_were_released(child: Child) -> None:
    began: list[str] = []

    @child.app.task("takes")
    def takes(task: Task) -> None:
        began.append(task.key)
        child.time += 2 * TOO_LONG
        child.runner.release_waiting(at_once=False)

    child.poller.prefetch = AdaptiveBatchSizer()
    child.store.submit([NewTask(key, "takes", run_at=1) for key in ("a", "b", "c")])
    child.runner.queue(child.source.poll_multi(3, ahead=True))
    child.runner._run_waiting(child.poller)
    assert began == ["a"]
    assert keys_in(child.store, status="waiting") == ["b", "c"]


@pytest.mark.parametrize("seconds", [None, LONGEST * 2])
def test_nobody_waits_for_a_run_that_is_slow_or_of_a_new_type(child: Child, seconds: float | None) -> None:
    seen: list[list[str]] = []
    child.app.task("other")(lambda task: seen.append(finished(child)))
    if seconds is not None:
        child.poller.prefetch.observe_run("other", seconds)
    child.poller.prefetch.observe_run("quick", 0.0)
    child.serve("quick.1", "quick.2", "other.3", known=False)
    assert seen == [["quick.1", "quick.2"]]


def test_the_first_waits_for_a_moment_only(child: Child) -> None:
    @child.app.task("takes")
    def takes(task: Task) -> None:
        child.time += LONGEST * 0.4

    child.serve(*(f"takes.{n}" for n in range(6)))
    assert max(child.ending.parts) <= 4
    assert sum(child.ending.parts) == 6


def test_slow_settlements_become_fewer_but_nothing_waits_for_longer_than_a_second(child: Child) -> None:
    def takes_long() -> None:
        child.time += 0.1

    @child.app.task("takes")
    def takes(task: Task) -> None:
        child.time += LONGEST * 0.4

    child.ending.before = takes_long
    child.serve(*(f"takes.{n}" for n in range(10)))
    assert len(child.ending.parts) == 2
    assert child.poller.settlement_buffer._budget.seconds(LONGEST) == 1.0


def test_a_run_that_is_over_at_once_costs_no_renewal(child: Child) -> None:
    deadlines: list[float] = []

    @child.app.task("stays")
    def stays(task: Task) -> None:
        for _ in range(2):
            child.time += 0.5
            child.lease_renewer.tick()
            child.prefetched_renewer.tick()
            deadlines.extend(held.deadline - child.time for held in child.source.held)

    child.poller.settlement_buffer._since = 1e9  # not overdue
    child.serve("stays.1", "quick.2")
    assert deadlines == [SHORT - 0.5, SHORT - 0.5, ALIVE, SHORT - 1.0]


def test_the_steward_settles_what_waits_for_a_handler_that_takes_long(child: Child) -> None:
    seen: list[list[str]] = []

    @child.app.task("stays")
    def stays(task: Task) -> None:
        child.prefetched_renewer.tick()
        seen.append(finished(child))
        child.time += LONGEST * 2
        child.prefetched_renewer.tick()
        seen.append(finished(child))

    child.serve("quick.1", "quick.2", "stays.3")
    assert seen == [[], ["quick.1", "quick.2"]]
    assert len(finished(child)) == 3


def test_the_leases_of_what_is_not_settled_yet_are_kept(child: Child) -> None:
    deadlines: list[float] = []

    @child.app.task("stays")
    def stays(task: Task) -> None:
        child.poller.settlement_buffer._since = child.time + 1e9  # not overdue
        child.time += 2
        child.lease_renewer.tick()
        child.prefetched_renewer.tick()
        deadlines.extend(held.deadline - child.time for held in child.source.held)

    child.serve("quick.1", "quick.2", "stays.3")
    assert deadlines == [ALIVE] * 3


def test_what_is_not_settled_yet_is_no_suspect(child: Child) -> None:
    seen: list[tuple[str, ...]] = []
    child.ending.before = lambda: seen.append(child.running_table.names())
    child.serve("quick.1", "quick.2")
    assert seen == [()]


def test_a_stop_settles_ended_runs_and_releases_the_rest(child: Child) -> None:
    child.app.task("last")(lambda task: child.stopping.set())
    for type_ in ("quick", "last"):
        child.poller.prefetch.observe_run(type_, 0.0)
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
    task = child.source.poll_multi(1)[0]
    assert task is not None
    factory = child.app.route("quick")
    assert factory is not None
    factory(task).run()
    assert finished(child) == ["quick.1"]


def test_a_flush_waits_for_that_of_another_thread(child: Child) -> None:
    """Otherwise a child could exit before the listeners have the events of its last runs."""
    begun, may_end = threading.Event(), threading.Event()
    events: list[str] = []
    child.serve("quick.1")
    (task,) = tasks_that_ran(child, "quick.2")

    def takes_long() -> None:
        begun.set()
        assert may_end.wait(60)

    child.ending.before = takes_long
    detach = attach(lambda event, fields: events.extend(each.key for each in fields["tasks"]), "settle")
    buffer = child.poller.settlement_buffer
    buffer.add(task, child.time)
    first = threading.Thread(target=buffer.flush)
    second = threading.Thread(target=lambda: (buffer.flush(), events.append("flushed")))
    try:
        first.start()
        assert begun.wait(60)
        buffer.flush(child.time)  # the renewal of leases must not wait
        assert events == []
        second.start()
        second.join(0.05)
        may_end.set()
        first.join()
        second.join()
    finally:
        detach()
    assert events == ["quick.2", "flushed"]


def tasks_that_ran(child: Child, *keys: str) -> list[Task]:
    """Return acquired tasks that have run successfully and are not settled."""
    child.store.submit([NewTask(key, "quick") for key in keys])
    tasks = [task for task in child.source.poll_multi(10) if task is not None]
    for task in tasks:
        assert task.begin(3.0)
        task.finished_later = True
        task.conclude()
    return tasks
