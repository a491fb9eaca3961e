"""Faults of masters, of whole hosts, and of the hosts' clocks. Runs in the test process."""

from __future__ import annotations

import contextlib
import signal
from typing import ClassVar

import psutil

from faultlab.trials.environment import STORES
from faultlab.trials.fault import TrialFault
from faultlab.trials.node import STARTS_WITHIN, TrialNode
from tests.daemon.harness import wait_for


class MasterFault(TrialFault):
    """A fault of one master."""

    subject = "master"

    def begin(self) -> None:
        self.node = self.some_node()
        self.node.wait_until_there()  # a master that is starting does not react to signals yet
        self.strike(self.node)

    def strike(self, node: TrialNode) -> None:
        """Begin the fault at this node."""
        raise NotImplementedError


class KillMaster(MasterFault):
    """The master is killed by SIGKILL. Its children stop by themselves. A new master is started at the healing."""

    kind = "master: kill -9"

    def strike(self, node: TrialNode) -> None:
        for master in node.processes()[:1]:
            master.kill()

    def heal(self) -> None:
        if self.node.pid is None:
            self.node.start()


class FreezeHost(MasterFault):
    """SIGSTOP for a master and its descendants until their leases have ended, then SIGCONT."""

    kind = "host: frozen past the lease"
    lasts = (10.0, 13.0)
    froze = True

    def strike(self, node: TrialNode) -> None:
        self.processes = node.processes()
        for process in self.processes:
            _send(process, signal.SIGSTOP)

    def heal(self) -> None:
        for process in reversed(self.processes):
            _send(process, signal.SIGCONT)


class FreezeMaster(MasterFault):
    """SIGSTOP for the master only. Its children continue to work."""

    kind = "master: SIGSTOP, SIGCONT"
    excuses = False

    def strike(self, node: TrialNode) -> None:
        self.processes = node.processes()[:1]
        for process in self.processes:
            _send(process, signal.SIGSTOP)

    def heal(self) -> None:
        for process in self.processes:
            _send(process, signal.SIGCONT)


class _Signals(MasterFault):
    """Sends one signal again and again."""

    number: ClassVar[int]

    def strike(self, node: TrialNode) -> None:
        node.signal(self.number)

    def go_on(self) -> None:
        self.node.signal(self.number)


class GracefulStorm(_Signals):
    """Graceful reloads in quick succession: every run ends by itself."""

    kind = "master: USR1 in a burst"
    number = signal.SIGUSR1
    excuses = False


class ImmediateStorm(_Signals):
    """Immediate reloads in quick succession: runs that do not stop are killed, and their tasks are released."""

    kind = "master: HUP in a burst"
    number = signal.SIGHUP

    def heal(self) -> None:
        """Send the signal once more, and wait until all workers are new.

        The master first loads the application in a dry run.
        """
        before = {worker.pid for worker in self.node.workers()}
        self.node.signal(self.number)
        wait_for(
            lambda: not any(worker.pid in before for worker in self.node.workers()),
            self.node.daemon.explain,
            STARTS_WITHIN,
        )


class Restarts(MasterFault):
    """SIGTERM, and a new master as soon as the old one has ended, again and again."""

    kind = "master: stopped and started again"
    excuses = False

    def strike(self, node: TrialNode) -> None:
        node.signal(signal.SIGTERM)
        self.ending = True

    def go_on(self) -> None:
        if self.ending and self.node.pid is None:
            self.node.start()
            self.ending = False
        elif not self.ending and self.node.workers() and self.rng.random() < 0.2:
            self.strike(self.node)

    def heal(self) -> None:
        if self.ending:
            self.node.wait_until_gone()
            self.node.start()


class Replace(MasterFault):
    """A binary upgrade under load: first the new master starts, then the old one stops gracefully."""

    kind = "master: binary replace"
    excuses = False

    def strike(self, node: TrialNode) -> None:
        node.signal(signal.SIGWINCH)


class Clock(TrialFault):
    """The wall clocks of the hosts jump again and again, by ten minutes in either direction or by a day."""

    kind = "clock: jumps of ten minutes"
    subject = "clock"
    stores = frozenset(STORES) - {"sqlite"}  # on SQLite, the clock of the database is the host's
    excuses = False

    def begin(self) -> None:
        self.go_on()

    def go_on(self) -> None:
        for node in self.all_nodes():
            if node.clock is not None and self.rng.random() < 0.3:
                node.clock.set(self.rng.choice([-600.0, 600.0, 0.0, 86400.0]))

    def heal(self) -> None:
        for node in self.all_nodes():
            if node.clock is not None:
                node.clock.set()


class Drift(Clock):
    """The wall clocks of the hosts run at different rates."""

    kind = "clock: runs fast and slow"

    def go_on(self) -> None:
        for node in self.all_nodes():
            if node.clock is not None and self.rng.random() < 0.3:
                node.clock.set(self.rng.uniform(-30, 30), self.rng.choice([0.1, 0.9, 1.2, 60.0]))


def _send(process: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        process.send_signal(number)
