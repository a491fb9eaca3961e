"""The control thread passes orders to the role of its child, also when that role follows another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from psched.child.control_thread import ControlThread
from psched.config import from_mapping
from psched.process.child_protocol import READY, ChildPipe, MasterPipe, open_pipes
from psched.process.child_role import ChildRole
from psched.process.logs import Log
from psched.process.signals import SignalQueue


class Role(ChildRole):
    def __init__(self) -> None:
        self.stops: list[tuple[bool, float | None]] = []

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        self.stops.append((immediate, grace))


@pytest.fixture
def pipes() -> Iterator[tuple[MasterPipe, ChildPipe]]:
    master, child = open_pipes()
    yield master, child
    child.close()
    master.close()


@pytest.fixture
def control(pipes: tuple[MasterPipe, ChildPipe], monkeypatch: pytest.MonkeyPatch) -> Iterator[ControlThread]:
    """A control thread that does not run: the test calls its methods."""
    monkeypatch.setattr("psched.child.control_thread.setproctitle", lambda title: None)
    signals = SignalQueue()
    settings = from_mapping({"type": "rdb", "url": "sqlite://"})
    yield ControlThread("worker 1", pipes[1], signals, settings, Log(None))
    signals.reader.close()
    os.close(signals._writer.descriptor)


def test_a_role_that_follows_another_gets_the_stop_that_came_before_it(
    control: ControlThread, pipes: tuple[MasterPipe, ChildPipe]
) -> None:
    standby, worker = Role(), Role()
    control.started(standby)
    pipes[0].send(signal.SIGTERM)
    control._obey()
    control.started(worker)
    assert standby.stops == [(False, None)]
    assert worker.stops == [(False, None)]
    assert READY in pipes[0].receive()


def test_a_role_that_follows_another_is_not_stopped_without_an_order(control: ControlThread) -> None:
    worker = Role()
    control.started(Role())
    control.started(worker)
    assert worker.stops == []
