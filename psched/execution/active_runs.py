"""The runs in progress in a child, shared by its runners, lease renewers and run watchdog."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from psched.application import Handler
from psched.clock import boottime
from psched.execution.poller import SectionPoller
from psched.task import Task

log = logging.getLogger(__name__)


class ActiveRun:
    """One run of one task, from before its handler is made. Times are boottime seconds."""

    __slots__ = ("_lock", "handler", "name", "poller", "started", "stopped_at", "task")

    def __init__(
        self, task: Task, poller: SectionPoller, handler: Handler | None = None, started: float | None = None
    ) -> None:
        """`started`: when the run began (default: now)."""
        self.task = task
        self.poller = poller
        self.handler = handler
        self.started = boottime() if started is None else started
        self.stopped_at: float | None = None
        self.name = f"{poller.name}:{task.key}"
        """Names this run in the running table, the process title and the log."""
        self._lock = threading.Lock()

    def stop(self, reason: Exception, now: float) -> None:
        """Ask the handler to stop, once, in a new thread: its `kill` may take long or never return."""
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
        """Keep the handler that was made; False when the run was stopped meanwhile and must not begin."""
        with self._lock:
            self.handler = handler
            return self.stopped_at is None

    def _kill(self, handler: Handler, reason: Exception) -> None:
        try:
            handler.kill(reason)
        except Exception:
            log.exception("key=%s kill() of its handler failed", self.task.key)


class ActiveRuns:
    """The runs of this child, at most one per handler thread. Any thread may read them."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self._runs: list[ActiveRun | None] = [None] * cells
        self._closing: set[int] = set()

    def begin(self, cell: int, run: ActiveRun) -> None:
        self._runs[cell] = run

    def end(self, cell: int) -> None:
        self._runs[cell] = None

    @property
    def closing(self) -> bool:
        """Whether a handler thread is in `close`."""
        return bool(self._closing)

    def close(self, cell: int, close: Callable[[], None]) -> None:
        """Close in handler thread `cell` what its handlers have opened, which may take as long as a handler."""
        self._closing.add(cell)
        try:
            close()
        finally:
            self._closing.discard(cell)

    def at(self, cell: int) -> ActiveRun | None:
        return self._runs[cell]

    def active(self) -> list[ActiveRun]:
        return [run for run in self._runs if run is not None]
