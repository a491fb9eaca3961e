"""A master sleeps until its deadline only while nothing is going on. With fake children and a fake clock."""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from selectors import DefaultSelector

import pytest

from psched.process.child_protocol import BOOT_FAILED, BYE, DONE, READY, RECOVERED
from psched.process.dead_child import DeadChild
from psched.process.signals import UPGRADE_NOW
from psched.supervisor.binary_upgrade import BinaryUpgrade, ExecCommand
from psched.supervisor.reload_dry_run import Reload
from psched.supervisor.supervisor import Supervisor
from psched.supervisor.systemd import Notifier
from tests.daemon.fake_children import FakeChild, FakeProcessTable, fake_process_table, sqlite_config

SILENCE = 3.0
NEVER_READY = ExecCommand(("-c", "import signal; signal.pause()"), Path("/"))


class Master:
    """A master with a fetching child and two workers, which are fakes."""

    def __init__(self, folder: Path, process_table: FakeProcessTable, selector: DefaultSelector) -> None:
        config = sqlite_config(folder, processors=2, child_heartbeat_limit=SILENCE)
        self.process_table = process_table
        self.supervisor = Supervisor(
            config,
            process_table,
            Reload(lambda: config, process_table, 60),
            BinaryUpgrade(selector, NEVER_READY, None, None, Notifier(), 60),
            Notifier(),
            clock=lambda: process_table.now,
        )

    def tick(self, later: float = 0.0) -> None:
        """Let `later` seconds pass, and let the master do one turn."""
        self.process_table.now += later
        self.process_table.tick(self.process_table.now)
        self.supervisor.manage(self.process_table.now)

    def come_up(self) -> None:
        """Start the master, then the fetching child, and then the workers."""
        assert not self.idle
        self.supervisor.begin()
        for count in (1, 3):
            self.tick()
            self.tick()
            assert len(self.process_table.forked) == count
            assert not self.idle
            for child in self.process_table.forked:
                child.child_pipe.send(READY)
            self.tick()

    @property
    def idle(self) -> bool:
        """Whether the master sleeps until its deadline."""
        return self.supervisor.idle

    @property
    def newest(self) -> FakeChild:
        """The child that was forked last."""
        return self.process_table.forked[-1]

    def close(self) -> None:
        """Stop the master."""
        self.supervisor.handle_signal(signal.SIGQUIT)
        assert self.supervisor._dispatch is not None
        self.supervisor._dispatch.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    with fake_process_table() as process_table, DefaultSelector() as selector:
        master = Master(tmp_path, process_table, selector)
        try:
            master.come_up()
            yield master
        finally:
            master.close()


def test_it_is_idle_when_all_workers_are_up_and_idle(master: Master) -> None:
    master.tick(1.0)  # the status is sent once a second
    assert master.idle
    assert master.supervisor.deadline == master.process_table.now - 1.0 + SILENCE / 2


def test_it_is_not_while_a_worker_runs_a_task(master: Master) -> None:
    running_table = master.newest.spec.running_table  # type: ignore[union-attr]
    running_table.running(0, "schedules:s1")
    assert not master.idle
    running_table.idle(0)
    assert master.idle


@pytest.mark.parametrize("number", [0, 1, 2])
def test_it_is_not_while_a_worker_has_been_silent_for_long(master: Master, number: int) -> None:
    silent = master.process_table.forked[number]
    for other in master.process_table.forked:
        if other is not silent:
            other.child_pipe.beat(master.process_table.now + 1)
    master.tick(SILENCE / 2)
    assert not master.idle
    silent.child_pipe.beat(master.process_table.now)
    master.tick()
    assert master.idle


def test_it_is_not_until_a_dead_worker_is_replaced(master: Master) -> None:
    master.process_table.forked[1].leave(1)
    master.tick()
    assert not master.idle
    master.newest.child_pipe.send(READY)
    master.tick()
    assert master.idle


def test_it_is_not_until_the_leases_of_the_dead_are_given_back(master: Master) -> None:
    master.supervisor._lease_recovery.add([DeadChild("host/1/w9")])
    assert not master.idle
    master.tick()
    assert master.newest.name == "lease recovery"
    assert not master.idle
    master.newest.child_pipe.send(RECOVERED)
    master.newest.leave(DONE)
    master.tick()
    master.tick()
    assert master.idle


def test_it_is_not_during_the_dry_run_of_a_reload(master: Master) -> None:
    master.supervisor.handle_signal(signal.SIGUSR1)
    assert master.newest.name == "dry run"
    assert not master.idle
    master.newest.leave(BOOT_FAILED)
    master.tick()
    assert master.idle


def test_it_is_not_while_a_worker_ends_for_a_reload(master: Master) -> None:
    old = master.process_table.forked[:3]
    master.supervisor.handle_signal(signal.SIGUSR1)
    master.newest.child_pipe.send(READY)
    master.newest.leave(DONE)
    master.tick()
    assert not master.idle
    for child in old:
        child.child_pipe.send(BYE)
        child.leave(DONE)
    master.tick()
    for child in master.process_table.forked[-3:]:
        assert not master.idle
        child.child_pipe.send(READY)
        master.tick()
    assert master.idle


def test_it_is_not_while_a_new_master_starts(master: Master) -> None:
    master.supervisor.handle_signal(UPGRADE_NOW)
    assert not master.idle
    master.supervisor.binary_upgrade.abort("as the test wants it")
    assert master.idle


def test_it_is_not_while_it_stops(master: Master) -> None:
    master.supervisor.handle_signal(signal.SIGTERM)
    assert not master.idle


def test_a_reload_without_a_descriptor_for_the_socket_leaves_the_workers_alone(
    master: Master, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(holder: str) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    before = list(master.process_table.forked)
    dispatch = master.supervisor._dispatch
    master.supervisor.handle_signal(signal.SIGUSR1)
    master.newest.child_pipe.send(READY)
    master.newest.leave(DONE)
    with monkeypatch.context() as patch:
        patch.setattr("psched.supervisor.supervisor.DispatchSocket", fail)
        master.tick()
    assert "reload failed: cannot open a socket for the workers: Too many open files" in caplog.text
    assert master.supervisor._dispatch is dispatch
    assert not any(child.escalation.stopping for child in before)
