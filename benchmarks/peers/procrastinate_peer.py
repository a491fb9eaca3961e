"""Procrastinate with its asynchronous worker, ten jobs at a time. Runs in the peers' virtualenv."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from procrastinate import App, PsycopgConnector, SyncPsycopgConnector

from benchmarks.peers.command import main
from benchmarks.plan import TYPE_NAMES, PlannedTask, begin, data_of
from benchmarks.shared_counter import tally_of_environment

_CONCURRENCY = 10
_PAGE = 1000


class Procrastinate:
    """The peer Procrastinate, with PostgreSQL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def fill(self, count: int) -> None:
        """Submit a backlog, many jobs per statement."""
        app = self._app(SyncPsycopgConnector(conninfo=self._url))
        with app.open():
            app.schema_manager.apply_schema()
            for start in range(0, count, _PAGE):
                app.configure_task("returns").batch_defer(*[{}] * min(_PAGE, count - start))

    def work(self, children: int) -> None:
        """Run one worker in this process."""
        app = self._app(PsycopgConnector(conninfo=self._url))
        tally = tally_of_environment()

        @app.task(name="returns")
        async def returns() -> None:
            tally.count()

        @app.task(name="picks")
        async def picks(sent: float) -> None:
            tally.sample(time.monotonic() - sent)
            tally.count()

        app.run_worker(concurrency=_CONCURRENCY, install_signal_handlers=False)

    def serve(self, workers: int) -> None:
        """Run one worker with `workers` jobs at a time."""
        app = self._app(PsycopgConnector(conninfo=self._url))
        tally = tally_of_environment()

        async def load(sent: float | None, seconds: float, **rest: object) -> None:
            begin(tally, sent)
            await asyncio.sleep(seconds)

        for name in TYPE_NAMES:
            app.task(name=name)(load)
        app.run_worker(concurrency=workers, install_signal_handlers=False)

    def load(self) -> Callable[[PlannedTask], None]:
        """Return a function that submits a task of a plan. All calls use one open app."""
        app = self._app(SyncPsycopgConnector(conninfo=self._url))
        app.open()
        return lambda job: app.configure_task(job.type).defer(**data_of(job)) and None

    def pick(self) -> Callable[[float], None]:
        """Return a function that submits a job with the time of the submit. All calls use one open app."""
        app = self._app(SyncPsycopgConnector(conninfo=self._url))
        app.open()
        return lambda sent: app.configure_task("picks").defer(sent=sent) and None

    def _app(self, connector: PsycopgConnector | SyncPsycopgConnector) -> App:
        return App(connector=connector)


if __name__ == "__main__":
    main(Procrastinate)
