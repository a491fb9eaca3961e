"""A run is watched from its very beginning, and a task that does not begin is immediately released."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

from tests.daemon.harness import Daemon

Make = Callable[..., Daemon]

_MAKING = """

class Making(Base):
    def __init__(self, task):
        super().__init__(task)
        trace("making", task)
        {body}

    def run(self):
        trace("began", self.task)
        while True:
            time.sleep(0.01)


class Made(Dispatch):
    routes: ClassVar = {{"made": Making}}
"""


def made(make_daemon: Make, body: str, timeout: float | None = None, **config: object) -> Daemon:
    """Start a daemon with a schedule that is due. `body`: code that runs in the constructor of the schedule's handler.

    `timeout`: the schedule's, in seconds.
    """
    daemon = make_daemon(app="app:Made", **config)
    with (daemon.folder / "app.py").open("a") as app:
        app.write(_MAKING.format(body=body))
    daemon.add("s1", "made")
    if timeout is not None:
        with daemon.schedules() as schedules:
            schedules["s1"].modify(timeout=timeout)
    return daemon.start()


@contextmanager
def locked(daemon: Daemon) -> Iterator[None]:
    """Lock the database, so that every other process that writes to it waits."""
    with closing(sqlite3.connect(daemon.folder / "psched.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield
        database.execute("COMMIT")


def test_a_run_is_timed_out_however_long_its_handler_was_in_the_making(make_daemon: Make) -> None:
    daemon = made(make_daemon, "time.sleep(0.6)", task_timeout=1)
    daemon.wait_for_trace("began")
    daemon.wait_for_log("ran longer than task_timeout")
    daemon.stop()


def test_a_handler_that_is_never_made_is_timed_out_too(make_daemon: Make) -> None:
    daemon = made(make_daemon, "time.sleep(60)", task_timeout=0.5)
    daemon.wait_for_trace("making", count=2)
    assert "ran longer than task_timeout" in daemon.log
    daemon.stop()


def test_the_timeout_of_a_schedule_ends_a_run_that_hangs_in_place_of_the_section_s(make_daemon: Make) -> None:
    daemon = made(make_daemon, "time.sleep(60 if task.attempts == 1 else 0)", timeout=0.4, task_timeout=60)
    reason = "schedules:s1 did not stop: 's1' ran longer than the timeout of its schedule (0.4 s)"
    daemon.wait_for_log(reason)
    daemon.wait_for_trace("began")
    daemon.wait_for_log(reason, 2)
    daemon.stop()


def test_a_task_that_kills_its_worker_before_its_handler_is_made_is_suspected(make_daemon: Make) -> None:
    daemon = made(make_daemon, "os._exit(3)")
    daemon.wait_for_log("ended with exit code 3 while running schedules:s1")
    daemon.stop()


def test_a_handler_stopped_during_its_construction_does_not_begin(make_daemon: Make) -> None:
    daemon = made(make_daemon, "time.sleep(1)", task_timeout=0.2, child_kill_interval=5)
    daemon.wait_for_log("s1 type=made failed after")
    assert not daemon.traces("began")
    daemon.stop()


def test_a_task_acquired_during_the_stop_of_its_worker_is_given_back(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    daemon.add("s1", "quick", cron="0 0 1 1 *", now=False)  # not due by itself at the end of a minute
    with daemon.schedules() as schedules:
        schedules["s1"].modify(next_run_time=schedules.store.now() + 0.5)
        with locked(daemon):
            daemon.pause(0.8)  # by now the worker waits for the lock, to take what is due
            worker = daemon.worker()
            daemon.process.terminate()
            daemon.wait_for_log("stopping when the running tasks are done")
            daemon.pause(0.3)
        daemon.wait_until_gone([worker])
        assert schedules["s1"].metadata().status == "waiting"
    assert daemon.end() == 0
