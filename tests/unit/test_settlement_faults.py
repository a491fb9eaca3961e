"""A run that cannot be settled harms no other run, and is settled later if possible. On SQLite in memory."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, cast

import pytest

from psched.execution.settlement_buffer import LONGEST
from psched.store import TaskStore
from psched.task import Task
from tests.stores.queue.bench import keys_in
from tests.unit.settling_child import AwayError, Child, finished, opened_child


@pytest.fixture
def child() -> Iterator[Child]:
    with opened_child() as child:
        yield child


def test_what_the_steward_cannot_settle_is_settled_later(child: Child) -> None:
    failures: list[Exception] = []

    def fail() -> None:
        if not failures:
            failures.append(AwayError())
            raise failures[0]

    @child.app.task("stays")
    def stays(task: Task) -> None:
        child.ending.before = fail
        child.time += LONGEST * 2
        child.prefetched_renewer.tick()
        assert finished(child) == []

    child.serve("quick.1", "quick.2", "stays.3")
    assert len(failures) == 1
    assert finished(child) == ["quick.1", "quick.2", "stays.3"]


def test_a_lost_lease_is_reported_and_harms_no_other(child: Child, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    @child.app.task("robs")
    def robs(task: Task) -> None:
        child.store.preempt("quick.1", 100)
        child.store.delete("quick.2")

    child.serve("quick.1", "quick.2", "quick.3", "robs.4")
    assert finished(child) == ["quick.3", "robs.4"]
    assert keys_in(child.store, status="running") == ["quick.1"]
    assert "key=quick.1 preempted: " in caplog.text
    assert "key=quick.2 the outcome of this run was not stored: " in caplog.text
    assert "section=queue 2 runs finished" in caplog.text
    assert not [record for record in caplog.records if record.levelno > logging.INFO]
    assert child.source.held == []


def test_a_row_that_is_gone_when_its_run_fails_is_reported_without_a_traceback(
    child: Child, caplog: pytest.LogCaptureFixture
) -> None:
    @child.app.task("robs")
    def rob(task: Task) -> None:
        child.store.delete(task.key)
        raise ValueError("it broke")

    with caplog.at_level(logging.INFO):
        child.serve("robs.1")
    last = caplog.records[-1]
    assert "key=robs.1 the outcome of this run was not stored: " in last.getMessage()
    assert last.exc_info is None
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
        f"key=quick.{n} type=quick could not be settled: away; it runs again when its lease ends" for n in (1, 2)
    ]
    assert child.source.held == []


def test_a_run_whose_lease_lasts_longer_is_still_settled_when_the_database_comes_back(child: Child) -> None:
    def fail_once() -> None:
        child.ending.before = lambda: None
        late = next(task for task in child.source.held if task.key == "quick.2")
        late._renewed(late.lease, late.deadline + 10)
        raise AwayError

    child.ending.before = fail_once
    child.serve("quick.1", "quick.2")
    assert finished(child) == ["quick.2"]


def refuse_to_finish(store: TaskStore, key: str) -> None:
    """Let the database refuse each statement that finishes this task."""
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
        "key=quick.2 type=quick could not be settled: refused; it runs again when its lease ends"
    ]
    assert child.source.held == []


def test_the_steward_lets_nobody_wait_for_what_cannot_be_finished(child: Child) -> None:
    seen: list[list[str]] = []
    refuse_to_finish(child.store, "quick.1")

    @child.app.task("stays")
    def stays(task: Task) -> None:
        child.time += LONGEST * 2
        child.prefetched_renewer.tick()
        seen.append(finished(child))

    child.serve("quick.1", "quick.2", "stays.3")
    assert seen == [["quick.2"]]
