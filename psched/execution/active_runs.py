"""The runs in progress in this process, of all handler threads."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Sequence

from psched.application import Handler
from psched.execution.periodic_thread import PeriodicThread
from psched.execution.poller import Poller
from psched.process.running_table import RunningTable
from psched.store.node_registry import NodeRun
from psched.task import Task

log = logging.getLogger(__name__)

REPORT_INTERVAL = 0.9
"""The shortest time between two reports that a run has ended, in seconds. It is less than 1 s, because the master
searches for orphaned processes 1 s after a report."""


class ActiveRun:
    """One run in progress. The object is created before the handler of the run."""

    __slots__ = ("_lock", "handler", "name", "poller", "stopped_at", "task")

    def __init__(self, task: Task, poller: Poller, handler: Handler | None = None) -> None:
        self.task = task
        self.poller = poller
        self.handler = handler
        self.stopped_at: float | None = None
        """When the handler was asked to stop, in boottime seconds; None before."""
        self.name = f"{poller.name}:{task.row.key}"
        """The name of this run in the running table and in the log."""
        self._lock = threading.Lock()

    def stop(self, reason: Exception, now: float) -> None:
        """If the handler was not asked to stop yet, ask it to stop.

        Calls `kill` in a new thread, because `kill` may take long or never return.
        """
        with self._lock:
            if self.stopped_at is not None:
                return
            self.stopped_at = now
            self.task.stop_reason = reason
            handler = self.handler
        if handler is not None:
            arguments = (handler, reason)
            threading.Thread(target=self._kill, args=arguments, name=f"kill {self.task.key}", daemon=True).start()

    def begin_handler(self, handler: Handler) -> bool:
        """Set the handler of the run. Return False if the run must not begin, because it has been stopped."""
        with self._lock:
            self.handler = handler
            return self.stopped_at is None

    def _kill(self, handler: Handler, reason: Exception) -> None:
        try:
            handler.kill(reason)
        except Exception:
            log.exception("key=%s kill() of the handler failed", self.task.key)


class ActiveRuns:
    """The runs of this child, at most one per handler thread. Any thread may read them."""

    threads: Sequence[PeriodicThread] = ()
    """The threads that renew leases and watch runs. They sleep while there are no runs."""

    def __init__(
        self,
        running_table: RunningTable,
        report: Callable[[], None] = lambda: None,
        most: float = math.inf,
        stop: Callable[[], None] = lambda: None,
    ) -> None:
        """`running_table`: has one cell for each handler thread; the master reads it.

        `report`: called when a run has ended, at most once per REPORT_INTERVAL. `stop`: called after `most` runs.
        """
        self.cells = running_table.cells
        self.running_table = running_table
        self.has_worked = False
        """Whether tasks were acquired since this flag was last set to False."""
        self._report = report
        self._reported_at = -math.inf
        self._left = most
        self._stop = stop
        self._runs: list[ActiveRun | None] = [None] * self.cells
        self._closing: set[int] = set()

    def begin(self, cell: int, run: ActiveRun) -> None:
        self.running_table.running(cell, run.name, run.task.lease.claim)
        self._runs[cell] = run

    def end(self, cell: int) -> None:
        self._runs[cell] = None
        self.running_table.idle(cell)

    def wake_threads(self) -> None:
        """Wake the sleeping threads, because there are leases to renew or runs to watch."""
        self.has_worked = True
        for thread in self.threads:
            if thread.is_idle:
                thread.wake()

    def count(self, now: float) -> None:
        """Count a run that ended at `now`."""
        if now >= self._reported_at + REPORT_INTERVAL:
            self._reported_at = now
            self._report()
        self._left -= 1
        if self._left <= 0:
            self._stop()

    @property
    def closing(self) -> bool:
        """Whether a handler thread is inside `close`."""
        return bool(self._closing)

    def close(self, cell: int, close: Callable[[], None]) -> None:
        """Call `close` to close the resources of handler thread `cell`. Must be called in that thread.

        May take long.
        """
        self._closing.add(cell)
        try:
            close()
        finally:
            self._closing.discard(cell)

    def at(self, cell: int) -> ActiveRun | None:
        return self._runs[cell]

    def active(self) -> list[ActiveRun]:
        return [run for run in self._runs if run is not None]

    def in_progress(self) -> tuple[NodeRun, ...]:
        """Return the runs in progress and when they began, for `psched_nodes`."""
        tasks = ((run.poller.name, run.task) for run in self.active())
        return tuple(NodeRun(section, task.row.key, task.type, task.begun_at) for section, task in tasks)
