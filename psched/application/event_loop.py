"""Event loops for `async def` handlers. Each handler thread keeps one loop for all its tasks of an App.

Used in child processes and by the embedded scheduler.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable

from psched import fork_safety as forks


class EventLoops:
    """Gives each thread its own event loop. The loop is created at the first call."""

    def __init__(self) -> None:
        self._own = threading.local()

    def runner(self) -> asyncio.Runner:
        """Return the runner of the calling thread."""
        runner: asyncio.Runner | None = getattr(self._own, "runner", None)
        if runner is None:
            runner = self._own.runner = asyncio.Runner()
        return runner

    def close(self) -> None:
        """Cancel and await the remaining coroutines of the calling thread's loop. Then close the loop."""
        runner: asyncio.Runner | None = vars(self._own).pop("runner", None)
        if runner is not None:
            runner.close()


class CancellableRun:
    """Runs one awaitable on a loop. Another thread may cancel the run, even before the run has begun."""

    def __init__(self) -> None:
        self.reset_after_fork()
        forks.register_for_fork(self)
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False

    def reset_after_fork(self) -> None:
        """Create a new lock. Called in a process that a handler forked, because the old lock may be held for ever."""
        self._lock = threading.Lock()

    def run(self, awaitable: Awaitable[object], runner: asyncio.Runner) -> object:
        """Run `awaitable` and return its result, or raise its exception.

        CancelledError is raised only after `cancel`.
        """
        try:
            return runner.run(self._run(awaitable), context=contextvars.copy_context())
        except asyncio.CancelledError as error:
            if self._cancelled:
                raise
            raise RuntimeError("the handler raised CancelledError, but psched did not cancel it") from error

    def cancel(self) -> None:
        """Raise CancelledError inside the awaited coroutine. Callable from any thread; a second call has no effect."""
        with self._lock:
            first = not self._cancelled
            self._cancelled = True
            if first and self._task is not None:
                self._task.get_loop().call_soon_threadsafe(self._task.cancel)

    async def _run(self, awaitable: Awaitable[object]) -> object:
        with self._lock:
            self._task = asyncio.current_task()
            if self._cancelled and self._task is not None:
                self._task.cancel()
        try:
            return await awaitable
        finally:
            with self._lock:
                self._task = None
