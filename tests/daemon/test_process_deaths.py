"""What becomes of tasks and processes when a child or the master dies or freezes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import psutil
import pytest

from psched.model import worker_died
from tests.daemon.harness import Daemon, is_alive

Make = Callable[..., Daemon]


def test_a_killed_child_is_replaced_at_once_and_its_task_runs_again(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    first = daemon.wait_for_trace("began")
    psutil.Process(first["pid"]).kill()
    second = daemon.wait_for_trace("began", count=2)
    assert second["at"] - first["at"] < 60, "not only when its lease ended"
    assert second["scheduled_time"] == first["scheduled_time"]
    daemon.go("s1")
    daemon.wait_for_trace("ended")
    assert "was killed by SIGKILL while running schedules:s1; replacing it" in daemon.log
    assert "released 1 lease of" in daemon.log
    daemon.stop()


def test_when_the_recovering_child_dies_the_next_one_recovers(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    killed = daemon.wait_for_trace("began")["pid"]
    daemon.edit_app("VERSION = 1", "time.sleep(60)")
    psutil.Process(killed).kill()
    recovery_child = daemon.wait_for_successor(1, killed)
    daemon.wait_for(lambda: "psched: worker 1 booting" in daemon.titles())
    daemon.edit_app("time.sleep(60)", "VERSION = 2")
    recovery_child.kill()
    assert daemon.wait_for_trace("began", count=2)["version"] == 2
    daemon.go("s1")
    daemon.stop()


def test_the_rest_of_a_crashed_childs_process_group_is_killed(daemon: Daemon) -> None:
    daemon.add("s1", "stay")
    daemon.add("s2", "wait")
    program = psutil.Process(daemon.wait_for_trace("forked")["program"])
    daemon.wait_for_trace("began", "s2")
    daemon.worker().kill()
    daemon.wait_until_gone([program])
    daemon.go("s2")
    daemon.stop()


def test_a_program_in_a_session_of_its_own_is_killed_before_its_task_is_given_back(daemon: Daemon) -> None:
    daemon.add("s1", "parent")
    began = daemon.wait_for_trace("began")
    program = psutil.Process(began["program"])
    psutil.Process(began["pid"]).kill()
    second = daemon.wait_for_trace("began", count=2)
    assert not is_alive(program)
    assert daemon.log.index("killing a process left by a dead child: sleep") < daemon.log.index("released 1")
    assert is_alive(psutil.Process(second["program"]))
    daemon.stop()


def test_a_program_that_was_set_free_lives_on_and_is_reaped_when_it_ends(make_daemon: Make) -> None:
    daemon = make_daemon(child_heartbeat_interval=20, child_heartbeat_limit=60).start()
    daemon.pause(1.2)  # until the master rests after the start
    daemon.add("s1", "daemonise")
    program = psutil.Process(daemon.wait_for_trace("ran")["program"])
    daemon.wait_for(lambda: program.ppid() == daemon.master.pid)
    daemon.pause(3)  # within a second the master has seen it, long before the next beat
    killed = daemon.worker()
    killed.kill()
    daemon.wait_for_successor(1, killed.pid)
    assert is_alive(program)
    program.kill()
    daemon.wait_for(lambda: not psutil.pid_exists(program.pid) or None)
    daemon.stop()


@pytest.mark.parametrize("handler", ["wait", "heed", "parent", "frozen", "stopped"])
def test_nothing_outlives_a_killed_master(make_daemon: Make, handler: str) -> None:
    daemon = make_daemon(processors=2, child_heartbeat_limit=1).start()
    daemon.add("s1", handler)
    daemon.wait_for_trace("began")
    family = daemon.master.children(recursive=True)
    daemon.process.kill()
    daemon.process.wait()
    daemon.wait_for(lambda: not [process for process in family if is_alive(process)], within=5)


def test_the_lease_of_an_orphan_is_given_back(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began")
    daemon.process.kill()
    with daemon.schedules() as schedules:
        task = daemon.wait_for(schedules.poll)
        assert task.key == "s1"
        task.release()
    daemon.process.wait()


@pytest.mark.parametrize("handler", ["frozen", "stopped"])
def test_a_frozen_child_is_killed_and_replaced(make_daemon: Make, handler: str) -> None:
    daemon = make_daemon(child_heartbeat_limit=0.5).start()
    daemon.add("s1", handler)
    frozen = daemon.wait_for_trace("began")["pid"]
    daemon.wait_for_successor(1, frozen)
    daemon.wait_for_log("was silent for too long and counts as frozen; killing it while running schedules:s1")
    daemon.edit_app("re.match", "print")
    daemon.edit_app("os.kill(os.getpid(), signal.SIGSTOP)", "return")
    daemon.signal(signal.SIGHUP)
    daemon.wait_for_log("key=s1 type=" + handler + " finished")
    daemon.stop()


def test_a_frozen_child_delays_neither_its_siblings_nor_a_signal(make_daemon: Make) -> None:
    daemon = make_daemon(processors=2).start()
    daemon.add("s1", "stopped")
    daemon.wait_for_trace("began")
    daemon.add("s2", "quick")
    daemon.wait_for_trace("ran", "s2")
    assert daemon.end(signal.SIGQUIT) == 0, "killed after child_kill_interval"
    assert "did not exit in time" in daemon.log


def test_a_child_is_not_blamed_for_the_time_its_master_stood_still(make_daemon: Make) -> None:
    # The kernel ends a silent child after limit + child_kill_interval + 1.5 s: later than they go on here.
    daemon = make_daemon(child_heartbeat_limit=4, child_kill_interval=10).start()
    worker = daemon.worker()
    for process in (daemon.master, worker):
        process.suspend()
    daemon.pause(6)
    daemon.master.resume()
    daemon.wait_for_log("the master did not run for a while")
    worker.resume()
    daemon.add("s1", "quick")
    assert daemon.wait_for_trace("ran")["pid"] == worker.pid
    daemon.stop()


def test_the_first_early_death_is_replaced_at_once_and_later_ones_no_faster_than_the_limit(make_daemon: Make) -> None:
    daemon = make_daemon(child_fork_frequency_limit=8).start()
    first = daemon.worker()
    first.kill()
    daemon.wait_for_log("was killed by SIGKILL; replacing it")
    second = daemon.wait_for_successor(1, first.pid)
    daemon.worker().kill()
    daemon.wait_for_log("was killed by SIGKILL; next attempt in")
    assert not daemon.workers()
    daemon.wait_for_successor(1, second.pid)
    daemon.stop()


@pytest.mark.parametrize(
    ("handler", "end"),
    [
        ("segfault", "was killed by SIGSEGV"),
        ("os_exit", "ended with exit code 0"),
        ("stopped", "was killed by SIGKILL (it was silent for too long and counts as frozen)"),
    ],
)
def test_a_tasks_error_names_how_its_worker_ended(make_daemon: Make, handler: str, end: str) -> None:
    daemon = make_daemon(child_heartbeat_limit=3).start()
    daemon.add("s1", handler)
    with daemon.schedules() as schedules:
        daemon.wait_for(lambda: getattr(schedules.store.get("s1"), "last_error", None) == worker_died(end))
        schedules["s1"].delete()
    daemon.stop()


def test_a_child_that_cannot_start_backs_off_and_logs_the_reason_once(make_daemon: Make) -> None:
    daemon = make_daemon().start()
    daemon.edit_app("VERSION = 1", "VERSION = ")
    daemon.worker().kill()
    daemon.wait_for_log("cannot start")
    daemon.pause(1.5)
    assert daemon.log.count("cannot start") == 1
    daemon.edit_app("VERSION = ", "VERSION = 2")
    daemon.wait_for_log("is up after")
    daemon.add("s1", "quick")
    assert daemon.wait_for_trace("ran")["version"] == 2
    daemon.stop()


def test_max_request_per_child_recycles_children(make_daemon: Make) -> None:
    daemon = make_daemon(max_request_per_child=2, task_prefetch=0).start()
    daemon.add("s1", "quick", cron="* * * * * *")
    with daemon.schedules() as schedules:
        schedules["s1"].modify(delay=-900)
    daemon.wait_for_trace("ran", count=6)
    pids = [trace["pid"] for trace in daemon.traces("ran")][:6]
    assert pids[0] == pids[1] != pids[2] == pids[3] != pids[4] == pids[5]
    assert "ERROR" not in daemon.log
    daemon.stop()


def test_a_signal_to_a_child_itself_stops_it_gracefully(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    pid = daemon.wait_for_trace("began")["pid"]
    os.kill(pid, signal.SIGTERM)
    daemon.go("s1")
    daemon.wait_for_successor(1, pid)
    assert daemon.traces("ended")
    daemon.stop()
