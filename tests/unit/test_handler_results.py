"""The value that a handler returns is stored with its queue task. If it cannot be stored, the task fails."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from psched.application import App
from psched.config import from_mapping
from psched.errors import ConfigError, NotSupportedError
from psched.model import NewTask, Progress, TaskRow
from psched.queue.queue import open_queue
from psched.store import TaskStore
from psched.task import Task
from tests.stores.queue.bench import row_of
from tests.unit.fake_task import Ledger
from tests.unit.handlers import run
from tests.unit.settling_child import Child, opened_child


@pytest.fixture
def child() -> Iterator[Child]:
    with opened_child() as child:
        yield child


def row_after(child: Child, function: Callable[[Task], Any], **options: Any) -> TaskRow:
    """Let `function` handle a task. Return the task's row."""
    child.app.task("type", **{"store_result": True, **options})(function)
    child.serve("type.1")
    return row_of(child.store, "type.1")


@pytest.mark.parametrize("value", [5, None, {"rows": [1, "ä"]}, False])
def test_what_the_function_returns_is_the_result_of_its_task(child: Child, value: object) -> None:
    row = row_after(child, lambda task: value)
    assert (row.status, row.has_result, row.result) == ("finished", True, value)


def test_what_a_coroutine_returns_is_the_result_of_its_task(child: Child) -> None:
    async def handle(task: Task) -> int:
        return task.attempts

    row = row_after(child, handle)
    child.app.close()
    assert (row.status, row.has_result, row.result) == ("finished", True, 1)


def test_a_function_that_is_annotated_to_return_something_stores_it(child: Child) -> None:
    def handle(task: Task) -> int:
        return 5

    assert row_after(child, handle, store_result=None).result == 5


def test_a_value_is_stored_as_its_annotation_says(child: Child) -> None:
    def handle(task: Task) -> date:
        return date(2027, 3, 28)

    assert row_after(child, handle).result == "2027-03-28"


def test_a_type_that_stores_no_result_has_none(child: Child) -> None:
    row = row_after(child, lambda task: 5, store_result=False)
    assert (row.status, row.has_result) == ("finished", False)


def test_tasks_that_are_settled_together_have_their_own_results(child: Child) -> None:
    child.app.task("type", store_result=True)(lambda task: task.key)
    keys = [f"type.{n}" for n in range(20)]
    child.serve(*keys)
    assert max(child.ending.parts) > 1, "they were not settled together"
    assert {key: row_of(child.store, key).result for key in keys} == {key: key for key in keys}


def test_a_result_that_cannot_be_stored_fails_the_task_at_once_with_the_reason(
    child: Child, caplog: pytest.LogCaptureFixture
) -> None:
    begun = []

    def handle(task: Task) -> object:
        begun.append(task.attempts)
        return {"at": {1}}

    row = row_after(child, handle, max_attempts=5)
    reason = "handle['at']: the set {1} would come back from JSON as the list [1]; annotate it with its type"
    assert (row.status, row.has_result, row.attempts) == ("failed", False, 1)
    assert row.last_error is not None
    assert row.last_error.startswith("the result cannot be stored: ")
    assert reason in row.last_error
    child.time += 1000
    child.poll()
    assert begun == [1]
    assert reason in caplog.text


def test_a_schedules_run_stores_no_result(app: App, ledger: Ledger) -> None:
    app.task("type1", store_result=True)(lambda task: {1})
    run(app, ledger)
    assert ledger.entries == [("finished",)]


def test_a_type_keeps_its_tasks_for_its_own_times(child: Child) -> None:
    def handle(task: Task) -> None:
        if "bad" in task.key:
            raise ValueError

    child.app.task("type", retention_time=5000, failed_retention_time=7000, max_attempts=1)(handle)
    child.serve("type.bad", "type.good")
    now = child.store.now()
    assert [round(purged_in(child.store, key, now), -2) for key in ("type.bad", "type.good")] == [7000, 5000]


def purged_in(store: TaskStore, key: str, now: float) -> float:
    """Return the seconds from `now` until a task's row is deleted."""
    row: Any = store._database.run(lambda connection, _: store._row(connection, key))  # type: ignore[attr-defined]
    return float(row["purge_at"]) / 1000 - now


def test_the_configuration_says_how_long_failed_tasks_are_kept(tmp_path: Path) -> None:
    settings = from_mapping({"type": "rdb", "url": f"sqlite:///{tmp_path}/db", "failed_retention_time": "30d"})
    assert settings.schedules is not None
    with open_queue(evolve(settings.schedules, table="tasks"), "host/1/1") as queue:
        queue.store.create_tables()
        queue.submit("key", "type")
        [task] = queue.poll_multi()
        task.fail("it is broken")
        assert abs(purged_in(queue.store, "key", queue.store.now()) - 30 * 86400) < 60


@pytest.mark.parametrize("name", ["retention_time", "failed_retention_time"])
def test_a_time_that_is_no_number_of_seconds_is_refused(app: App, name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name} of 'type' must be a number of seconds"):
        app.task("type", **{name: "7d"})  # type: ignore[call-overload]


def test_progress_is_written_once_a_second_and_last_with_the_settling(
    child: Child, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    update = type(child.store).update_progress

    def spy(store: TaskStore, claim: Any, progress: str, until: float) -> None:
        written.append(progress)
        update(store, claim, progress, until)

    monkeypatch.setattr(type(child.store), "update_progress", spy)

    def handle(task: Task) -> None:
        for done in range(1, 25):
            child.time += 0.125
            task.progress(done, 24)

    row = row_after(child, handle)
    assert [text.partition(",")[0] for text in written] == ['{"done":8', '{"done":16', '{"done":24']
    assert row.progress == Progress(24, 24, None, 1)


def test_progress_that_could_not_be_written_is_written_with_the_next_renewal(
    child: Child, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = []

    def fails(*_: object) -> None:
        raise OSError("the network is away")

    def handle(task: Task) -> None:
        child.time += 2
        with monkeypatch.context() as patched:
            patched.setattr(type(child.store), "update_progress", fails)
            task.progress(1)
        rows.append(row_of(child.store, task.key).progress)
        task.heartbeat()
        rows.append(row_of(child.store, task.key).progress)

    row_after(child, handle)
    assert rows == [None, Progress(1)]
    assert "progress not saved" in caplog.text


@pytest.mark.parametrize(
    ("report", "fault"),
    [
        ((-1,), "done must be a finite number of at least 0, got -1"),
        ((float("nan"),), "done must be a finite number"),
        (("5",), "done must be a finite number"),
        ((1, float("inf")), "total must be a finite number"),
        ((1, None, 5), "message must be text, got 5"),
        ((1, None, "a\0b"), "message contains a character that cannot be stored, NUL"),
    ],
)
def test_progress_that_cannot_be_stored_is_refused(child: Child, report: tuple[Any, ...], fault: str) -> None:
    child.store.submit([NewTask("key", "quick")])
    [task] = child.source.poll_multi(1)
    with pytest.raises(ValueError, match=fault):
        task.progress(*report)


def test_the_run_of_a_schedule_has_no_progress(ledger: Ledger) -> None:
    with pytest.raises(NotSupportedError, match="a schedule stores no result and no progress; submit a queue task"):
        ledger.task().progress(1)
