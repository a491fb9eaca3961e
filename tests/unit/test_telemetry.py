"""Each action of the engine emits one event, and no listener harms the engine."""

from __future__ import annotations

import timeit
from collections.abc import Iterator
from typing import Any

import pytest

from psched import telemetry
from psched.errors import PreemptedError
from psched.model import LeaseTimes, NewTask
from psched.queue.queue import Queue
from psched.task import Task
from psched.telemetry import EVENTS, Event, attach, emit
from tests.unit.settling_child import Child, finished, opened_child


class Recorder:
    """Records the events with which it is called."""

    def __init__(self) -> None:
        self.events: list[tuple[Event, dict[str, Any]]] = []

    def __call__(self, event: Event, fields: dict[str, Any]) -> None:
        self.events.append((event, fields))

    def names(self) -> list[Event]:
        return [event for event, _ in self.events]

    def fields(self, name: Event) -> list[dict[str, Any]]:
        return [fields for event, fields in self.events if event == name]


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    recorder = Recorder()
    detach = attach(recorder)
    yield recorder
    detach()


@pytest.fixture
def child() -> Iterator[Child]:
    with opened_child() as child:
        yield child


def test_a_run_is_polled_started_ended_and_settled(recorder: Recorder, child: Child) -> None:
    child.serve("quick.1")
    assert recorder.names() == ["poll", "run_start", "run_end", "settle"]
    (poll,), (start,), (settled,) = (recorder.fields(name) for name in ("poll", "run_start", "settle"))
    assert (poll["section"], [task.key for task in poll["tasks"]], poll["error"]) == ("queue", ["quick.1"], None)
    assert start["task"].key == "quick.1"
    assert [(task.key, settled["error"]) for task in settled["tasks"]] == [("quick.1", None)]


def test_runs_that_are_settled_together_are_one_event(recorder: Recorder, child: Child) -> None:
    child.serve("quick.1", "quick.2", "quick.3")
    assert [[task.key for task in fields["tasks"]] for fields in recorder.fields("settle")] == [
        ["quick.1", "quick.2", "quick.3"]
    ]


def test_a_handler_that_raises_emits_the_error_before_its_run_is_settled(recorder: Recorder, child: Child) -> None:
    @child.app.task("fails")
    def fails(task: Task) -> None:
        raise ValueError("as asked")

    child.serve("fails.1")
    assert recorder.names() == ["poll", "run_start", "run_error", "settle", "run_end"]
    (error,), (settled,) = recorder.fields("run_error"), recorder.fields("settle")
    assert isinstance(error["error"], ValueError)
    assert settled["tasks"][0].outcome == "retried"


def test_a_task_without_a_handler_emits_the_reason(recorder: Recorder, child: Child) -> None:
    child.serve("unknown.1")
    (skipped,) = recorder.fields("run_skip")
    assert "no handler for this type" in skipped["reason"]


def test_a_poll_that_fails_emits_its_error(recorder: Recorder, child: Child) -> None:
    child.store.close()
    child.source.poll_multi = _away  # type: ignore[method-assign]
    child.poller.expect()
    assert child.poller.poll() == ()
    (poll,) = recorder.fields("poll")
    assert isinstance(poll["error"], OSError)


def _away(*_: object, **__: object) -> list[Task]:
    raise OSError("away")


def test_a_lease_that_is_lost_emits_an_event(recorder: Recorder, child: Child) -> None:
    @child.app.task("stays")
    def stays(task: Task) -> None:
        child.store.force_finish(task.key, 100)
        child.time += 5
        child.lease_renewer.tick()

    child.serve("stays.1")
    assert [fields["task"].key for fields in recorder.fields("lease_lost")] == ["stays.1"]


def test_a_run_that_cannot_be_settled_is_one_event_with_its_duration(recorder: Recorder, child: Child) -> None:
    @child.app.task("preempted")
    def preempted(task: Task) -> None:
        child.store.force_finish(task.key, 100)
        child.time += 5
        task.finish()

    took: list[float] = []
    detach = attach(lambda event, fields: took.append(fields["tasks"][0].duration), "settle")
    child.serve("preempted.1")
    detach()
    (lost,) = recorder.fields("settle")
    assert isinstance(lost["error"], PreemptedError)
    assert took == [5]


def test_a_listener_that_raises_is_logged_once_and_harms_no_run(
    recorder: Recorder, child: Child, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: Event, fields: dict[str, Any]) -> None:
        raise SystemExit("broken listener")

    detach = attach(broken)
    after = Recorder()
    detach_after = attach(after)
    try:
        child.serve("quick.1", "quick.2")
    finally:
        detach()
        detach_after()
    assert finished(child) == ["quick.1", "quick.2"]
    assert after.names() == recorder.names()
    assert caplog.text.count("telemetry listener") == 1


def test_a_listener_hears_only_the_events_it_is_attached_to_and_once_each(child: Child) -> None:
    recorder = Recorder()
    attach(recorder, "poll")
    detach = attach(recorder, "poll")
    child.serve("quick.1")
    detach()
    child.serve("quick.2")
    assert recorder.names() == ["poll"]


def test_a_submit_begins_and_ends_and_a_listener_may_add_headers(recorder: Recorder, child: Child) -> None:
    def add_headers(_: Event, fields: dict[str, Any]) -> None:
        fields["call"].tasks = [task._replace(headers={"from": "listener"}) for task in fields["call"].tasks]

    detach = attach(add_headers, "submit_start")
    queue = Queue(child.store, LeaseTimes(60, 10))
    queue.submit_many([NewTask("a", "x"), NewTask("b", "x")])
    detach()
    assert queue.submit_many([NewTask("b", "x")]) == ["b"]
    assert recorder.names() == ["submit_start", "submit_end"] * 2
    assert [fields["call"].existing for fields in recorder.fields("submit_end")] == [[], ["b"]]
    assert [fields["error"] for fields in recorder.fields("submit_end")] == [None, None]
    assert [queue[key].metadata().headers for key in ("a", "b")] == [{"from": "listener"}] * 2


def test_an_event_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no telemetry event 'pool'; the events are poll, "):
        attach(Recorder(), "pool")  # type: ignore[arg-type]


def test_an_event_without_listeners_takes_less_than_a_microsecond(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telemetry, "_listeners", {})
    task = object()
    spent = min(timeit.repeat(lambda: emit("run_end", section="queue", task=task, seconds=1.0), number=1000, repeat=50))
    assert spent / 1000 < 1e-6


def test_every_event_is_documented(request: pytest.FixtureRequest) -> None:
    text = (request.config.rootpath / "docs" / "architecture.md").read_text()
    assert [event for event in EVENTS if f"| `{event}` |" not in text] == []
