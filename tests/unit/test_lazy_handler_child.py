"""A handler child opens its stores when its first task arrives. The sockets are real; the opened child is a fake."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from psched.child.handler_child import LazyHandlerChild
from psched.process.dispatch_socket import Connection, DispatchSocket

LONG = 60.0
"""Seconds, longer than anything here takes."""


class OpenedChild:
    """A fake child, which works until it is stopped."""

    def __init__(self, *_: object) -> None:
        self.stops: list[tuple[bool, float | None]] = []
        self.has_run = threading.Event()
        self._stopped = threading.Event()

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        self.stops.append((immediate, grace))
        self._stopped.set()

    def run(self) -> None:
        self.has_run.set()
        assert self._stopped.wait(LONG)

    def running(self) -> list[str]:
        return ["mail"]


class RunningChild:
    """A handler child in a thread, and the socket by which a fetching child finds it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[OpenedChild] = []
        self._dispatch = DispatchSocket("host/test/1")
        monkeypatch.setattr("psched.child.handler_child.HandlerChild", self._open)
        spec: Any = SimpleNamespace(dispatch=self._dispatch, name="w1", dead=(), siblings=("w1",))
        nothing: Any = None
        self.child = LazyHandlerChild(spec, nothing, lambda message: None)
        self._thread = threading.Thread(target=self.child.run, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def accept(self) -> Connection:
        """Accept the child's connection and return it, like the next fetching child."""
        while True:
            for _, connection in self._dispatch.accept():
                return connection

    def join(self) -> None:
        self._thread.join(LONG)
        assert not self._thread.is_alive()

    def close(self) -> None:
        self.child.stop(immediate=True)
        self.join()
        self.child._connection.close()
        self._dispatch.close()

    def _open(self, *arguments: object) -> OpenedChild:
        self.opened.append(OpenedChild(*arguments))
        return self.opened[-1]


@pytest.fixture
def running(monkeypatch: pytest.MonkeyPatch) -> Iterator[RunningChild]:
    with closing(RunningChild(monkeypatch)) as running:
        yield running


def test_a_child_opens_when_its_first_task_arrives(running: RunningChild) -> None:
    running.start()
    with closing(running.accept()) as fetcher:
        assert (running.opened, running.child.running()) == ([], ())
        assert running.child.was_idle()
        fetcher.send(("recovered",))
        while not running.opened:
            time.sleep(0.001)
        assert running.opened[0].has_run.wait(LONG)
        assert running.child.running() == ["mail"]


def test_a_child_without_tasks_connects_to_each_new_fetching_child(running: RunningChild) -> None:
    running.start()
    running.accept().close()
    with closing(running.accept()) as second:
        assert running.opened == []
        second.send(("recovered",))
        while not running.opened:
            time.sleep(0.001)


def test_a_child_that_is_stopped_before_its_first_task_opens_and_stops(running: RunningChild) -> None:
    running.start()
    with closing(running.accept()):
        running.child.stop(immediate=False)
        running.child.stop(immediate=True, grace=2.0)
        running.join()
    (opened,) = running.opened
    assert opened.stops == [(False, None), (True, 2.0)]


def test_a_child_that_works_is_stopped_at_once(running: RunningChild) -> None:
    running.start()
    with closing(running.accept()) as fetcher:
        fetcher.send(("recovered",))
        while not running.opened or not running.opened[0].has_run.is_set():
            time.sleep(0.001)
        running.child.stop(immediate=True)
        running.join()
    assert running.opened[0].stops == [(True, None)]
