"""PgQueuer on asyncpg and uvloop, in large batches, with durable tables. Runs in the peers' virtualenv."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer.core.qm import QueueManager
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks import plan
from benchmarks.peers.command import main
from benchmarks.shared_counter import tally_of_environment

_BATCH = 500
_PAGE = 5000


class PgQueuer:
    """The peer PgQueuer, with PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def fill(self, count: int) -> None:
        """Submit a backlog, many jobs per statement."""
        uvloop.run(self._fill(count))

    def work(self, children: int) -> None:
        """Run one queue manager in this process."""
        uvloop.run(self._work())

    def serve(self, workers: int) -> None:
        """Run one queue manager with `workers` jobs at a time."""
        uvloop.run(self._serve(workers))

    def load(self) -> Callable[[Job], None]:
        """Return a function that submits a task of a plan. All threads share one event loop and connection."""
        loop = asyncio.new_event_loop()
        threading.Thread(target=loop.run_forever, daemon=True).start()
        queries = asyncio.run_coroutine_threadsafe(self._queries(), loop).result()
        lock = asyncio.Lock()

        async def submit(planned: plan.PlannedTask) -> None:
            payload = json.dumps(plan.data_of(planned)).encode()
            async with lock:
                await queries.enqueue(planned.type, payload)

        return lambda planned: asyncio.run_coroutine_threadsafe(submit(planned), loop).result()

    def pick(self) -> Callable[[float], None]:
        """Return a function that submits a job with the time of the submit.

        All calls share one event loop and connection.
        """
        loop = asyncio.new_event_loop()
        queries = loop.run_until_complete(self._queries())
        return lambda sent: loop.run_until_complete(queries.enqueue("picks", repr(sent).encode())) and None

    async def _queries(self) -> Queries:
        return Queries(AsyncpgDriver(await asyncpg.connect(self._url)))

    async def _fill(self, count: int) -> None:
        queries = await self._queries()
        await queries.install()
        for start in range(0, count, _PAGE):
            many = min(_PAGE, count - start)
            await queries.enqueue(["returns"] * many, [None] * many, [0] * many)

    async def _serve(self, workers: int) -> None:
        tally = tally_of_environment()
        manager = QueueManager(await self._queries())

        async def load(job: Job) -> None:
            given = json.loads(job.payload or b"{}")
            plan.begin(tally, given["sent"])
            await asyncio.sleep(given["seconds"])

        for name in plan.TYPE_NAMES:
            manager.entrypoint(name)(load)
        await manager.run(batch_size=workers // 2, max_concurrent_tasks=workers, dequeue_timeout=timedelta(seconds=30))

    async def _work(self) -> None:
        tally = tally_of_environment()
        manager = QueueManager(await self._queries())

        @manager.entrypoint("returns")
        async def returns(job: Job) -> None:
            tally.count()

        @manager.entrypoint("picks")
        async def picks(job: Job) -> None:
            tally.sample(time.monotonic() - float(job.payload or b"0"))
            tally.count()

        await manager.run(batch_size=_BATCH, dequeue_timeout=timedelta(seconds=30))


if __name__ == "__main__":
    main(PgQueuer)
