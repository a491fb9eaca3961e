"""A master is left alone until its deadline only while nothing goes on. Children on paper, a clock of our own."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from selectors import DefaultSelector

import pytest

from psched.process import channel as pipes
from psched.process.channel import BOOT_FAILED, DONE
from psched.process.child_spec import DeadChild
from psched.process.logs import Log
from psched.process.signals import REPLACE_NOW
from psched.supervisor.binary_upgrade import BinaryUpgrade, ExecCommand
from psched.supervisor.daemonize import Terminal
from psched.supervisor.reload import Reload
from psched.supervisor.supervisor import Supervisor
from psched.supervisor.systemd import Notifier, SystemdReporter
from tests.daemon.fake_children import PaperChild, PaperNursery, paper_nursery, plan_of

SILENCE = 10.0
WAITS_FOR_EVER = ExecCommand(("-c", "import signal; signal.pause()"), Path("/"))


class Master:
    """A master of two workers."""

    def __init__(self, folder: Path, process_table: PaperNursery, selector: DefaultSelector) -> None:
        plan, log_file = plan_of(folder, processors=2, child_heartbeat_limit=SILENCE), Log(None)
        self.process_table = process_table
        self.supervisor = Supervisor(
            plan,
            process_table,
            log_file,
            Reload(lambda: plan, process_table, log_file, 60),
            BinaryUpgrade(selector, WAITS_FOR_EVER, None, None, Notifier(), 60),
            SystemdReporter(Notifier(), lambda: None),
            Terminal(),
            lambda: process_table.now,
        )

    def tick(self, later: float = 0.0) -> None:
        """Let time pass, and tick."""
        self.process_table.now += later
        self.process_table.tick(self.process_table.now)
        self.supervisor.tick(self.process_table.now)

    def come_up(self) -> None:
        """Begin, and let the workers do so, one after the other."""
        assert not self.calm
        self.supervisor.begin()
        for count in (1, 2):
            self.tick()
            assert len(self.process_table.born) == count
            assert not self.calm
            self.newest.reporter.say(pipes.READY)
            self.tick()

    @property
    def calm(self) -> bool:
        """Whether it may be left alone."""
        return self.supervisor.calm

    @property
    def newest(self) -> PaperChild:
        """The child that was born last."""
        return self.process_table.born[-1]

    def close(self) -> None:
        """End what was begun."""
        self.supervisor.take_signal(signal.SIGQUIT)
        assert self.supervisor._watch is not None
        self.supervisor._watch.close()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    with paper_nursery() as process_table, DefaultSelector() as selector:
        master = Master(tmp_path, process_table, selector)
        try:
            master.come_up()
            yield master
        finally:
            master.close()


def test_it_is_calm_when_all_workers_are_up_and_idle(master: Master) -> None:
    master.tick(1.0)  # the status is told once a second
    assert master.calm
    assert master.supervisor.deadline == master.process_table.now - 1.0 + SILENCE / 2


def test_it_is_not_while_a_worker_has_something_to_run(master: Master) -> None:
    running_table = master.supervisor._slots[2]._boot.running_table  # type: ignore[union-attr]
    running_table.running(0, "schedules:s1")
    assert not master.calm
    running_table.idle(0)
    assert master.calm


@pytest.mark.parametrize("number", [0, 1])
def test_it_is_not_while_a_worker_has_been_silent_for_long(master: Master, number: int) -> None:
    silent, other = master.process_table.born[number], master.process_table.born[1 - number]
    other.reporter.beat(master.process_table.now + 1)
    master.tick(SILENCE / 2)
    assert not master.calm
    silent.reporter.beat(master.process_table.now)
    master.tick()
    assert master.calm


def test_it_is_not_until_a_dead_workers_successor_is_up(master: Master) -> None:
    master.process_table.born[1].leave(1)
    master.tick()
    assert not master.calm
    master.newest.reporter.say(pipes.READY)
    master.tick()
    assert master.calm


def test_it_is_not_until_what_the_dead_held_is_given_back(master: Master) -> None:
    master.supervisor._estate.leave([DeadChild("host/1/w9")])
    assert not master.calm
    master.tick()
    assert master.newest.name == "lease recovery"
    assert not master.calm
    master.newest.reporter.say(pipes.GAVE_BACK)
    master.newest.leave(DONE)
    master.tick()
    master.tick()
    assert master.calm


def test_it_is_not_while_a_restart_is_rehearsed(master: Master) -> None:
    master.supervisor.take_signal(signal.SIGUSR1)
    assert master.newest.name == "probe"
    assert not master.calm
    master.newest.leave(BOOT_FAILED)
    master.tick()
    assert master.calm


def test_it_is_not_while_a_worker_ends_for_a_restart(master: Master) -> None:
    old = master.process_table.born[:2]
    master.supervisor.take_signal(signal.SIGUSR1)
    master.newest.reporter.say(pipes.READY)
    master.newest.leave(DONE)
    master.tick()
    assert not master.calm
    for child in old:
        child.reporter.say(pipes.BYE)
        child.leave(DONE)
    master.tick()
    for child in master.process_table.born[-2:]:
        assert not master.calm
        child.reporter.say(pipes.READY)
        master.tick()
    assert master.calm


def test_it_is_not_while_a_new_master_starts(master: Master) -> None:
    master.supervisor.take_signal(REPLACE_NOW)
    assert not master.calm
    master.supervisor.binary_upgrade.abort()
    assert master.calm


def test_it_is_not_while_it_stops(master: Master) -> None:
    master.supervisor.take_signal(signal.SIGTERM)
    assert not master.calm
