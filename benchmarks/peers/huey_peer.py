"""huey with worker processes and no results: at most once. Runs in the peers' virtualenv."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from huey import RedisHuey, SqliteHuey

from benchmarks import plan
from benchmarks.peers.command import main
from benchmarks.plan import PlannedTask
from benchmarks.shared_counter import tally_of_environment


class Huey:
    """The peer huey, with SQLite or Redis."""

    def __init__(self, url: str) -> None:
        if url.startswith("sqlite:///"):
            self._huey: Any = SqliteHuey(filename=url.removeprefix("sqlite:///"), fsync=True, results=False)
        else:
            self._huey = RedisHuey(url=url, results=False)
        self._tally: Any = None

        @self._huey.task()
        def returns() -> None:
            self._count().count()

        @self._huey.task()
        def picks(sent: float) -> None:
            self._count().sample(time.monotonic() - sent)
            self._count().count()

        def load(sent: float | None, seconds: float, **rest: Any) -> None:
            plan.handle(self._count(), sent, seconds)

        self._returns, self._picks = returns, picks
        self._loads = {name: self._huey.task(name=name)(load) for name in plan.TYPE_NAMES}

    def fill(self, count: int) -> None:
        """Submit a backlog, task by task, because huey cannot submit many tasks together."""
        for _ in range(count):
            self._returns()

    def work(self, children: int) -> None:
        """Run one consumer with `children` processes."""
        self._huey.create_consumer(workers=children, worker_type="process", periodic=False).run()

    def serve(self, workers: int) -> None:
        """Run one consumer with `workers` processes, each of which takes one task at a time."""
        self.work(workers)

    def load(self) -> Callable[[PlannedTask], None]:
        """Return a function that submits a task of a plan."""
        return lambda job: self._loads[job.type](**plan.data_of(job)) and None

    def pick(self) -> Callable[[float], None]:
        """Return a function that submits a task with the time of the submit."""
        return lambda sent: self._picks(sent) and None

    def _count(self) -> Any:
        if self._tally is None:
            self._tally = tally_of_environment()
        return self._tally


if __name__ == "__main__":
    main(Huey)
