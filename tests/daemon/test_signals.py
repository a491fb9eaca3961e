"""The signals in the manual's table, on a real master with real children."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest

from psched.process.signals import UPGRADE_NOW
from psched.supervisor.pidfile import read_running
from tests.daemon.harness import Daemon, is_alive

HEEDED = 5.0
"""A `child_kill_interval` in seconds, in which a handler that obeys can stop even on a busy machine."""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_graceful_stop_lets_the_running_task_finish_and_takes_no_other(daemon: Daemon, number: int) -> None:
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began")
    daemon.signal(number)
    daemon.wait_for_log("stopping when the running tasks are done")
    daemon.add("s2", "quick")
    daemon.signal(number)  # asking twice is not asking for more
    daemon.go("s1")
    assert daemon.end() == 0
    assert [line["event"] for line in daemon.traces()] == ["began", "ended"]
    assert "key=s1 type=wait finished" in daemon.log


def test_an_immediate_stop_calls_kill_of_the_handler_and_gives_the_task_back_at_once(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon(child_kill_interval=HEEDED).start()
    daemon.add("s1", "heed")
    daemon.wait_for_trace("began")
    assert daemon.end(signal.SIGQUIT) == 0
    assert daemon.traces("stopped")[0]["reason"] == "ImmediateProcessStopError"
    with daemon.schedules() as schedules:
        task = schedules.poll()
        assert task is not None, "it is due at once"
        assert task.key == "s1"
        task.release()


def test_an_immediate_stop_ends_a_deaf_handler_and_its_programs_before_the_task_is_given_back(daemon: Daemon) -> None:
    daemon.add("s1", "parent")
    program = daemon.wait_for_trace("began")["program"]
    family = daemon.master.children(recursive=True)
    assert program in [process.pid for process in family]
    assert daemon.end(signal.SIGQUIT) == 0
    assert not [process for process in family if is_alive(process)]
    with daemon.schedules() as schedules:
        assert schedules.poll() is not None


def test_quit_after_term_hurries_a_stop(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began")
    daemon.signal(signal.SIGTERM)
    daemon.wait_for_log("stopping when the running tasks are done")
    assert daemon.end(signal.SIGQUIT) == 0
    assert not daemon.traces("ended")


def test_a_graceful_stop_turns_immediate_after_child_graceful_kill_limit(
    make_daemon: Callable[..., Daemon],
) -> None:
    daemon = make_daemon(child_graceful_kill_limit=0.3, child_kill_interval=HEEDED).start()
    daemon.add("s1", "heed")
    daemon.wait_for_trace("began")
    assert daemon.end(signal.SIGTERM) == 0
    assert daemon.traces("stopped")[0]["reason"] == "ImmediateProcessStopError"


@pytest.mark.parametrize("type_", ["heed", "wait"])
def test_a_stop_gives_running_tasks_back_before_the_service_manager_kills_the_master(
    make_daemon: Callable[..., Daemon], type_: str
) -> None:
    """One handler stops when asked; the other ignores the request and has to be killed."""
    daemon = make_daemon(child_kill_interval=2)
    daemon.environ["PSCHED_STOP_TIMEOUT"] = "10"
    daemon.start()
    daemon.add("s1", type_)
    daemon.wait_for_trace("began")
    began = time.monotonic()
    assert daemon.end(signal.SIGTERM) == 0
    assert 1 < time.monotonic() - began < 10
    assert "the 10 s for a stop (PSCHED_STOP_TIMEOUT) have nearly passed" in daemon.log
    assert [line["reason"] for line in daemon.traces("stopped")] == ["ImmediateProcessStopError"] * (type_ == "heed")
    assert not daemon.traces("ended")
    with daemon.schedules() as schedules:
        assert schedules.poll() is not None, "it is due at once"


def test_a_stop_that_is_over_in_time_stays_graceful(daemon: Daemon) -> None:
    daemon.environ["PSCHED_STOP_TIMEOUT"] = "900"
    assert daemon.end(signal.SIGTERM) == 0
    assert "nearly over" not in daemon.log


@pytest.mark.parametrize("text", ["soon", "-1", "0", "15min"])
def test_a_stop_timeout_that_is_no_number_of_seconds_is_refused(make_daemon: Callable[..., Daemon], text: str) -> None:
    daemon = make_daemon()
    daemon.environ["PSCHED_STOP_TIMEOUT"] = text
    daemon.start(wait=False)
    assert daemon.end() != 0
    assert (
        f"$PSCHED_STOP_TIMEOUT: expected seconds or a duration (90s, 5m, 2h) > 0 or never, got '{text}'"
        in daemon.errors()
    )


def test_a_graceful_restart_renews_code_and_settings_after_the_running_task(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    old = daemon.wait_for_trace("began")["pid"]
    daemon.edit_app("VERSION = 1", "VERSION = 2")
    daemon.configure(processors=2)
    daemon.signal(signal.SIGUSR1)
    daemon.wait_for_workers(2)
    daemon.add("s2", "quick")
    assert daemon.wait_for_trace("ran", "s2")["version"] == 2
    assert daemon.workers()[1].pid == old, "it is still at its task"
    daemon.go("s1")
    daemon.wait_for_successor(1, old)
    assert daemon.traces("ended")[0]["version"] == 1
    daemon.stop()


def test_an_immediate_restart_gives_the_task_back_and_the_new_code_runs_it(daemon: Daemon) -> None:
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began")
    daemon.edit_app("VERSION = 1", "VERSION = 2")
    daemon.signal(signal.SIGHUP)
    assert daemon.wait_for_trace("began", count=2)["version"] == 2
    daemon.go("s1")
    daemon.wait_for_trace("ended")
    daemon.stop()


def test_processors_may_shrink_and_grow_again(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(processors=3).start()
    for number in (1, 3):
        daemon.configure(processors=number)
        daemon.signal(signal.SIGUSR1)
        daemon.wait_for_workers(number)
    daemon.stop()


def test_usr2_reopens_the_log_of_master_and_children(daemon: Daemon) -> None:
    (daemon.folder / "psched.log").rename(daemon.folder / "psched.log.1")
    daemon.signal(signal.SIGUSR2)
    daemon.wait_for((daemon.folder / "psched.log").exists)
    daemon.add("s2", "quick", cron="* * * * * *")
    daemon.wait_for_log("key=s2 type=quick finished")
    daemon.stop()
    assert "psched.supervisor.run_master: ended" in daemon.log
    assert "received SIGUSR2" in (daemon.folder / "psched.log.1").read_text()


@pytest.mark.parametrize("number", [signal.SIGWINCH, UPGRADE_NOW])
def test_a_binary_upgrade_starts_a_new_master_before_the_old_one_stops(
    make_daemon: Callable[..., Daemon], number: int
) -> None:
    daemon = make_daemon(pid_file="psched.pid").start(start_new_session=True)
    daemon.add("s1", "wait")
    daemon.wait_for_trace("began")
    old = daemon.process.pid
    daemon.forget_ready()
    daemon.signal(number)
    new = daemon.wait_until_ready()
    assert new != old
    assert read_running(daemon.folder / "psched.pid") == new
    if number == signal.SIGWINCH:
        daemon.add("s2", "quick")
        assert daemon.wait_for_trace("ran", "s2")["master"] == new
        assert daemon.process.poll() is None, "the old one has a task to finish"
        daemon.go("s1")
    assert daemon.end() == 0
    assert read_running(daemon.folder / "psched.pid") == new
    if number != signal.SIGWINCH:
        assert daemon.wait_for_trace("began", "s1", count=2)["master"] == new
    os.kill(new, signal.SIGQUIT)
    daemon.wait_for(lambda: read_running(daemon.folder / "psched.pid") is None)
