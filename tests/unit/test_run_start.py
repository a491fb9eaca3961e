"""Whether a prefetched task begins, and what is recorded before it begins. On SQLite in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from psched.model import NewTask
from psched.task import Task
from tests.stores.queue.bench import keys_in, row_of
from tests.unit.settling_child import AwayError, Child, finished, opened_child


@pytest.fixture
def child() -> Iterator[Child]:
    with opened_child() as child:
        yield child


def renew_what_waits(child: Child) -> None:
    """Let the renewer of prefetched tasks extend the leases of waiting tasks now."""
    child.time += 2.1
    child.prefetched_renewer._renew(child.source)


def test_a_task_does_not_begin_once_a_renewal_tells_that_it_is_to_be_cancelled(child: Child) -> None:
    ran = []

    @child.app.task("first")
    def first(task: Task) -> None:
        child.store.cancel_request("second.2", 100)
        renew_what_waits(child)

    child.app.task("second")(lambda task: ran.append(task.key))
    child.serve("first.1", "second.2", "second.3")
    assert ran == ["second.3"]
    assert keys_in(child.store, status="cancelled") == ["second.2"]


def test_a_task_does_not_begin_once_a_renewal_tells_that_it_was_preempted(child: Child) -> None:
    ran = []

    @child.app.task("first")
    def first(task: Task) -> None:
        child.store.preempt("second.2", 100)
        renew_what_waits(child)

    child.app.task("second")(lambda task: ran.append(task.key))
    child.serve("first.1", "second.2", "second.3")
    assert ran == ["second.3"]
    assert keys_in(child.store, status="running") == ["second.2"]


@pytest.mark.parametrize("by_type", [True, False])
def test_the_last_attempt_is_recorded_as_begun_before_its_handler_is_called(child: Child, by_type: bool) -> None:
    seen = []
    child.app.task("once", max_attempts=1 if by_type else None)(lambda task: seen.append(taken_ahead(child, task.key)))
    child.store.submit([NewTask(f"once.{n}", "once", max_attempts=None if by_type else 1) for n in range(2)])
    child.poll()
    assert seen == [0, 0]


def test_any_other_attempt_costs_no_statement_more(child: Child, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child.store, "extend", lambda *_: pytest.fail("a renewal"))
    child.app.task("often", max_attempts=3)(lambda task: None)
    child.serve("often.1", "often.2", "quick.3")
    assert finished(child) == ["often.1", "often.2", "quick.3"]


def test_a_handler_is_not_called_when_its_begin_cannot_be_recorded(
    child: Child, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ran = []
    child.app.task("once", max_attempts=1)(lambda task: ran.append(task.key))

    def away(*_: object) -> None:
        raise AwayError

    with monkeypatch.context() as patch:
        patch.setattr(child.store, "extend", away)
        child.serve("once.1", "once.2")
    assert ran == []
    rows = [row_of(child.store, key) for key in ("once.1", "once.2")]
    assert {(row.status, row.attempts) for row in rows} == {("waiting", 0)}
    assert "key=once.1 type=once not run: its start was not recorded" in caplog.text
    assert "was not settled by its handler" not in caplog.text


def taken_ahead(child: Child, key: str) -> int:
    """Return the value of the column `taken_ahead` in the task's row."""
    statement = child.store._table.select().where(child.store._table.c.key == key)  # type: ignore[attr-defined]
    found = child.store._database.run(lambda connection, _: connection.execute(statement).mappings().one())  # type: ignore[attr-defined]
    return int(found["taken_ahead"])
