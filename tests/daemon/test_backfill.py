"""A backfill loses no occurrence, and runs none in two workers at the same time, when workers and masters die."""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Callable

import psutil

from tests.daemon.harness import Daemon

HOUR = 3600
FIRST = 1_600_041_600
HOURS = [FIRST + n * HOUR for n in range(5)]


def test_a_backfill_goes_on_after_kills_of_its_worker_and_of_the_master(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon().start(stderr=subprocess.DEVNULL)
    with daemon.schedules() as schedules:
        schedules.add("key", "wait", cron="@hourly", next_time=2_000_000_000)
        assert schedules.backfills.start("key", HOURS[0], HOURS[-1], max_running=2) is not None
        first = daemon.wait_for_trace("began", "key")
        psutil.Process(first["pid"]).kill()
        daemon.wait_for(lambda: len(daemon.traces("began", "key")) >= 2)
        daemon.end(signal.SIGKILL)
        daemon.start()
        daemon.go("key")
        daemon.wait_for(lambda: [each.left for each in schedules.backfills.list("key")] == [0])
        [verdict] = schedules.audit(0, int(schedules.store.now()))
        assert (verdict.violations, verdict.backfilled) == ([], 5)
    ended = Counter(line["scheduled_time"] for line in daemon.traces("ended", "key"))
    assert ended == dict.fromkeys(HOURS, 1)
