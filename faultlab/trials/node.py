"""One host of a trial. In the test process."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess

import psutil

from faultlab.clock import WallClock
from faultlab.proxy import Proxy
from psched.supervisor.pidfile import PidFileError, read_running
from tests.daemon.harness import Daemon, wait_for

STOPS_WITHIN = 30.0
GONE_WITHIN = 120.0
"""Seconds that a stop may take while the database does not answer: workers wait for the timeouts of its answers."""
STARTS_WITHIN = 120.0  # no promise of psched's: a machine that has much else to do may take so long


class TrialNode:
    """One host: a master with its children, a clock and a network of its own."""

    def __init__(self, name: str, daemon: Daemon, proxy: Proxy | None, clock: WallClock | None) -> None:
        self.name = name
        self.daemon = daemon
        self.proxy = proxy
        self.clock = clock
        self._started = False

    @property
    def pid(self) -> int | None:
        """The living master, None when there is none, or one that has just begun."""
        with contextlib.suppress(PidFileError):  # locked, but on a busy machine its pid is not written for a while
            return read_running(self.daemon.folder / "psched.pid")
        return None

    def processes(self) -> list[psutil.Process]:
        """Return the master and all below it, the master first."""
        try:
            master = psutil.Process(self.pid or -1)
            return [master, *master.children(recursive=True)]
        except (psutil.NoSuchProcess, ValueError):
            return []

    def workers(self) -> list[psutil.Process]:
        """Return the workers that run."""
        try:
            return list(self.daemon.workers(psutil.Process(self.pid or -1)).values())
        except (psutil.NoSuchProcess, ValueError):
            return []

    def start(self) -> None:
        """Start a master; it may be up only later. The one before, if any, has ended or is about to."""
        if self._started:
            self.daemon.process.wait(GONE_WITHIN)
        self._started = True
        with (self.daemon.folder / "stderr").open("ab") as file:
            self.daemon.start(wait=False, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)

    def signal(self, number: int) -> None:
        """Signal the master, if there is one."""
        if pid := self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def bring_back(self) -> bool:
        """Tell whether there is a master. One that gave up, its first worker killed, is started as by systemd."""
        if self.pid is None and self.daemon.process.poll() is not None:
            self.start()
        return self.pid is not None

    def wait_until_there(self) -> None:
        """Wait until there is a master."""
        wait_for(self.bring_back, self.daemon.explain, STARTS_WITHIN)

    def wait_until_gone(self) -> None:
        """Wait until a master that was told to stop amid other faults has ended."""
        wait_for(lambda: self.pid is None, self.daemon.explain, GONE_WITHIN)

    def stop(self) -> None:
        """Stop in good order; what does not end in time is killed, and that is an error."""
        family = self.processes()
        self.signal(signal.SIGTERM)
        _, left = psutil.wait_procs(family, timeout=STOPS_WITHIN)
        for process in left:
            process.kill()
        assert not left, f"{self.name} does not stop within {STOPS_WITHIN} s: {left}"
