"""Celery on Redis: prefork children, late acknowledgement, a large prefetch. Runs in the peers' virtualenv."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from celery import Celery as CeleryApp

from benchmarks import plan
from benchmarks.peers.command import main
from benchmarks.plan import PlannedTask
from benchmarks.shared_counter import tally_of_environment


class Celery:
    """The peer Celery, with Redis as its broker."""

    def __init__(self, url: str) -> None:
        self._app: Any = CeleryApp("bench", broker=url)
        self._app.conf.update(
            task_ignore_result=True,
            task_acks_late=True,
            worker_prefetch_multiplier=100,
            worker_send_task_events=False,
            broker_connection_retry_on_startup=True,
        )
        self._tally: Any = None

        @self._app.task(name="returns")
        def returns() -> None:
            self._count().count()

        @self._app.task(name="picks")
        def picks(sent: float) -> None:
            self._count().sample(time.monotonic() - sent)
            self._count().count()

        def load(sent: float | None, seconds: float, **rest: Any) -> None:
            plan.handle(self._count(), sent, seconds)

        self._returns, self._picks = returns, picks
        self._loads = {name: self._app.task(name=name)(load) for name in plan.TYPE_NAMES}

    def fill(self, count: int) -> None:
        """Submit a backlog, task by task, because Celery cannot submit many tasks together."""
        for _ in range(count):
            self._returns.delay()

    def work(self, children: int) -> None:
        """Run one master with `children` processes."""
        quiet = ("--loglevel=ERROR", "--without-gossip", "--without-mingle", "--without-heartbeat")
        self._app.worker_main(["worker", "-c", str(children), *quiet])

    def serve(self, workers: int) -> None:
        """Run one master with `workers` processes, each of which prefetches one task."""
        self._app.conf.worker_prefetch_multiplier = 1
        self.work(workers)

    def load(self) -> Callable[[PlannedTask], None]:
        """Return a function that submits a task of a plan."""
        return lambda job: self._loads[job.type].delay(**plan.data_of(job)) and None

    def pick(self) -> Callable[[float], None]:
        """Return a function that submits a task with the time of the submit."""
        return lambda sent: self._picks.delay(sent) and None

    def _count(self) -> Any:
        if self._tally is None:
            self._tally = tally_of_environment()
        return self._tally


if __name__ == "__main__":
    main(Celery)
