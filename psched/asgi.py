"""Starts and stops psched together with an ASGI application (FastAPI, Starlette, Litestar). Imports no framework.

scheduler = psched.create_scheduler("postgresql://db/app")
jobs = psched.asgi.lifespan(scheduler, queue="etc/psched.yml")
app = FastAPI(lifespan=jobs)
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import psched
from psched.application.default_queue import default_queue
from psched.backends import is_driver_error
from psched.config import Settings
from psched.error_messages import one_line
from psched.errors import ScheduleError
from psched.queue.queue import Queue
from psched.retry_wait import check_wait
from psched.scheduler import Scheduler

__all__ = ["Lifespan", "lifespan"]

log = logging.getLogger(__name__)


class Lifespan:
    """The lifespan of an ASGI application. `lifespan` creates this object, and the framework calls it.

    If the application has its own lifespan function, enter this lifespan inside it: `async with jobs(app): ...`.
    """

    def __init__(
        self,
        scheduler: Scheduler | None,
        config: Settings | Mapping[str, Any] | str | Path | None,
        stop_timeout: float | None,
    ) -> None:
        self._scheduler = scheduler
        self._config = config
        self._stop_timeout = stop_timeout
        self._running = False

    @asynccontextmanager
    async def __call__(self, app: object = None) -> AsyncGenerator[None, None]:
        """Return the async context in which the application runs. Entering it starts the scheduler and opens the queue.

        If the queue's database does not answer, a warning is logged, and the queue is opened at the first use.

        Raises:
            ConfigError: the configuration is not valid, or the tables are missing.
            ScheduleError: this lifespan, or its scheduler, is running already.
        """
        if self._running:
            raise ScheduleError("this lifespan is running already; call psched.asgi.lifespan for each application")
        self._running = True
        async with AsyncExitStack() as stack:
            stack.callback(setattr, self, "_running", False)
            queue = self._scheduler if self._config is None else self._config
            if queue is not None:
                stack.push_async_callback(asyncio.to_thread, psched.configure, None)
                await asyncio.to_thread(psched.configure, queue)
                await self._try_to_open()
            if self._scheduler is not None:
                await _start(self._scheduler)
                stack.push_async_callback(self._stop, self._scheduler)
            yield

    async def queue(self) -> Queue:
        """Return the queue of the running application. Use it with `Depends` of FastAPI or `Provide` of Litestar.

        Raises:
            ConfigError: `lifespan` got neither a queue nor a scheduler, or the tables are missing.
            ScheduleError: the application is not running.
        """
        if not self._running:
            raise ScheduleError("the application is not running; in tests, use `with TestClient(app)`")
        opened = default_queue.opened
        return await asyncio.to_thread(default_queue.get) if opened is None else opened

    async def _try_to_open(self) -> None:
        try:
            await self.queue()
        except Exception as error:
            if not is_driver_error(error):
                raise
            log.warning("cannot open the queue: %s; the next request tries again", one_line(error))

    async def _stop(self, scheduler: Scheduler) -> None:
        if not await asyncio.to_thread(scheduler.stop, self._stop_timeout):
            words = "a handler is still running after stop_timeout=%s s; the application stops now"
            log.warning(words, self._stop_timeout)


async def _start(scheduler: Scheduler) -> None:
    starting = asyncio.create_task(asyncio.to_thread(scheduler.start))
    try:
        await asyncio.shield(starting)
    except asyncio.CancelledError:  # the thread of the handler continues
        await asyncio.wait({starting})
        if starting.exception() is None:
            await asyncio.to_thread(scheduler.stop, 0)
        raise


def lifespan(
    scheduler: Scheduler | None = None,
    *,
    queue: Settings | Mapping[str, Any] | str | Path | None = None,
    stop_timeout: float | None = 20.0,
) -> Lifespan:
    """Return a lifespan for FastAPI, Starlette (`lifespan=jobs`) or Litestar (`lifespan=[jobs]`).

    This function itself opens no connection.

    - `scheduler`: a scheduler to start and stop with the application, in each worker process of the server.
    - `queue`: the configuration of the process's queue, as for `psched.configure`. Functions of apps submit to this
      queue, and `Lifespan.queue` returns it. None: the scheduler's own queue.
    - `stop_timeout`: how many seconds the shutdown waits for running handlers; None: until they end. Must be less than
      the time after which the server kills its workers. With gunicorn this time is 30 s.

    Raises:
        ValueError: `stop_timeout` is not a number of seconds.
    """
    if stop_timeout is not None:
        check_wait("stop_timeout", stop_timeout)
    return Lifespan(scheduler, queue, stop_timeout)
