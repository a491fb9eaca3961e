"""Leaving a child by force: park the handler, kill its descendants, give back what is held, exit. In children.

The order matters: a lease is released only when nothing is left that works under it. Only the main thread can be held
still. With several handler threads, what they hold is given back when the process has ended, by its successor or by an
heir. Where that cannot be (`rdb_compat` knows no holders; the master is gone) it is released in the last moment before
the end, and its handler may overlap the next run by some milliseconds. If a release fails, the lease stands.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import NoReturn

import psutil

from psched.errors import CancelRequestedError, ImmediateProcessStopError
from psched.execution.active_runs import ActiveRuns
from psched.execution.runner import give_back, settle_stopped
from psched.process import channel as pipes
from psched.process.channel import FORCED
from psched.process.logs import one_line
from psched.process.running_table import RunningTable
from psched.source.source import Source
from psched.task import Task

log = logging.getLogger(__name__)

_PARK = signal.SIGQUIT
_PATIENCE = 1.0
"""Seconds that giving back may take; whatever is not given back by then is left to its lease."""


class ForcedExit:
    """Knows what this child holds. A parked thread may hold any lock, so nothing after that waits without end."""

    def __init__(
        self, sources: Sequence[Source], runs: ActiveRuns, running_table: RunningTable, say: Callable[[str], None]
    ) -> None:
        """Must be made in the main thread, which is the one that will be parked. `say` sends the master a word."""
        self._sources = sources
        self._runs = runs
        self._board = running_table
        self._say = say
        self._master = os.getppid()
        self._main = threading.main_thread()
        self._leaving = threading.Event()
        signal.signal(_PARK, self._park)

    def leave(self, why: str) -> NoReturn:
        """End this process now, whatever fails on the way. `why` goes to the log."""
        try:
            log.warning("leaving by force: %s", why)
            self._leaving.set()
            if threading.current_thread() is not self._main and self._main.ident is not None:
                signal.pthread_kill(self._main.ident, _PARK)
            kill_descendants()
            release = threading.Thread(target=self._release, name="release", daemon=True)
            release.start()
            release.join(_PATIENCE)
        except Exception:
            log.exception("nothing was given back; leaving all the same")
        finally:
            os._exit(FORCED)

    def _park(self, signum: int, frame: FrameType | None) -> None:
        """Hold the main thread, and with it the handler, still until the process has ended."""
        while self._leaving.is_set():
            time.sleep(60)

    def _release(self) -> None:
        """Give back what can be; tell the master when that was all, so that nobody has to look for more."""
        for cell in range(self._runs.cells):
            self._conclude(cell)
        running = [run.task for run in self._runs.active()]
        given = [
            give_back(task)
            for source in self._sources
            for task in source.held
            if task not in running and not self._is_left(source)
        ]
        parked_in_run = self._parked and bool(running)  # elsewhere it may be taking rows that nobody knows of yet
        if parked_in_run and all(given) and all(task.settled for task in running):
            self._say(pipes.EMPTY)

    @property
    def _parked(self) -> bool:
        """Whether the only handler thread is the one that is held still."""
        return self._runs.cells == 1

    def _is_left(self, source: Source) -> bool:
        """Tell whether what is held of `source` is left to those who come after this process."""
        return not self._parked and source.store.knows_holders and os.getppid() == self._master

    def _conclude(self, cell: int) -> None:
        """Settle what handler thread `cell` runs, or take it off the board: who gives it back is not to suspect it."""
        run = self._runs.at(cell)
        if run is None:
            return
        is_over = isinstance(run.task.stop_reason, TimeoutError | CancelRequestedError)  # and so not due at once
        if self._is_left(run.poller.source) and not is_over:
            self._board.idle(cell)
        else:
            self._settle(run.task)

    def _settle(self, task: Task) -> None:
        """Settle what was running by the reason it was stopped for; what merely shares the process is released."""
        if task.stop_reason is None:
            task.stop_reason = ImmediateProcessStopError("the process leaves")
        try:
            with task.lock:
                if not task.settled:
                    settle_stopped(task)
        except Exception as error:  # noqa: BLE001 – whatever fails, the process ends next
            log.warning("key=%s was not given back: %s; its lease ends by itself", task.key, one_line(error))


def kill_descendants() -> None:
    """SIGKILL everything this process has started that is still there, children of children included.

    What runs as another user (sudo) may not be ours to kill, and is left.
    """
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            log.warning("pid %d runs as another user and cannot be killed; the process keeps running", process.pid)
