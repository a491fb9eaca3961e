"""The fetching child acquires rows for its siblings; whichever process dies or freezes, no task is lost or run twice.

Prefetched rows have a lease of 30 s and more. So a row that only the end of its lease makes due again fails a test.
"""

from __future__ import annotations

import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psutil
import pytest

from faultlab.servers import Server
from psched.model import NewTask
from psched.queue.queue import Queue, open_queue
from psched.store import holder_name
from tests.daemon.harness import Daemon, children_of
from tests.daemon.test_queue import APPLICATION
from tests.daemon.test_waiting import SOON, rarely_polling

Make = Callable[..., Daemon]

WORKERS = 3
TASKS = 400
"""The number of tasks: more than the workers run before a test kills a process."""
EARLY = 40
"""A test kills a process after this many runs."""
LONG_TASKS = 1000
MOST_CONNECTIONS = 6
"""Two for each section, one to listen, and one for the node's heartbeat."""
SECOND_SWEEP = 6.0
"""In this many seconds a new fetching child has released unknown leases for the second time."""


@contextmanager
def served(make_daemon: Make, url: str, **config: Any) -> Iterator[tuple[Daemon, Queue]]:
    """Prepare a daemon with `WORKERS` workers and an empty queue, but do not start it. Stop it at the end."""
    section = {"task_heartbeat_interval": 0.1}
    keys = {"app": "queue_application:app", "url": url, "processors": WORKERS, "child_kill_interval": 2, **config}
    daemon = make_daemon(schedules={}, queue=section, **keys)
    shutil.copy(APPLICATION, daemon.folder)
    queue_section = daemon.settings().queue
    assert queue_section is not None
    with open_queue(queue_section, holder_name("test")) as queue:
        queue.store.create_tables()
        yield daemon, queue
        if daemon.process.poll() is None:
            daemon.stop()


def submit_short(queue: Queue, count: int = TASKS) -> list[str]:
    keys = [f"t{number:04}" for number in range(count)]
    queue.submit_many(NewTask(key, "short") for key in keys)
    return keys


def fetcher(daemon: Daemon) -> psutil.Process | None:
    """Return the fetching child if it is up, else None."""
    for child in children_of(daemon.master):
        try:
            words = " ".join(child.cmdline()).split()
        except psutil.Error:
            continue
        if words[:2] == ["psched:", "fetcher"] and words[2:3] not in ([], ["booting"]):
            return child
    return None


def wait_for_next_fetcher(daemon: Daemon, old: psutil.Process) -> psutil.Process:
    return daemon.wait_for(lambda: (found := fetcher(daemon)) and (found if found.pid != old.pid else None))


def wait_for_runs(daemon: Daemon, count: int) -> None:
    daemon.wait_for(lambda: len(daemon.traces("ended")) >= count)


def wait_until_finished(daemon: Daemon, queue: Queue, type_: str = "short") -> None:
    daemon.wait_for(lambda: {row.status for row in queue.list(type=type_)} == {"finished"})


def ran_of(daemon: Daemon, keys: list[str]) -> set[str]:
    return {trace["key"] for trace in daemon.traces("ran")} & set(keys)


def begins(daemon: Daemon) -> Counter[str]:
    return Counter(trace["key"] for trace in daemon.traces("began"))


@pytest.fixture
def url(postgresql: Server) -> Iterator[str]:
    with postgresql.database() as url:
        yield url


def test_the_fetching_child_runs_nothing_and_all_workers_get_tasks(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url) as (daemon, queue):
        daemon.start()
        for number in range(WORKERS):
            queue.submit(f"long{number}", "heed")
        pids = {daemon.wait_for_trace("began", f"long{number}")["pid"] for number in range(WORKERS)}
        assert pids == {process.pid for process in daemon.workers().values()}


def test_all_tasks_run_once_though_the_fetching_child_is_killed_among_them(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url) as (daemon, queue):
        keys = submit_short(queue)
        daemon.start()
        for count in (EARLY, 3 * EARLY):
            wait_for_runs(daemon, count)
            old = daemon.wait_for(lambda: fetcher(daemon))
            old.kill()
            wait_for_next_fetcher(daemon, old)
        wait_until_finished(daemon, queue)
        assert begins(daemon) == Counter(keys)
        assert "ERROR" in daemon.log, "that the fetcher was killed is logged"
        assert "fetcher" in daemon.log


def test_the_fetching_child_keeps_its_connections_while_it_acquires_and_settles(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url) as (daemon, queue):
        submit_short(queue, LONG_TASKS)
        daemon.start()
        wait_for_runs(daemon, EARLY)
        process = daemon.wait_for(lambda: fetcher(daemon))
        ports = set()
        while len(daemon.traces("ended")) < LONG_TASKS:
            ports |= {connection.laddr.port for connection in process.net_connections("inet")}
        wait_until_finished(daemon, queue)
        assert len(ports) <= MOST_CONNECTIONS


