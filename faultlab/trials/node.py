"""One host of a trial. Runs in the test process."""

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
"""Seconds that a stop may take while the database does not answer, because workers wait until their queries time out.
"""
STARTS_WITHIN = 120.0  # not a promise of psched: a busy machine may take so long


class TrialNode:
    """One host: a master with its children, and with its own clock and network."""

    def __init__(self, name: str, daemon: Daemon, proxy: Proxy | None, clock: WallClock | None) -> None:
        self.name = name
        self.daemon = daemon
        self.proxy = proxy
        self.clock = clock
        self._started = False

    @property
    def pid(self) -> int | None:
        """The pid of the running master; None if no master runs, or if it has just been started."""
        # On a busy machine, a while may pass between locking the file and writing the pid.
        with contextlib.suppress(PidFileError):
            return read_running(self.daemon.folder / "psched.pid")
        return None

    def processes(self) -> list[psutil.Process]:
        """Return the master and all its descendants, the master first."""
        try:
            master = psutil.Process(self.pid or -1)
            return [master, *master.children(recursive=True)]
        except (psutil.NoSuchProcess, ValueError):
            return []

    def workers(self) -> list[psutil.Process]:
        """Return the running workers."""
        try:
            return list(self.daemon.workers(psutil.Process(self.pid or -1)).values())
        except (psutil.NoSuchProcess, ValueError):
            return []

    def fetchers(self) -> list[psutil.Process]:
        """Return the running fetching child, if there is one."""
        try:
            return self.daemon.fetchers(psutil.Process(self.pid or -1))
        except (psutil.NoSuchProcess, ValueError):
            return []

    def start(self) -> None:
        """Start a master, without waiting until it is up. If there was a master before, first wait for its end."""
        if self._started:
            self.daemon.process.wait(GONE_WITHIN)
        self._started = True
        with (self.daemon.folder / "stderr").open("ab") as file:
            self.daemon.start(wait=False, stderr=file, stdin=subprocess.DEVNULL, start_new_session=True)

    def signal(self, number: int) -> None:
        """Send a signal to the master, if it runs."""
        if pid := self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def bring_back(self) -> bool:
        """Return whether a master runs. If it has ended by itself, start a new one, as systemd would."""
        if self.pid is None and self.daemon.process.poll() is not None:
            self.start()
        return self.pid is not None

    def wait_until_there(self) -> None:
        """Wait until a master runs, and start one if necessary."""
        wait_for(self.bring_back, self.daemon.explain, STARTS_WITHIN)

    def wait_until_gone(self) -> None:
        """Wait for the end of a master that was told to stop. During other faults this may take long."""
        wait_for(lambda: self.pid is None, self.daemon.explain, GONE_WITHIN)

    def stop(self) -> None:
        """Stop the master and its children gracefully.

        Raises AssertionError, and kills them, if they have not ended in time.
        """
        family = self.processes()
        self.signal(signal.SIGTERM)
        _, left = psutil.wait_procs(family, timeout=STOPS_WITHIN)
        for process in left:
            process.kill()
        assert not left, f"{self.name} did not stop within {STOPS_WITHIN} s: {left}"
