"""A task of a batch that has not begun is charged no attempt when its worker, or the whole host, is killed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from psched.model import NewTask
from psched.queue.queue import Queue, open_queue
from psched.store import holder_name
from psched.task import Task
from tests.daemon.harness import Daemon
from tests.daemon.test_queue import APPLICATION

Make = Callable[..., Daemon]

BEHIND = [f"b{number}" for number in range(8)]
"""Keys of the tasks that wait behind the task `a` in one batch."""


@contextmanager
def batched(make_daemon: Make, first: NewTask, **config: Any) -> Iterator[tuple[Daemon, Queue]]:
    """Start a daemon whose one worker acquires `first` and all tasks behind it in one batch.

    Each task has one attempt.
    """
    queue = {"task_heartbeat_interval": 0.1, "task_prefetch": 19, "max_attempts": 1}
    daemon = make_daemon(app="queue_application:app", schedules={}, queue=queue, **config)
    shutil.copy(APPLICATION, daemon.folder)
    read = daemon.settings().queue
    assert read is not None
    with open_queue(read, holder_name("test")) as tasks:
        tasks.store.create_tables()
        assert tasks.submit_many([first, *(NewTask(key, "quick") for key in BEHIND)]) == []
        daemon.start()
        yield daemon, tasks


def test_behind_a_task_that_kills_its_worker_nothing_costs_an_attempt(make_daemon: Make) -> None:
    with batched(make_daemon, NewTask("a", "mixed", {"dies": True})) as (daemon, queue):
        daemon.wait_for(lambda: {row.status for row in queue.list(type="quick")} == {"finished"} or None)
        assert {row.attempts for row in queue.list(type="quick")} == {1}
        daemon.wait_for(lambda: queue["a"].metadata().status == "failed" or None)
        assert queue["a"].metadata().attempts == 1
        assert len(daemon.traces("ran", "a")) == 1
        daemon.stop()


def test_when_a_host_dies_only_what_it_was_running_costs_an_attempt(make_daemon: Make) -> None:
    with batched(make_daemon, NewTask("a", "freeze"), alive_time=6, child_heartbeat_limit=5) as (daemon, queue):
        pid = daemon.wait_for_trace("began", "a")["pid"]
        family = daemon.master.children(recursive=True)
        daemon.process.kill()
        for process in family:
            process.kill()
        daemon.process.wait()
        assert pid in [process.pid for process in family], "the master had found it to be frozen before"
        daemon.wait_until_gone(family)
        assert [row.status for row in queue.list()] == ["running"] * 9
        taken: list[Task] = []
        daemon.wait_for(lambda: taken.extend(queue.poll_multi(20)) or len(taken) >= len(BEHIND) or None)
        assert sorted((task.key, task.attempts) for task in taken) == [(key, 1) for key in BEHIND]
        failed = daemon.wait_for(lambda: queue.poll_multi(20) or next(iter(queue.list(status="failed")), None))
        assert not isinstance(failed, list), "what had begun is begun again"
        assert (failed.key, failed.attempts) == ("a", 1)
