"""Combines the tasks that coroutines of one event loop submit at the same time, like the group commit of a database."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextvars import Context

from psched.async_methods import run_in_thread
from psched.errors import NotSupportedError
from psched.model import NewTask
from psched.store import TaskStore

_MOST = 500
"""The maximum number of tasks in one batch."""
_AT_ONCE = 4
"""How many batches are sent at the same time, each in a thread."""
_HEAD_START = 0.05
"""The maximum number of seconds that a batch waits for the previous batch. The previous batch may itself wait for a
caller's transaction."""
_WOKEN_TOGETHER = 20
"""How many callers of a batch continue before the event loop runs other coroutines. If all callers continued together,
they would delay the event loop."""

Waiting = tuple[NewTask, asyncio.Future[bool]]


class AsyncSubmitCombiner:
    """Combines the tasks of one event loop into batches. If no batch is being sent, a task does not wait."""

    def __init__(self, store: TaskStore, forget: Callable[[], object]) -> None:
        """`forget`: called when no caller is waiting. It must drop the reference to this object.

        This object keeps its event loop in memory.
        """
        self._store = store
        self._forget = forget
        self._waiting: deque[Waiting] = deque()
        self._sender: asyncio.Task[None] | None = None
        self._sending: set[asyncio.Task[None]] = set()
        self._free = asyncio.Semaphore(_AT_ONCE)

    async def submit(self, task: NewTask) -> bool:
        """Create a task, and return whether its key existed before. Raises like `TaskStore.submit`.

        A caller that is cancelled before its batch is sent has submitted nothing. If it is cancelled later, the task
        may exist.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((task, answer))
        if self._sender is None or self._sender.done():
            self._sender = loop.create_task(self._send_all(), context=Context())
            self._sender.add_done_callback(self._has_ended)
        return await answer

    async def _send_all(self) -> None:
        while self._waiting:
            await self._free.acquire()
            sending = asyncio.create_task(self._send(self._next_batch()))
            self._sending.add(sending)
            sending.add_done_callback(self._has_ended)
            await asyncio.wait({sending}, timeout=_HEAD_START)

    def _has_ended(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        if not self._waiting and not self._sending and (self._sender is None or self._sender.done()):
            self._forget()

    def _next_batch(self) -> list[Waiting]:
        """Return tasks with different keys, in the order of their submits. Tasks of cancelled callers are left out."""
        batch: dict[str, Waiting] = {}
        later: list[Waiting] = []
        while self._waiting and len(batch) < _MOST:
            task, answer = self._waiting.popleft()
            if not answer.done():
                if task.key in batch:
                    later.append((task, answer))
                else:
                    batch[task.key] = (task, answer)
        self._waiting.extendleft(reversed(later))
        return list(batch.values())

    async def _send(self, batch: Sequence[Waiting]) -> None:
        try:
            try:
                outcomes = await run_in_thread(self._submit, [task for task, _ in batch]) if batch else []
            finally:
                self._free.release()
            for number, ((_, answer), outcome) in enumerate(zip(batch, outcomes, strict=True), 1):
                if answer.done():  # the caller was cancelled
                    continue
                if isinstance(outcome, Exception):
                    answer.set_exception(outcome)
                else:
                    answer.set_result(outcome)
                if number % _WOKEN_TOGETHER == 0:
                    await asyncio.sleep(0)
        except asyncio.CancelledError:  # the event loop ends
            for _, answer in batch:
                answer.cancel()
            raise

    def _submit(self, tasks: Sequence[NewTask]) -> list[bool | Exception]:
        """Return for each task whether its key existed before, or the error for its caller."""
        try:
            present = set(self._store.submit(tasks))
        except (ValueError, NotSupportedError) as error:  # nothing was written
            if len(tasks) == 1:
                return [error]
            half = len(tasks) // 2
            return [*self._submit(tasks[:half]), *self._submit(tasks[half:])]
        except Exception as error:  # noqa: BLE001 – each caller gets the error
            return [error] * len(tasks)
        return [task.key in present for task in tasks]
