"""Each line of the manual's table of signals, on a real master with real children."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from psched.daemon.signals import REPLACE_NOW
from tests.daemon.harness import Daemon, is_alive


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


def test_an_immediate_stop_tells_the_handler_and_gives_the_task_back_at_once(daemon: Daemon) -> None:
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
    daemon = make_daemon(child_graceful_kill_limit=0.3).start()
    daemon.add("s1", "heed")
    daemon.wait_for_trace("began")
    assert daemon.end(signal.SIGTERM) == 0
    assert daemon.traces("stopped")[0]["reason"] == "ImmediateProcessStopError"


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
    assert "psched.worker: ended" in daemon.log
    assert "received SIGUSR2" in (daemon.folder / "psched.log.1").read_text()


@pytest.mark.parametrize("number", [signal.SIGWINCH, REPLACE_NOW])
def test_a_binary_replace_starts_a_new_master_before_the_old_one_stops(
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
    assert (daemon.folder / "psched.pid").read_text() == f"{new}\n"
    if number == signal.SIGWINCH:
        daemon.add("s2", "quick")
        assert daemon.wait_for_trace("ran", "s2")["master"] == new
        assert daemon.process.poll() is None, "the old one has a task to finish"
        daemon.go("s1")
    assert daemon.end() == 0
    assert (daemon.folder / "psched.pid").exists(), "it is the new one's"
    if number != signal.SIGWINCH:
        assert daemon.wait_for_trace("began", "s1", count=2)["master"] == new
    os.kill(new, signal.SIGQUIT)
    daemon.wait_for(lambda: not (daemon.folder / "psched.pid").exists())
