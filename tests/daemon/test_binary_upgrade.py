"""Binary upgrade: the old master stops only when the new one is ready."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from psched.process.signals import UPGRADE_NOW
from psched.supervisor.pidfile import read_running
from tests.daemon.harness import Daemon, is_alive
from tests.daemon.test_signals import HEEDED

Make = Callable[..., Daemon]


@pytest.fixture
def detached(make_daemon: Make) -> Daemon:
    """A daemon with a pid file and without a terminal."""
    return make_daemon(pid_file="psched.pid").start(start_new_session=True)


def pid_file(daemon: Daemon) -> Path:
    return daemon.folder / "psched.pid"


def end(daemon: Daemon, pid: int) -> None:
    """Stop a master, which need not be the test's child, and wait for the end of it and its children."""
    master = psutil.Process(pid)
    family = [master, *master.children(recursive=True)]
    master.send_signal(signal.SIGQUIT)
    daemon.wait_until_gone(family)
    assert pid_file(daemon).read_text() == ""


def replace(daemon: Daemon, number: int = signal.SIGWINCH) -> int:
    """Replace the master by a new one, and return the new master's pid."""
    daemon.forget_ready()
    daemon.signal(number)
    return daemon.wait_until_ready()


def break_app(daemon: Daemon) -> None:
    daemon.edit_app("VERSION = 1", "VERSION = ")


def break_config(daemon: Daemon) -> None:
    daemon.config.write_text("development: {}")


@pytest.mark.parametrize("break_it", [break_app, break_config])
def test_a_new_master_that_cannot_start_leaves_the_old_one(
    detached: Daemon, break_it: Callable[[Daemon], None]
) -> None:
    app = (detached.folder / "app.py").read_text()
    break_it(detached)
    detached.signal(signal.SIGWINCH)
    detached.wait_for_log("upgrade refused: the new master ended with exit code 1")
    assert read_running(pid_file(detached)) == detached.process.pid
    detached.write_app(app)
    detached.configure()
    detached.add("s1", "quick")
    assert detached.wait_for_trace("ran")["master"] == detached.process.pid
    new = replace(detached)
    assert detached.end() == 0
    end(detached, new)


def test_a_new_master_that_is_never_ready_is_given_up_with_its_children(make_daemon: Make) -> None:
    detached = make_daemon(pid_file="psched.pid").start(options={"upgrade_limit": 3}, start_new_session=True)
    detached.edit_app("VERSION = 1", "time.sleep(60)")
    old = set(detached.workers().values())
    detached.signal(UPGRADE_NOW)
    detached.wait_for_log("upgrade refused: the new master was not ready within 3 s")
    detached.wait_for(lambda: set(detached.master.children(recursive=True)) == old)
    assert read_running(pid_file(detached)) == detached.process.pid
    detached.stop()


def test_a_stop_ends_a_new_master_that_is_starting(detached: Daemon) -> None:
    detached.edit_app("VERSION = 1", "time.sleep(60)")
    detached.signal(signal.SIGWINCH)
    detached.wait_for_log("a new master is starting")
    detached.stop()
    assert pid_file(detached).read_text() == ""


def test_a_new_master_whose_old_one_was_killed_meanwhile_takes_over(detached: Daemon) -> None:
    detached.edit_app("VERSION = 1", "time.sleep(1)\nVERSION = 2")
    detached.forget_ready()
    detached.signal(signal.SIGWINCH)
    detached.wait_for_log("a new master is starting")
    detached.wait_for(lambda: any(child not in detached.workers().values() for child in detached.master.children()))
    detached.process.kill()
    detached.process.wait()
    new = detached.wait_until_ready()
    assert read_running(pid_file(detached)) == new
    detached.add("s1", "quick")
    assert detached.wait_for_trace("ran")["version"] == 2
    end(detached, new)


def test_a_new_master_that_is_killed_leaves_the_old_one(detached: Daemon) -> None:
    detached.edit_app("VERSION = 1", "time.sleep(60)")
    detached.signal(signal.SIGWINCH)
    new = detached.wait_for(
        lambda: next((child for child in detached.master.children() if child not in detached.workers().values()), None)
    )
    family = detached.wait_for(new.children)
    new.kill()
    detached.wait_for_log("upgrade refused: the new master was killed by signal 9")
    detached.wait_for(lambda: not [process for process in family if is_alive(process)])
    detached.stop()


def test_a_master_may_be_replaced_again_and_again(detached: Daemon) -> None:
    first = detached.process.pid
    second = replace(detached)
    assert detached.end() == 0
    detached.forget_ready()
    psutil.Process(second).send_signal(UPGRADE_NOW)
    third = detached.wait_until_ready()
    assert len({first, second, third}) == 3
    detached.wait_for(lambda: not psutil.pid_exists(second) or None)
    assert read_running(pid_file(detached)) == third
    end(detached, third)


def test_a_restart_is_refused_while_a_new_master_starts(detached: Daemon) -> None:
    detached.edit_app("VERSION = 1", "time.sleep(60)")
    detached.signal(signal.SIGWINCH)
    detached.wait_for_log("a new master is starting")
    detached.signal(signal.SIGUSR1)
    detached.wait_for_log("reload refused: a new master is starting")
    detached.stop()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGQUIT])
def test_a_stop_reaches_the_old_master_that_still_runs_a_task(make_daemon: Make, number: int) -> None:
    """A service manager signals the new master only.

    When this master has ended, the service manager kills what is left.
    """
    detached = make_daemon(pid_file="psched.pid", child_kill_interval=HEEDED).start(start_new_session=True)
    detached.add("s1", "heed")
    detached.wait_for_trace("began")
    old = detached.master
    new = psutil.Process(replace(detached))
    detached.wait_for_log(f"the new master is up (pid {new.pid}); this master stops")
    new.send_signal(number)
    detached.wait_for_log(f"stopping the old master (pid {old.pid}), which still runs tasks")
    if number == signal.SIGTERM:
        detached.wait_for_log("stopping when the running tasks are done", 3)
        assert is_alive(old)
        assert is_alive(new), "it waits for the old one"
        new.send_signal(signal.SIGQUIT)
    detached.wait_until_gone([old, new])
    assert detached.traces("stopped")[0]["reason"] == "ImmediateProcessStopError"
    with detached.schedules() as schedules:
        assert schedules.poll() is not None, "it is due at once"


def test_a_stop_does_not_kill_a_new_master_that_the_old_one_has_not_yet_seen_ready(make_daemon: Make) -> None:
    """The new master passes the stop on. The old one may read it together with the report that the new master is up."""
    detached = make_daemon(pid_file="psched.pid").start(start_new_session=True)
    detached.add("s1", "heed")
    detached.wait_for_trace("began")
    old = detached.master
    detached.forget_ready()
    detached.signal(signal.SIGWINCH)
    detached.wait_for_log("a new master is starting")
    old.suspend()
    new = psutil.Process(detached.wait_until_ready())
    new.send_signal(signal.SIGTERM)
    detached.wait_for_log(f"stopping the old master (pid {old.pid}), which still runs tasks")
    old.resume()
    detached.wait_for_log(f"the new master is up (pid {new.pid}); this master stops")
    assert is_alive(new), "it waits for the old one"
    new.send_signal(signal.SIGQUIT)
    detached.wait_until_gone([old, new])
