"""PgQueuer on asyncpg and uvloop, in large batches, its tables durable. In processes of the peers' interpreter."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import timedelta

import asyncpg
import uvloop
from pgqueuer.core.qm import QueueManager
from pgqueuer.db import AsyncpgDriver
from pgqueuer.models import Job
from pgqueuer.queries import Queries

from benchmarks.peers.command import main
from benchmarks.shared_counter import tally_of_environment

_BATCH = 500
_PAGE = 5000


class PgQueuer:
    """A backlog of one entrypoint."""

    def __init__(self, url: str) -> None:
        self._url = url

    def fill(self, count: int) -> None:
        """Submit in pages."""
        uvloop.run(self._fill(count))

    def work(self, children: int) -> None:
        """One queue manager per process."""
        uvloop.run(self._work())

    def pick(self) -> Callable[[float], None]:
        """Submit from a loop that stays open."""
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
