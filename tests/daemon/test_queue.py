"""One daemon with schedules and a queue, each with its own application: limits, cancels, failures, submits."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from psched.model import NewTask, TaskRow
from psched.queue.queue import Queue, open_queue
from psched.store import holder_name
from tests.daemon.harness import Daemon

Make = Callable[..., Daemon]

APPLICATION = Path(__file__).with_name("queue_application.py")


@contextmanager
def queue_of(daemon: Daemon) -> Iterator[Queue]:
    """Open the queue for use in the test process."""
    section = daemon.settings().queue
    assert section is not None
    with open_queue(section, holder_name("test")) as queue:
        yield queue


@pytest.fixture
def serve(make_daemon: Make) -> Make:
    """A function that prepares a daemon, but does not start it. Its keywords: keys of the section `queue:`."""

    def prepare(processors: int = 1, app: str = "app:app", **section: Any) -> Daemon:
        queue = {"app": "queue_application:app", "task_heartbeat_interval": 0.1, **section}
        keys = {"processors": processors, "child_kill_interval": 2, "app": None, "schedules": {"app": app}}
        daemon = make_daemon(**keys, queue=queue)
        shutil.copy(APPLICATION, daemon.folder)
        with queue_of(daemon) as tasks:
            tasks.store.create_tables()
        return daemon

    return prepare


def wait_for_status(daemon: Daemon, key: str, status: str) -> TaskRow:
    with queue_of(daemon) as queue:

        def look() -> TaskRow | None:
            row = queue[key].metadata()
            return row if row.status == status else None

        return daemon.wait_for(look)


def test_each_section_is_run_by_its_own_application(serve: Make) -> None:
    daemon = serve()
    daemon.add("s1", "print")
    with queue_of(daemon) as queue:
        queue.submit("q1", "quick", {"n": 1})
        queue.submit("q2", "print")
    daemon.start()
    daemon.wait_for_trace("ran", "s1")
    daemon.wait_for_trace("ran", "q1")
    assert wait_for_status(daemon, "q1", "finished").data == {"n": 1, "done": True}
    with queue_of(daemon) as queue:
        row = queue["q2"].metadata()
    assert daemon.traces(key="q2") == [], "a handler of the schedules has run a task of the queue"
    assert (row.attempts, row.node, row.last_error) == (0, None, None)
    daemon.stop()


def test_a_section_without_application_is_reported_at_the_start(serve: Make) -> None:
    daemon = serve(app="app:app", include=".")
    daemon.configure(queue={"task_heartbeat_interval": 0.1}, schedules={"app": "app:app"})
    daemon.start(wait=False)
    assert daemon.end() == 1
    assert "queue: no application given" in daemon.log + daemon.errors()


def test_a_cancel_reaches_the_handler_and_retires_the_task(serve: Make) -> None:
    daemon = serve()
    with queue_of(daemon) as queue:
        queue.submit("q1", "heed")
        queue.submit("q2", "stubborn", run_at=2e9)
        daemon.start()
        daemon.wait_for_trace("began", "q1")
        daemon.wait_for(lambda: queue["q1"].metadata().data == {"progress": 40})
        for key in ("q1", "q2"):
            queue[key].cancel_request()
    assert daemon.wait_for_trace("stopped", "q1")["reason"] == "CancelRequestedError"
    assert wait_for_status(daemon, "q1", "cancelled").data == {"progress": 40}
    wait_for_status(daemon, "q2", "cancelled")
    daemon.stop()


def test_a_handler_that_does_not_heed_a_cancel_ends_with_its_worker(serve: Make) -> None:
    daemon = serve()
    with queue_of(daemon) as queue:
        queue.submit("q1", "stubborn")
        daemon.start()
        old = daemon.worker().pid
        daemon.wait_for_trace("began", "q1")
        queue["q1"].cancel_request()
    wait_for_status(daemon, "q1", "cancelled")
    daemon.wait_for_successor(1, old)
    daemon.stop()
    assert len(daemon.traces("began", "q1")) == 1


def test_a_type_that_no_handler_is_for_uses_up_no_attempt(serve: Make) -> None:
    daemon = serve(max_attempts=1)
    daemon.configure(queue={"app": "queue_application:Guessing", "task_heartbeat_interval": 0.1})
    with queue_of(daemon) as queue:
        queue.submit("q1", "of a newer application")
        daemon.start()
        daemon.wait_for_log("no handler for this type")
        row = wait_for_status(daemon, "q1", "waiting")
    daemon.stop()
    assert (row.attempts, row.last_error) == (0, "no handler for the type 'of a newer application'")


def test_a_task_that_fails_too_often_is_kept_with_its_traceback(serve: Make) -> None:
    daemon = serve()
    with queue_of(daemon) as queue:
        queue.submit("q1", "raise")
    daemon.start()
    row = wait_for_status(daemon, "q1", "failed")
    assert row.attempts == len(daemon.traces("ran", "q1")) == 2
    assert str(row.last_error).startswith("ValueError('as told')\n")
    assert 'raise ValueError("as told")' in str(row.last_error)
    daemon.stop()


def test_a_task_that_kills_its_worker_too_often_fails_and_the_others_run(serve: Make) -> None:
    daemon = serve(retry_wait=0.1)
    with queue_of(daemon) as queue:
        queue.submit("q1", "crash")
        queue.submit_many(NewTask(f"after{n}", "quick") for n in range(20))
    daemon.start()
    wait_for_status(daemon, "q1", "failed")
    assert len(daemon.traces("ran", "q1")) == 2
    for n in range(20):
        wait_for_status(daemon, f"after{n}", "finished")
    daemon.stop()


def test_a_task_that_runs_too_long_is_stopped_and_uses_up_an_attempt(serve: Make) -> None:
    daemon = serve(task_timeout=0.2, max_attempts=1)
    with queue_of(daemon) as queue:
        queue.submit("q1", "heed")
    daemon.start()
    row = wait_for_status(daemon, "q1", "failed")
    assert "ran longer than task_timeout" in str(row.last_error)
    assert daemon.wait_for_trace("stopped", "q1")["reason"] == "TimeoutError"
    daemon.stop()


def test_one_users_tasks_run_up_to_the_limit_and_another_users_do_not_wait(serve: Make) -> None:
    daemon = serve(processors=5, poll_interval=0.02, task_prefetch=4)
    with queue_of(daemon) as queue:
        queue.submit_many(NewTask(f"many{n}", "short", user="many", max_running=3) for n in range(100))
        queue.submit("one", "short", user="one", max_running=3)
    daemon.start()
    daemon.wait_for(lambda: len(daemon.traces("ended")) == 101 or None, within=40)
    daemon.stop()
    traces = sorted(daemon.traces(), key=lambda line: line["at"])
    running = most = 0
    for line in (line for line in traces if line["key"].startswith("many")):
        running += 1 if line["event"] == "began" else -1
        most = max(most, running)
    assert most <= 3, "more ran at once than may"
    order = [line["key"] for line in traces if line["event"] == "began"]
    assert order.index("one") < 20


def test_an_occurrence_becomes_one_task_that_is_run(serve: Make) -> None:
    daemon = serve(app="psched.handlers.enqueue:Enqueue")
    with daemon.schedules() as schedules:
        moment = int(schedules.store.now()) - 5
        schedules.add("s1", "enqueue.quick", cron="* * * * * *", next_time=moment, data={"data": {"n": 1}})
    daemon.start()
    daemon.wait_for(lambda: len(daemon.traces("ran")) >= 6 or None)
    daemon.stop()
    ran = Counter(line["key"] for line in daemon.traces("ran"))
    assert [ran[f"s1@{moment + n}"] for n in range(6)] == [1] * 6
    assert all(line["data"] == {"n": 1} for line in daemon.traces("ran"))


def test_functions_get_arguments_and_submit_to_the_queue_of_their_worker(serve: Make) -> None:
    daemon = serve(app="queue_application:app")
    with daemon.schedules() as schedules:
        data = {"day": "2026-11-23", "names": ["Ann"]}
        schedules.add("daily", "queue_application.greet", cron="* * * * *", data=data)
        schedules["daily"].run_now()
    with queue_of(daemon) as queue:
        queue.submit("q1", "queue_application.greet", {"day": "2026-11-23", "names": ["Bob"], "again": True})
        daemon.start()
        daemon.wait_for_trace("greeted", "after q1")
        row = wait_for_status(daemon, "after q1", "finished")
        daemon.wait_for_trace("greeted", "daily")
    assert (row.data, row.priority) == ({"day": "2026-11-23", "names": ["Bob", "again"]}, 4)
    greeted = {line["key"]: (line["day"], line["names"]) for line in daemon.traces("greeted")}
    assert greeted == {
        "daily": ("23.11.", ["Ann"]),
        "q1": ("23.11.", ["Bob"]),
        "after q1": ("23.11.", ["Bob", "again"]),
    }
    daemon.stop()


def test_a_task_of_another_signature_fails_with_the_difference_named(serve: Make) -> None:
    daemon = serve(max_attempts=1)
    with queue_of(daemon) as queue:
        queue.submit("q1", "queue_application.greet", {"date": "2026-11-23", "names": ["Bob"]})
    daemon.start()
    error = str(wait_for_status(daemon, "q1", "failed").last_error)
    assert "greet(task, day, names, *, again=False): day is missing; date is not a parameter" in error
    daemon.stop()


def test_a_type_has_a_timeout_of_its_own(serve: Make) -> None:
    daemon = serve(task_timeout=30)
    with queue_of(daemon) as queue:
        queue.submit("q1", "timed")
    daemon.start()
    assert "ran longer than the timeout of its type (0.2 s)" in str(wait_for_status(daemon, "q1", "failed").last_error)
    daemon.stop()
