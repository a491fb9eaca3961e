"""What a child is running right now, shared by its runners, its keeper and its warden."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field

from psched.application import Handler
from psched.clock import boottime
from psched.daemon.lane import Lane
from psched.task import Task

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Run:
    """One handler at work on one task. Times are boottime seconds."""

    task: Task
    lane: Lane
    handler: Handler
    started: float = field(default_factory=boottime)
    told: float | None = None

    @property
    def name(self) -> str:
        """How the board, the process title and the log name this run."""
        return f"{self.lane.name}:{self.task.key}"

    def tell(self, reason: Exception, now: float) -> None:
        """Ask the handler to stop, once, from a thread of its own: its `kill` may take long or never return."""
        if self.told is not None:
            return
        self.told = now
        self.task.stop_reason = reason
        threading.Thread(target=self._kill, args=(reason,), name=f"kill {self.task.key}", daemon=True).start()

    def _kill(self, reason: Exception) -> None:
        try:
            self.handler.kill(reason)
        except Exception:
            log.exception("key=%s its kill() failed", self.task.key)


class Runs:
    """The runs of this child, one per handler thread at the most. Reading is safe from any thread."""

    def __init__(self, cells: int) -> None:
        self._runs: list[Run | None] = [None] * cells

    def begin(self, cell: int, run: Run) -> None:
        """Handler thread `cell` begins `run`."""
        self._runs[cell] = run

    def end(self, cell: int) -> None:
        """Handler thread `cell` is done."""
        self._runs[cell] = None

    def at(self, cell: int) -> Run | None:
        """Return what handler thread `cell` runs."""
        return self._runs[cell]

    def active(self) -> list[Run]:
        """Return every run in progress."""
        return [run for run in self._runs if run is not None]