def test_a_task_that_runs_while_the_fetching_child_is_killed_runs_on(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url) as (daemon, queue):
        daemon.start()
        queue.submit("long", "heed")
        daemon.wait_for_trace("began", "long")
        submit_short(queue)
        wait_for_runs(daemon, EARLY)
        old = daemon.wait_for(lambda: fetcher(daemon))
        old.kill()
        wait_for_next_fetcher(daemon, old)
        wait_until_finished(daemon, queue)
        daemon.pause(SECOND_SWEEP)
        assert max(begins(daemon).values()) == 1
        queue["long"].cancel_request()
        daemon.wait_for(lambda: queue["long"].metadata().status == "cancelled")
        assert daemon.traces("stopped", "long")[0]["reason"] == "CancelRequestedError"


def test_the_rows_of_a_killed_worker_run_soon(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url) as (daemon, queue):
        keys = submit_short(queue)
        daemon.start()
        for slot in range(1, WORKERS + 1):
            wait_for_runs(daemon, slot * EARLY)
            daemon.worker(slot).kill()
        wait_until_finished(daemon, queue)
        counts = begins(daemon)
        assert set(counts) == set(keys)


def test_all_tasks_run_though_the_fetching_child_and_a_worker_are_killed_together(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url) as (daemon, queue):
        keys = submit_short(queue)
        daemon.start()
        wait_for_runs(daemon, EARLY)
        old, worker = daemon.wait_for(lambda: fetcher(daemon)), daemon.worker(2)
        for process in (old, worker):
            process.kill()
        wait_until_finished(daemon, queue)
        assert set(begins(daemon)) == set(keys)


def test_a_frozen_fetching_child_is_replaced_sooner_than_others(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url, child_heartbeat_interval=20, child_heartbeat_limit=60) as (daemon, queue):
        daemon.start()
        frozen = daemon.wait_for(lambda: fetcher(daemon))
        frozen.suspend()
        queue.submit("q1", "quick")
        daemon.wait_for_trace("ran", "q1")
        assert wait_for_next_fetcher(daemon, frozen).pid != frozen.pid
        assert "was silent for too long and counts as frozen; killing it" in daemon.log


@pytest.mark.parametrize(("prefetch", "kept"), [("auto", 2), (0, 1)])
def test_the_other_workers_run_new_tasks_whichever_one_is_frozen(
    make_daemon: Make, url: str, prefetch: str | int, kept: int
) -> None:
    """A frozen worker keeps at most two tasks: the second is sent shortly before the expected end of the first.

    With `task_prefetch: 0` no task is sent in advance.
    """
    with served(make_daemon, url, child_heartbeat_limit=60, task_prefetch=prefetch) as (daemon, queue):
        daemon.start()
        for slot in range(1, WORKERS + 1):
            frozen = daemon.worker(slot)
            frozen.suspend()
            keys = [f"of{slot}.{number}" for number in range(6)]
            for others, key in enumerate(keys):
                queue.submit(key, "quick")
                daemon.wait_for(lambda keys=keys, count=others + 1 - kept: len(ran_of(daemon, keys)) >= count)
            frozen.resume()
            for key in keys:
                assert daemon.wait_for_trace("ran", key)
        assert len(daemon.traces("ran")) == 6 * WORKERS


def test_the_row_of_a_frozen_worker_runs_when_it_has_been_killed(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url, child_heartbeat_limit=1) as (daemon, queue):
        daemon.start()
        frozen = daemon.worker(1)
        frozen.suspend()
        for number in range(WORKERS):
            queue.submit(f"long{number}", "heed")
        for number in range(WORKERS):
            daemon.wait_for_trace("began", f"long{number}")
        assert max(begins(daemon).values()) == 1


def test_the_fetching_child_learns_of_occurrences_that_a_run_makes_due(make_daemon: Make, mariadb: Server) -> None:
    with mariadb.database() as url, rarely_polling(make_daemon, url, processors=2) as (daemon, _):
        daemon.add("again", "wait", cron="*/5 * * * * *")
        daemon.start()
        daemon.wait_for_trace("began", "again")
        daemon.pause(1.0)  # the fetching child polls meanwhile, and finds a lease
        daemon.go("again")
        daemon.wait_for_trace("began", "again", count=2, within=5 + SOON)


