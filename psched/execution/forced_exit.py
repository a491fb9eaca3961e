"""Ends a child by force: stop the handler, kill its descendants, release the leases, exit.

In this order a lease is released only when no process works under it any more. The handler is stopped by a signal
handler that sleeps in the main thread (the thread is *parked*); other threads cannot be stopped. So with several
handler threads, a successor or a lease recovery process releases the leases after this process has ended. Where neither
can (`rdb_compat` does not record holders, or the master is gone), this process releases them just before it exits, and
a handler may overlap the next run by some milliseconds. If a release fails, the lease ends by itself.
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

from psched.acquisition.task_source import Source
from psched.error_messages import one_line
from psched.errors import CancelRequestedError, ImmediateProcessStopError
from psched.execution.active_runs import ActiveRuns
from psched.execution.handler_loop import give_back, settle_stopped
from psched.process import child_protocol as pipes
from psched.process.child_protocol import FORCED
from psched.task import Task

log = logging.getLogger(__name__)

_PARK = signal.SIGQUIT
_PATIENCE = 1.0
"""Seconds that the releases may take. Leases not released by then end by themselves."""


class ForcedExit:
    """The parked thread may hold any lock, so nothing waits without a limit after parking."""

    def __init__(self, sources: Sequence[Source], runs: ActiveRuns, send: Callable[[str], None]) -> None:
        """Call in the main thread, which will be parked. `send` sends the master a message."""
        self._sources = sources
        self._runs = runs
        self._send = send
        self._master = os.getppid()
        self._main = threading.main_thread()
        self._leaving = threading.Event()
        signal.signal(_PARK, self._park)

    def leave(self, why: str) -> NoReturn:
        """End this process now, also if an earlier step fails. `why` goes to the log."""
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
            log.exception("no lease was released; leaving all the same")
        finally:
            os._exit(FORCED)

    def _park(self, signum: int, frame: FrameType | None) -> None:
        """Hold the main thread, and with it the handler, until the process has ended."""
        while self._leaving.is_set():
            time.sleep(60)

    def _release(self) -> None:
        """Release what can be released. Report if no lease is left: the master then starts no lease recovery."""
        for cell in range(self._runs.cells):
            self._conclude(cell)
        running = [run.task for run in self._runs.active()]
        given = [
            give_back(task)
            for source in self._sources
            for task in source.held
            if task not in running and not self._is_left(source)
        ]
        parked_in_run = self._parked and bool(running)  # elsewhere it may be acquiring rows that are not held yet
        if parked_in_run and all(given) and all(task.settled for task in running):
            self._send(pipes.EMPTY)

    @property
    def _parked(self) -> bool:
        return self._runs.cells == 1

    def _is_left(self, source: Source) -> bool:
        """Return whether the leases of `source` are left to a successor or a lease recovery process."""
        return not self._parked and source.store.knows_holders and os.getppid() == self._master

    def _conclude(self, cell: int) -> None:
        """Settle the run of handler thread `cell`, or clear the entry of the run in the running table (no suspect)."""
        run = self._runs.at(cell)
        if run is None:
            return
        is_over = isinstance(run.task.stop_reason, TimeoutError | CancelRequestedError)  # and so not due at once
        if self._is_left(run.poller.source) and not is_over:
            self._runs.running_table.idle(cell)
        else:
            self._settle(run.task)

    def _settle(self, task: Task) -> None:
        """Settle a run by the reason for which it was stopped. Without a reason, release it."""
        if task.stop_reason is None:
            task.stop_reason = ImmediateProcessStopError("the process leaves")
        try:
            with task.lock:
                if not task.settled:
                    settle_stopped(task)
        except Exception as error:  # noqa: BLE001 – whatever fails, the process ends next
            log.warning("key=%s was not released: %s; its lease ends by itself", task.key, one_line(error))


def kill_descendants() -> None:
    """SIGKILL all living descendants of this process; those that run as another user (sudo) are left."""
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            log.warning("pid %d runs as another user and cannot be killed; the process keeps running", process.pid)
