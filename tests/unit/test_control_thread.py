"""The heartbeat thread passes orders to the role of its child, also when that role follows another."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from psched.child.control_thread import HeartbeatThread
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
def heartbeat(pipes: tuple[MasterPipe, ChildPipe], monkeypatch: pytest.MonkeyPatch) -> Iterator[HeartbeatThread]:
    """A heartbeat that does not run: the test calls its methods."""
    monkeypatch.setattr("psched.child.control_thread.setproctitle", lambda title: None)
    signals = SignalQueue()
    settings = from_mapping({"type": "rdb", "url": "sqlite://"})
    yield HeartbeatThread("worker 1", pipes[1], signals, settings, Log(None))
    signals.reader.close()
    os.close(signals._writer.descriptor)


def test_a_role_that_follows_another_gets_the_stop_that_came_before_it(
    heartbeat: HeartbeatThread, pipes: tuple[MasterPipe, ChildPipe]
) -> None:
    standby, worker = Role(), Role()
    heartbeat.started(standby)
    pipes[0].send(signal.SIGTERM)
    heartbeat._obey()
    heartbeat.started(worker)
    assert standby.stops == [(False, None)]
    assert worker.stops == [(False, None)]
    assert READY in pipes[0].receive()


def test_a_role_that_follows_another_is_not_stopped_without_an_order(heartbeat: HeartbeatThread) -> None:
    worker = Role()
    heartbeat.started(Role())
    heartbeat.started(worker)
    assert worker.stops == []
