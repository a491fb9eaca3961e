"""What a child is running right now, shared by its runners, its keeper and its warden."""

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
    """One handler at work on one task, from before it is made. Times are boottime seconds."""

    __slots__ = ("_lock", "handler", "name", "poller", "started", "task", "told")

    def __init__(
        self, task: Task, poller: SectionPoller, handler: Handler | None = None, started: float | None = None
    ) -> None:
        """`started`: when it began, now unless given."""
        self.task = task
        self.poller = poller
        self.handler = handler
        self.started = boottime() if started is None else started
        self.told: float | None = None
        self.name = f"{poller.name}:{task.key}"
        """How the board, the process title and the log name this run."""
        self._lock = threading.Lock()

    def tell(self, reason: Exception, now: float) -> None:
        """Ask the handler to stop, once, from a thread of its own: its `kill` may take long or never return."""
        with self._lock:
            if self.told is not None:
                return
            self.told = now
            self.task.stop_reason = reason
            handler = self.handler
        if handler is not None:
            arguments = (handler, reason)
            threading.Thread(target=self._kill, args=arguments, name=f"kill {self.task.key}", daemon=True).start()

    def take(self, handler: Handler) -> bool:
        """Take the handler that was made; False when the run was told to stop meanwhile, and is not to begin."""
        with self._lock:
            self.handler = handler
            return self.told is None

    def _kill(self, handler: Handler, reason: Exception) -> None:
        try:
            handler.kill(reason)
        except Exception:
            log.exception("key=%s its kill() failed", self.task.key)


class ActiveRuns:
    """The runs of this child, one per handler thread at the most. Reading is safe from any thread."""

    def __init__(self, cells: int) -> None:
        self.cells = cells
        self._runs: list[ActiveRun | None] = [None] * cells
        self._closing: set[int] = set()

    def begin(self, cell: int, run: ActiveRun) -> None:
        """Handler thread `cell` begins `run`."""
        self._runs[cell] = run

    def end(self, cell: int) -> None:
        """Handler thread `cell` is done."""
        self._runs[cell] = None

    @property
    def closing(self) -> bool:
        """Whether a handler thread is in `close`."""
        return bool(self._closing)

    def close(self, cell: int, close: Callable[[], None]) -> None:
        """Let handler thread `cell` close what its handlers have opened, which may take its time as they do."""
        self._closing.add(cell)
        try:
            close()
        finally:
            self._closing.discard(cell)

    def at(self, cell: int) -> ActiveRun | None:
        """Return what handler thread `cell` runs."""
        return self._runs[cell]

    def active(self) -> list[ActiveRun]:
        """Return every run in progress."""
        return [run for run in self._runs if run is not None]