@pytest.mark.parametrize("number", [signal.SIGUSR1, pytest.param(signal.SIGHUP, marks=pytest.mark.trial)])
def test_a_reload_among_many_tasks_loses_none(make_daemon: Make, url: str, number: signal.Signals) -> None:
    with served(make_daemon, url) as (daemon, queue):
        keys = submit_short(queue)
        daemon.start()
        wait_for_runs(daemon, EARLY)
        before = {process.pid for process in children_of(daemon.master)}
        daemon.signal(number)
        daemon.wait_for(lambda: before.isdisjoint(process.pid for process in children_of(daemon.master)))
        wait_until_finished(daemon, queue)
        assert begins(daemon) == Counter(keys)


def test_a_reload_waits_for_a_running_task_while_the_other_workers_are_replaced(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url) as (daemon, queue):
        daemon.start()
        queue.submit("long", "heed")
        busy = daemon.wait_for_trace("began", "long")["pid"]
        before = {process.pid for process in children_of(daemon.master)}
        daemon.signal(signal.SIGUSR1)
        daemon.wait_for(lambda: before & {process.pid for process in children_of(daemon.master)} == {busy})
        queue.submit("q1", "quick")
        daemon.wait_for_trace("ran", "q1")
        queue["long"].cancel_request()
        daemon.wait_for(lambda: queue["long"].metadata().status == "cancelled")
        daemon.wait_for(lambda: before.isdisjoint(process.pid for process in children_of(daemon.master)))
        assert begins(daemon)["long"] == 1


def test_a_graceful_stop_among_many_tasks_ends_those_that_run_and_releases_the_others(
    make_daemon: Make, url: str
) -> None:
    with served(make_daemon, url) as (daemon, queue):
        submit_short(queue)
        daemon.start()
        wait_for_runs(daemon, EARLY)
        assert daemon.end(signal.SIGTERM) == 0
        began = {trace["key"] for trace in daemon.traces("began")}
        assert began == {trace["key"] for trace in daemon.traces("ended")}
        rows = list(queue.list(type="short"))
        assert {row.key for row in rows if row.status == "finished"} == began
        assert {row.status for row in rows} == {"finished", "waiting"}


def test_a_worker_that_leaves_after_its_number_of_tasks_leaves_no_row_behind(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url, max_request_per_child=40) as (daemon, queue):
        keys = submit_short(queue, 200)
        daemon.start()
        wait_until_finished(daemon, queue)
        assert begins(daemon) == Counter(keys)


def test_a_large_task_reaches_its_worker_at_once(make_daemon: Make, url: str) -> None:
    with served(make_daemon, url) as (daemon, queue):
        daemon.start()
        queue.submit("large", "short", {"x": "y" * 5_000_000})
        daemon.wait_for_trace("ended", "large")
        wait_until_finished(daemon, queue)


def test_a_fetching_child_that_follows_while_a_worker_leaves_still_releases_leases(make_daemon: Make, url: str) -> None:
    """The leaving worker does not report to the new fetching child."""
    app = ["queue_application:app", "queue_application:Lingering"]
    with served(make_daemon, url, app=app, max_request_per_child=1) as (daemon, queue):
        daemon.start()
        queue.submit("q1", "quick")
        daemon.wait_for(lambda: (daemon.folder / "lingering").exists() or None)
        old = daemon.wait_for(lambda: fetcher(daemon))
        old.kill()
        wait_for_next_fetcher(daemon, old)
        queue.submit("stuck", "heed")
        psutil.Process(daemon.wait_for_trace("began", "stuck")["pid"]).kill()
        daemon.wait_for_trace("began", "stuck", count=2)


def test_the_rows_of_a_fetching_child_that_a_reload_has_to_kill_run_soon(make_daemon: Make, url: str) -> None:
    """The next fetching child holds its leases under another name, so it cannot extend the old ones."""
    with served(make_daemon, url, child_kill_interval=0.1) as (daemon, queue):
        keys = submit_short(queue)
        daemon.start()
        wait_for_runs(daemon, EARLY)
        old = daemon.wait_for(lambda: fetcher(daemon))
        old.suspend()
        daemon.signal(signal.SIGHUP)
        wait_until_finished(daemon, queue)
        assert set(begins(daemon)) == set(keys)


@pytest.mark.trial  # how many workers die within 0.2 s of their fork, depends on the load of the machine
def test_the_waiting_tasks_of_workers_that_die_early_run_soon(make_daemon: Make, url: str) -> None:
    """The next worker is not forked immediately, so a recovery child releases the leases of the runs."""
    with served(make_daemon, url, child_fork_frequency_limit=5) as (daemon, queue):
        keys = [f"t{number:04}" for number in range(TASKS)]
        queue.submit_many(
            NewTask(key, "mixed", {"dies": number > EARLY and number % 30 == 0}) for number, key in enumerate(keys)
        )
        daemon.start()
        wait_until_finished(daemon, queue, "mixed")
        assert {trace["key"] for trace in daemon.traces("ran")} == set(keys)
