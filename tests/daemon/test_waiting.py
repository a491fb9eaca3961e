"""An idle worker sleeps until a row is due or a signal arrives, and need not wait for the end of a poll interval."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from faultlab.servers import Server
from psched.queue.queue import Queue, open_queue
from psched.store import holder_name
from tests.daemon.harness import Daemon, wait_for
from tests.daemon.test_queue import APPLICATION

Make = Callable[..., Daemon]

INTERVAL = 30.0
"""A poll interval in seconds, longer than any test here waits."""
SOON = 8.0
"""Seconds: well below `INTERVAL`, but enough for a busy machine."""


@contextmanager
def rarely_polling(make_daemon: Make, url: str, processors: int = 1) -> Iterator[tuple[Daemon, Queue]]:
    """Prepare a daemon whose workers poll rarely, but do not start it.

    At the end, check that it stops before its next poll.
    """
    sections = {"schedules": {"app": "app:app"}, "queue": {"app": "queue_application:app", "table": "tasks"}}
    keys = {"poll_interval": INTERVAL, "processors": processors, "child_kill_interval": 2}
    daemon = make_daemon(url=url, app=None, **keys, **sections)
    shutil.copy(APPLICATION, daemon.folder)
    section = daemon.settings().queue
    assert section is not None
    with open_queue(section, holder_name("test")) as queue:
        queue.store.create_tables()
        yield daemon, queue
    before = time.monotonic()
    assert daemon.end(signal.SIGTERM) == 0
    assert time.monotonic() <= before + SOON


def see_it_run_soon(daemon: Daemon, key: str, due: float, up: float = 0.0) -> None:
    """Check that a task has run at or soon after `due`, in seconds of this machine's monotonic clock.

    `up`: when the daemon was up. The task cannot run earlier, and a busy machine may start the daemon late.
    """
    ran = daemon.wait_for_trace("ran", key)["at"]
    assert due <= ran <= max(due, up) + SOON


def test_a_task_that_gets_due_while_idle_starts_on_time(make_daemon: Make, database: str) -> None:
    with rarely_polling(make_daemon, database) as (daemon, queue):
        before, now = time.monotonic(), queue.store.now()
        with daemon.schedules() as schedules:
            schedules.add("s1", "print", cron="0 0 1 1 *", next_run_time=now + 3, data={})
        queue.submit("q1", "quick", run_at=now + 4)
        daemon.start()
        up = time.monotonic()
        see_it_run_soon(daemon, "s1", before + 3, up)
        see_it_run_soon(daemon, "q1", before + 4, up)


@pytest.fixture
def listening(make_daemon: Make, postgresql: Server) -> Iterator[tuple[Daemon, Queue]]:
    """A running daemon, to which PostgreSQL sends a notification for each task."""
    with postgresql.database() as url, rarely_polling(make_daemon, url) as (daemon, queue):
        daemon.start()
        yield daemon, queue


def see_it_called(daemon: Daemon, queue: Queue, key: str) -> None:
    before = time.monotonic()
    queue.submit(key, "quick")
    see_it_run_soon(daemon, key, before)
    daemon.wait_for(lambda: queue[key].metadata().status == "finished")


def test_a_worker_is_called_for_each_task(listening: tuple[Daemon, Queue]) -> None:
    for number in range(5):
        see_it_called(*listening, f"q{number}")


def test_a_worker_is_woken_for_a_task_that_is_due_soon(listening: tuple[Daemon, Queue]) -> None:
    daemon, queue = listening
    see_it_called(daemon, queue, "first")
    before, now = time.monotonic(), queue.store.now()
    with daemon.schedules() as schedules:
        schedules.add("s1", "print", cron="0 0 1 1 *", next_run_time=now + 2, data={})
    queue.submit("q1", "quick", run_at=now + 1)
    see_it_run_soon(daemon, "q1", before + 1)
    see_it_run_soon(daemon, "s1", before + 2)


def test_a_worker_that_cannot_be_called_any_more_listens_anew(
    listening: tuple[Daemon, Queue], postgresql: Server
) -> None:
    see_it_called(*listening, "first")
    with postgresql.admin() as cursor:
        listeners = "FROM pg_stat_activity WHERE query LIKE 'LISTEN%'"
        wait_for(lambda: cursor.execute(f"SELECT pid {listeners}").rowcount == 2)  # one for each section
        assert cursor.execute(f"SELECT pg_terminate_backend(pid) {listeners}").rowcount == 2
    see_it_called(*listening, "second")
    see_it_called(*listening, "third")
