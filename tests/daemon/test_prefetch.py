"""Prefetched tasks do not wait behind a task of a slow type, and tasks of quick types are acquired in batches."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from psched.model import NewTask
from psched.queue.queue import Queue, open_queue
from psched.store import holder_name
from tests.daemon.harness import Daemon
from tests.daemon.test_queue import APPLICATION

Make = Callable[..., Daemon]

LONG = 0.8
"""Seconds: more than the time after which a type counts as slow."""


@contextmanager
def served(make_daemon: Make) -> Iterator[tuple[Daemon, Queue]]:
    """Start a daemon with one worker on an empty queue."""
    daemon = make_daemon(app="queue_application:app", schedules={}, queue={"task_heartbeat_interval": 0.1})
    shutil.copy(APPLICATION, daemon.folder)
    section = daemon.settings().queue
    assert section is not None
    with open_queue(section, holder_name("test")) as queue:
        queue.store.create_tables()
        daemon.start()
        yield daemon, queue
    daemon.stop()


def statuses(queue: Queue, type_: str) -> set[str]:
    return {row.status for row in queue.list(type=type_)}


def run_to_the_end(daemon: Daemon, queue: Queue, key: str) -> None:
    """Let a running task run for `LONG` seconds, and then cancel it."""
    daemon.wait_for_trace("began", key)
    daemon.pause(LONG)
    queue[key].cancel_request()
    daemon.wait_for(lambda: queue[key].metadata().status == "cancelled")


def test_tasks_prefetched_behind_a_slow_type_are_given_back_before_it_begins(make_daemon: Make) -> None:
    with served(make_daemon) as (daemon, queue):
        queue.submit("first", "heed")
        run_to_the_end(daemon, queue, "first")
        queue.submit_many(NewTask(f"warm{n}", "quick") for n in range(60))
        daemon.wait_for(lambda: statuses(queue, "quick") == {"finished"})
        front = [NewTask(f"a{n}", "quick") for n in range(2)]
        behind = [NewTask(f"c{n:02}", "behind") for n in range(60)]
        queue.submit_many([*front, NewTask("b", "heed"), *behind])
        daemon.wait_for_trace("began", "b")
        assert statuses(queue, "behind") == {"waiting"}
        assert all(row.attempts == 0 for row in queue.list(type="behind"))
        run_to_the_end(daemon, queue, "b")
