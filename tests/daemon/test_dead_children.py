"""The leases of a dead worker are released immediately, even if no other worker is forked."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable

import psutil
import pytest

from psched.process.signals import UPGRADE_NOW
from tests.daemon.harness import Daemon, children_of

Make = Callable[..., Daemon]


def _is_given_back(daemon: Daemon, key: str = "s1") -> bool:
    """Wait until another host can acquire the schedule. The lease lasts 300 s, longer than this function waits."""
    with daemon.schedules() as schedules:
        task = daemon.wait_for(schedules.poll)
        task.release()
        return task.key == key


@pytest.mark.parametrize("handler", ["frozen", "stopped"])
def test_an_immediate_stop_gives_back_the_leases_of_a_worker_it_had_to_kill(daemon: Daemon, handler: str) -> None:
    daemon.add("s1", handler)
    daemon.wait_for_trace("began")
    daemon.stop()
    assert "did not exit in time" in daemon.log
    assert _is_given_back(daemon)


def test_a_worker_killed_in_a_graceful_stop_leaves_nothing_leased(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    pid = daemon.wait_for_trace("began")["pid"]
    daemon.signal(signal.SIGTERM)
    daemon.wait_for_log("stopping when the running tasks are done")
    psutil.Process(pid).kill()
    assert daemon.end() == 0
    assert _is_given_back(daemon)


def test_leases_of_a_killed_worker_do_not_wait_for_a_sibling_that_runs_on(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2).start()
    for key in ("s1", "s2"):
        daemon.add(key, "wait")
    killed = daemon.wait_for_trace("began", "s1")["pid"]
    daemon.wait_for_trace("began", "s2")
    daemon.signal(signal.SIGTERM)
    daemon.wait_for_log("stopping when the running tasks are done")
    psutil.Process(killed).kill()
    assert _is_given_back(daemon)
    assert not daemon.traces("ended")
    daemon.go("s2")
    assert daemon.end() == 0


def test_a_run_that_a_sibling_began_since_is_not_released_for_a_dead_worker(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2).start()
    daemon.add("s1", "early", "* * * * * *")
    finished = daemon.wait_for_trace("began")["pid"]
    sibling = daemon.wait_for_trace("began", count=2)["pid"]
    assert sibling != finished
    daemon.signal(signal.SIGTERM)
    daemon.wait_for_log("stopping when the running tasks are done")
    psutil.Process(finished).kill()
    daemon.wait_for_log("releases the leases of 1 dead child")
    daemon.wait_for(lambda: [child.pid for child in children_of(daemon.master)] == [sibling])
    with daemon.schedules() as schedules:
        row = schedules.store.get("s1")
        assert row is not None
        assert row.status == "running"
    daemon.go("s1")
    assert daemon.end() == 0
    assert "released 1 lease" not in daemon.log


def test_a_reload_to_one_worker_takes_no_run_from_a_worker_that_still_ends_its_task(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2).start()
    for key in ("s1", "s2"):
        daemon.add(key, "wait")
        daemon.wait_for_trace("began", key)
    first = daemon.worker(1).pid
    killed, left = sorted(("s1", "s2"), key=lambda key: daemon.traces("began", key)[0]["pid"] != first)
    daemon.configure(processors=1)
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_log("reloading each worker after its task")
    psutil.Process(first).kill()
    daemon.wait_for_log("of dead child")
    assert "released 1 lease" in daemon.log
    daemon.wait_for_trace("began", killed, count=2)
    assert len(daemon.traces("began", left)) == 1
    daemon.stop()


def test_a_binary_upgrade_gives_back_the_leases_of_the_old_masters_workers(daemon: Daemon) -> None:
    daemon.add("s1", "stopped")
    daemon.wait_for_trace("began")
    daemon.edit_app("os.kill(os.getpid(), signal.SIGSTOP)", "return")
    daemon.forget_ready()
    daemon.signal(UPGRADE_NOW)
    new = psutil.Process(daemon.wait_until_ready())
    try:
        daemon.wait_for_trace("began", count=2)
        daemon.end()
    finally:
        new.terminate()
        daemon.wait_until_gone([new])


def test_a_stop_does_not_wait_for_a_database_that_does_not_answer(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    pid = daemon.wait_for_trace("began")["pid"]
    with sqlite3.connect(daemon.folder / "psched.db", isolation_level=None) as busy:
        busy.execute("BEGIN EXCLUSIVE")
        daemon.signal(signal.SIGTERM)
        daemon.wait_for_log("stopping when the running tasks are done")
        psutil.Process(pid).kill()
        daemon.wait_for(lambda: "psched: lease recovery idle" in daemon.titles())
        daemon.signal(signal.SIGQUIT)
        assert daemon.end() == 0
        assert "the leases end after alive_time" in daemon.log
        busy.execute("ROLLBACK")


def test_a_worker_that_ends_by_force_without_leases_needs_no_recovery(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began")
    daemon.stop()
    assert "forced exit" in daemon.log
    assert "lease recovery" not in daemon.log
    assert _is_given_back(daemon)


def test_leases_of_handler_threads_are_given_back_when_their_process_has_ended(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2, processor_type="thread", task_prefetch=0).start()
    for key in ("s1", "s2"):
        daemon.add(key, "wait")
        daemon.wait_for_trace("began", key)
    daemon.stop()
    assert "released 2 leases" in daemon.log
    with daemon.schedules() as schedules:
        tasks = schedules.poll_multi(2)
        assert [task.attempts for task in tasks] == [1, 1], "due at once, and no attempt counted"
        for task in tasks:
            task.release()


def test_a_thread_that_ran_too_long_takes_no_other_run_down_for_long(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2, processor_type="thread", task_prefetch=0, task_timeout=1.5).start()
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began", "s1")
    daemon.pause(0.8)
    daemon.add("s2", "wait")
    daemon.wait_for_trace("began", "s2")
    daemon.wait_for_trace("began", "s2", count=2)
    assert "released 1 lease of" in daemon.log
    daemon.go("s1")
    daemon.go("s2")
    daemon.wait_for_trace("ended", "s1")
    daemon.stop()


def test_handler_threads_release_by_themselves_when_their_master_is_gone(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2, processor_type="thread", task_prefetch=0).start()
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began")
    daemon.process.kill()
    daemon.process.wait()
    assert _is_given_back(daemon)


def test_handler_threads_release_by_themselves_in_a_table_without_holders(make_daemon: Make) -> None:
    daemon = make_daemon(type="rdb_compat", processors=2, processor_type="thread", task_prefetch=0).start()
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began")
    daemon.stop()
    assert _is_given_back(daemon)
