"""One of a master's idle workers looks for work in the place of all, and is not missed when it cannot."""

from __future__ import annotations

import time
from collections.abc import Callable

from faultlab.servers import Server
from tests.daemon.harness import Daemon
from tests.daemon.test_waiting import SOON, rarely_polling

Make = Callable[..., Daemon]

WORKERS = 4
SPAN = 4.0
"""Seconds for which questions are counted; the poll interval is one second."""


def questions(mariadb: Server) -> int:
    """Return how many statements the server has executed, this one included."""
    with mariadb.admin() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Questions'")
        return int(cursor.fetchone()[1])


def connections(mariadb: Server, database: str) -> int:
    """Return how many sessions a database has."""
    with mariadb.admin() as cursor:
        cursor.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE db = %s", (database,))
        return int(cursor.fetchone()[0])


def test_one_idle_worker_polls_for_all_and_wakes_the_others_when_they_are_needed(
    make_daemon: Make, mariadb: Server
) -> None:
    with mariadb.database() as url:
        daemon = make_daemon(url=url, processors=WORKERS, poll_interval=1.0)
        daemon.start()
        daemon.wait_for_workers(WORKERS)
        daemon.pause(2.0)
        first = questions(mariadb)
        before, begun = questions(mariadb), time.monotonic()
        counting = before - first
        daemon.pause(SPAN)
        asked, span = questions(mariadb) - before - counting, time.monotonic() - begun
        alone = span / 1.1 * WORKERS
        assert asked < alone / 2, asked
        assert connections(mariadb, url.rpartition("/")[2]) < WORKERS
        keys = [f"s{number}" for number in range(WORKERS)]
        for key in keys:
            daemon.add(key, "wait")
        assert len({daemon.wait_for_trace("began", key)["pid"] for key in keys}) == WORKERS
        for key in keys:
            daemon.go(key)
            daemon.wait_for_trace("ended", key)
        daemon.stop()


def test_the_other_workers_run_new_tasks_whichever_one_is_frozen(make_daemon: Make, mariadb: Server) -> None:
    with mariadb.database() as url:
        daemon = make_daemon(url=url, processors=3, poll_interval=1.0, child_heartbeat_limit=60).start()
        for slot in (1, 2, 3):
            frozen = daemon.worker(slot)
            frozen.suspend()
            daemon.add(f"s{slot}", "print")
            before = time.monotonic()
            assert daemon.wait_for_trace("ran", f"s{slot}")["at"] <= before + SOON
            frozen.resume()
        daemon.stop()


def test_a_busy_worker_leaves_polling_to_an_idle_one(make_daemon: Make, postgresql: Server) -> None:
    with postgresql.database() as url, rarely_polling(make_daemon, url, processors=2) as (daemon, queue):
        daemon.start()
        queue.submit("long", "heed")
        daemon.wait_for_trace("began", "long", within=SOON)
        queue.submit("q1", "quick")
        daemon.wait_for_trace("ran", "q1", within=SOON)
        queue["long"].cancel_request()
        daemon.wait_for_trace("stopped", "long")


def test_the_polling_worker_learns_of_tasks_that_a_run_submits(make_daemon: Make, mariadb: Server) -> None:
    with mariadb.database() as url, rarely_polling(make_daemon, url, processors=2) as (daemon, _):
        daemon.add("again", "wait", cron="*/5 * * * * *")
        daemon.start()
        daemon.wait_for_trace("began", "again")
        daemon.pause(1.0)  # the other worker looks meanwhile, and finds a lease
        daemon.go("again")
        daemon.wait_for_trace("began", "again", count=2, within=5 + SOON)
