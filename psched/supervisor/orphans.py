"""Orphans: what a dead child's handlers had started, in whatever session or group. In the master; Linux only.

The kernel makes the master their parent (`kernel.adopt_orphans`). An orphan that appears when a child has just died
by accident was that child's: it is killed before the child's leases are given back, so that no program goes on
working on a task which somebody else begins anew. An orphan that appears otherwise was set free on purpose (a daemon
that a command started), and is left alone, unless it has stayed in its worker's process group. The master looks every
second while anything runs, and within a second after a run has ended; what was set free since is killed, too.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

import psutil

log = logging.getLogger(__name__)

_INTERVAL = 1.0


class OrphanReaper:
    """The master's children that it has not forked; without those there were when this was made."""

    def __init__(self) -> None:
        self._before = _children()
        self._known: set[int] = set()
        self._next_look = 0.0
        self.deadline = math.inf
        """When `look` is due at the latest, monotonic."""

    def expect(self, now: float) -> None:
        """A child says that it has worked: look now, and again when what it runs within a second of its word is over.

        It says no more than that of many short runs.
        """
        self.deadline = now + _INTERVAL

    def look(self, ours: Collection[int], now: float) -> None:
        """Get to know the orphans there are, and bury the dead among them; at most once a second."""
        if now >= self._next_look:
            self._next_look = now + _INTERVAL
            self.deadline = math.inf if now >= self.deadline else max(self.deadline, self._next_look)
            self._known = set(self._reap(_children() - self._before - set(ours)))

    def kill_new(self, ours: Collection[int]) -> None:
        """Kill the orphans that were not there at the last look, and all they have started."""
        for pid in self._reap(_children() - self._before - self._known - set(ours)):
            with suppress(psutil.Error):
                stray = psutil.Process(pid)
                family = [stray, *stray.children(recursive=True)]
                log.warning("killing what a dead worker has left running: %s (pid %d)", stray.name(), pid)
                for process in family:
                    process.kill()

    def _reap(self, pids: Iterable[int]) -> Iterable[int]:
        """Yield those that live."""
        for pid in pids:
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    yield pid


def _children() -> set[int]:
    """Return the children of this process, of which the main thread is the only one that forks."""
    try:
        return {int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    except OSError:
        return set()
