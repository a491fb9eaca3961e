"""Event loops for `async def` handlers: one for each handler thread, kept from task to task.

Used in children and by the embedded scheduler.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Awaitable

from psched import fork_safety as forks


class EventLoops:
    """Gives each thread an event loop of its own, made at the first call."""

    def __init__(self) -> None:
        self._own = threading.local()

    def runner(self) -> asyncio.Runner:
        """Return the calling thread's runner."""
        runner: asyncio.Runner | None = getattr(self._own, "runner", None)
        if runner is None:
            runner = self._own.runner = asyncio.Runner()
        return runner

    def close(self) -> None:
        """Close the calling thread's loop: its remaining coroutines are cancelled and awaited."""
        runner: asyncio.Runner | None = vars(self._own).pop("runner", None)
        if runner is not None:
            runner.close()


class CancellableRun:
    """Runs one awaitable on a loop; another thread may cancel it, also before it has begun."""

    def __init__(self) -> None:
        self.reset_after_fork()
        forks.register_for_fork(self)
        self._task: asyncio.Task[object] | None = None
        self._cancelled = False

    def reset_after_fork(self) -> None:
        """Make a new lock, in a process that the handler forked: no other thread exists there."""
        self._lock = threading.Lock()

    def run(self, awaitable: Awaitable[object], runner: asyncio.Runner) -> object:
        """Run `awaitable` and return its result. Raises what it raises, CancelledError only after `cancel`."""
        try:
            return runner.run(self._run(awaitable), context=contextvars.copy_context())
        except asyncio.CancelledError as error:
            if self._cancelled:
                raise
            raise RuntimeError("the handler raised CancelledError, but psched did not cancel it") from error

    def cancel(self) -> None:
        """Throw CancelledError into the awaited coroutine. Any thread; a second call does nothing."""
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
