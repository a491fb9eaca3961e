"""Orphans: processes that a dead child's handlers had started, in any session or group. In the master; Linux only.

The kernel makes the master their parent (`linux.adopt_orphans`). An orphan that appears when a child has just crashed
belonged to that child. It is killed before the child's leases are given back, so that no program goes on working on a
task that another worker starts again. An orphan that appears otherwise was set free on purpose (a daemon that a command
started); it is left alone, unless it has stayed in its worker's process group. The master looks every second while
anything runs, and within a second after a run has ended; a program set free between the last look and a crash is
killed, too.
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
    """The children of the master that it has not forked, without those that existed when this object was made."""

    def __init__(self) -> None:
        self._before = _children()
        self._known: set[int] = set()
        self._next_look = 0.0
        self.deadline = math.inf
        """When `look` is due at the latest, monotonic."""

    def expect(self, now: float) -> None:
        """Look soon, and once more within a second: a child reports only one of many short runs."""
        self.deadline = now + _INTERVAL

    def look(self, ours: Collection[int], now: float) -> None:
        """Note the living orphans and reap the dead ones; at most once a second."""
        if now >= self._next_look:
            self._next_look = now + _INTERVAL
            self.deadline = math.inf if now >= self.deadline else max(self.deadline, self._next_look)
            self._known = set(self._reap(_children() - self._before - set(ours)))

    def kill_new(self, ours: Collection[int]) -> None:
        """Kill the orphans that appeared since the last look, and all their descendants."""
        for pid in self._reap(_children() - self._before - self._known - set(ours)):
            with suppress(psutil.Error):
                orphan = psutil.Process(pid)
                family = [orphan, *orphan.children(recursive=True)]
                log.warning("killing what a dead worker has left running: %s (pid %d)", orphan.name(), pid)
                for process in family:
                    process.kill()

    def _reap(self, pids: Iterable[int]) -> Iterable[int]:
        """Reap the dead and yield the living."""
        for pid in pids:
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG) == (0, 0):
                    yield pid


def _children() -> set[int]:
    """Return the children of this process, all of them forked by its main thread."""
    try:
        return {int(word) for word in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()}
    except OSError:
        return set()
