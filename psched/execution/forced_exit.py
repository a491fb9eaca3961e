"""Ends a child by force: stop the handler, kill the child's descendants, release the leases, exit.

In this order no process still works under a lease when the lease is released. The handler in the main thread is stopped
by a signal handler that sleeps for ever: the thread is *parked*. Other threads cannot be stopped. With several handler
threads, a successor or a lease recovery process therefore releases the leases after this process has ended.

Without a master, and on `rdb_compat`, neither of them can release the leases. Then this process releases the leases
just before it exits, so a handler may overlap the next run by a few milliseconds. If a release fails, the lease
expires.
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

from psched.acquisition.task_source import TaskSource
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
"""How many seconds the release of leases may take. Leases that are not released by then expire."""


class ForcedExit:
    """Stops the main thread and ends the process. The stopped thread may hold any lock, so waits have time limits."""

    def __init__(self, sources: Sequence[TaskSource], runs: ActiveRuns, send: Callable[[str], None]) -> None:
        """Must be called in the main thread, because `leave` stops the main thread for ever.

        `send`: sends the master a message.
        """
        self._sources = sources
        self._runs = runs
        self._send = send
        self._master = os.getppid()
        self._main = threading.main_thread()
        self._leaving = threading.Event()
        signal.signal(_PARK, self._park)

    def leave(self, why: str) -> NoReturn:
        """End this process now, even if a step fails. `why`: for the log."""
        try:
            log.warning("forced exit: %s", why)
            self._leaving.set()
            if threading.current_thread() is not self._main and self._main.ident is not None:
                signal.pthread_kill(self._main.ident, _PARK)
            left = kill_descendants()
            release = threading.Thread(target=self._release, args=(left,), name="release", daemon=True)
            release.start()
            release.join(_PATIENCE)
        except Exception:
            log.exception("no lease was released; exiting nevertheless")
        finally:
            os._exit(FORCED)

    def _park(self, signum: int, frame: FrameType | None) -> None:
        """Keep the main thread, and so its handler, from running until the process has ended."""
        while self._leaving.is_set():
            time.sleep(60)

    def _release(self, left: Sequence[int]) -> None:
        """Release the leases that no other process will release.

        If no lease is left, tell the master. The master then starts no lease recovery.

        `left`: the pids that `kill_descendants` returned.
        """
        for pid in left:
            log.warning(KEEPS_RUNNING, pid)
        for cell in range(self._runs.cells):
            self._conclude(cell)
        running = [run.task for run in self._runs.active()]
        given = [
            give_back(task)
            for source in self._sources
            for task in source.held
            if task not in running and not self._is_left(source)
        ]
        parked_in_run = self._parked and bool(running)  # outside of a run, the main thread may be acquiring rows
        if parked_in_run and all(given) and all(task.settled for task in running):
            self._send(pipes.EMPTY)

    @property
    def _parked(self) -> bool:
        return self._runs.cells == 1

    def _is_left(self, source: TaskSource) -> bool:
        """Return whether a successor or a lease recovery process releases the leases of `source`."""
        return not self._parked and source.store.knows_holders and os.getppid() == self._master

    def _conclude(self, cell: int) -> None:
        """Settle the run of handler thread `cell`.

        If another process releases the lease, only clear the cell of the running table, so that the run does not count
        as a failed attempt. A run that was stopped by its timeout or a cancel request is settled here in any case.
        """
        run = self._runs.at(cell)
        if run is None:
            return
        # such a run must not be released, or it would be due immediately
        is_over = isinstance(run.task.stop_reason, TimeoutError | CancelRequestedError)
        if self._is_left(run.poller.source) and not is_over:
            self._runs.running_table.idle(cell)
        else:
            self._settle(run.task)

    def _settle(self, task: Task) -> None:
        """Settle a run according to the reason for its stop. Without a reason, release it."""
        if task.stop_reason is None:
            task.stop_reason = ImmediateProcessStopError("the process exits")
        try:
            with task.lock:
                if not task.settled:
                    settle_stopped(task)
        except Exception as error:  # noqa: BLE001 – whatever fails here, the process ends
            log.warning("key=%s was not released: %s; its lease expires", task.key, one_line(error))


KEEPS_RUNNING = "pid %d runs as another user and cannot be killed; the process keeps running"


def kill_descendants() -> list[int]:
    """Send SIGKILL to all living descendants of this process. Return those that belong to other users and keep running.

    Logs nothing: a thread that was parked may hold the lock of the log.
    """
    left = []
    for process in psutil.Process().children(recursive=True):
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
        except psutil.AccessDenied:
            left.append(process.pid)
    return left
