"""`psched_stats` counts each run of a daemon once, whichever process ran it, and in each kind of daemon."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from faultlab.servers import Server
from psched.model import NewTask
from psched.queue.queue import Queue
from psched.store.run_stats import HOUR, MINUTE, StatsWindow
from tests.daemon.harness import Daemon
from tests.daemon.test_fetching_child import served, submit_short, wait_until_finished

TASKS = 60


def outcomes(queue: Queue, span: int) -> dict[tuple[str, str], int]:
    """Return the number of runs in the previous and the present hour, by type and outcome.

    `span`: seconds of one row of statistics.
    """
    stats, now = queue.store.stats, int(queue.store.now())
    assert stats is not None
    window = StatsWindow(now // HOUR * HOUR - HOUR, now // HOUR * HOUR + HOUR, span)
    return {(each.type, each.outcome): each.sums.runs for each in stats.totals(window)}


@pytest.mark.parametrize("config", [{}, {"processor_type": "thread"}], ids=["fetching child", "threads"])
def test_each_run_counts_once_however_it_ended(
    make_daemon: Callable[..., Daemon], tmp_path: Path, config: dict[str, Any]
) -> None:
    with served(make_daemon, f"sqlite:///{tmp_path}/psched.db", **config) as (daemon, queue):
        submit_short(queue, TASKS)
        queue.submit_many(NewTask(f"f{number}", "raise", max_attempts=1 + number % 2) for number in range(4))
        daemon.start()
        wait_until_finished(daemon, queue)
        daemon.wait_for(lambda: {row.status for row in queue.list(type="raise")} == {"failed"})
        assert daemon.end(signal.SIGTERM) == 0
        expected = {("short", "finished"): TASKS, ("raise", "failed"): 4, ("raise", "retried"): 2}
        assert outcomes(queue, MINUTE) == outcomes(queue, HOUR) == expected


def test_statistics_that_are_off_write_nothing(make_daemon: Callable[..., Daemon], redis: Server) -> None:
    with redis.database() as url, served(make_daemon, url, type="redis", stats_retention=0) as (daemon, queue):
        submit_short(queue, 10)
        daemon.start()
        wait_until_finished(daemon, queue)
        assert daemon.end(signal.SIGTERM) == 0
        assert outcomes(queue, HOUR) == {}
