"""Several daemons and configurations on one host: a command reaches its configuration's daemon, or names the other."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from psched.supervisor.pidfile import read_running
from psched.supervisor.running_masters import is_title, master_title
from tests.daemon.pschedd import Pschedd

_ROOT = "warning: running as root, and so are all handlers"


def _second_configuration(pschedd: Pschedd, kind: str) -> tuple[str, ...]:
    """Write another configuration with the same pid file. Return the options that select it."""
    if kind == "file":
        (pschedd.etc / "other.yml").write_text(pschedd.config.read_text())
        return ("-c", "etc/other.yml")
    pschedd.config.write_text(pschedd.config.read_text() + pschedd.config.read_text().replace("development", "staging"))
    return ("-e", "staging")


@pytest.mark.parametrize("kind", ["file", "environment"])
def test_a_configuration_does_not_reach_the_daemon_of_another_with_its_pid_file(pschedd: Pschedd, kind: str) -> None:
    options = _second_configuration(pschedd, kind)
    pid = pschedd.start()
    holder = f"psched: master [development] {pschedd.config} (pid {pid})"
    held = f"is held by another daemon, {holder}, not by the daemon of "
    codes = {"start": 1, "run": 1, "restart": 1, "stop": 1, "reload": 1, "reopen-logs": 1, "upgrade": 1, "status": 4}
    for action, code in codes.items():
        done = pschedd(action, *options)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1), (action, done)
        assert held in done.stderr
        remedy = "each configuration needs its own pid_file" if action in ("start", "run") else "use --pid-file"
        assert remedy in done.stderr
    assert pschedd.pid == pid
    assert pschedd("start").returncode == 0, "its own configuration's is running"
    assert pschedd("stop", "--pid-file", "etc/psched.pid", *options).returncode == 0
    assert pschedd.pid is None


def test_a_daemon_whose_configuration_vanished_is_named_and_can_be_stopped(pschedd: Pschedd) -> None:
    pid = pschedd.start()
    pschedd.config.rename(pschedd.etc / "away.yml")
    pid_file = pschedd.etc / "psched.pid"
    for action in ("status", "reopen-logs", "stop"):
        first, second = pschedd(action).stderr.splitlines()
        assert first.startswith(f"pschedd: {pschedd.config}: there is no such file")
        assert second == f"pschedd: until this is fixed, use: pschedd {action} --pid-file {pid_file}"
    for action in ("reload", "upgrade"):
        done = pschedd(action, "--pid-file", str(pid_file))
        assert done.returncode == 1
        assert f"(pid {pid} continues" in done.stderr
        assert "there is no such file" in done.stderr + pschedd.log
    assert "worker 1 idle" in pschedd("status", "--pid-file", str(pid_file)).stdout
    assert pschedd("stop", "--pid-file", str(pid_file)).returncode == 0
    assert pschedd.pid is None


def test_a_daemon_with_another_pid_file_than_the_configuration_s_is_named(pschedd: Pschedd) -> None:
    unit = pschedd.etc / "unit.pid"
    assert pschedd("start", "--pid-file", str(unit)).returncode == 0
    pid = read_running(unit)
    for action, code in (("stop", 0), ("status", 3), ("reload", 7)):
        done = pschedd(action)
        assert done.returncode == code
        expected = f"pschedd is not running; a daemon of this configuration runs with --pid-file {unit}\n"
        assert done.stdout + done.stderr == expected
    pschedd.configure("  pid_file: psched.pid\n", "")
    for action in ("stop", "status", "reload", "upgrade", "reopen-logs"):
        first, second = pschedd(action).stderr.splitlines()
        assert "pid_file: missing" in first
        assert second == f"pschedd: until this is fixed, use: pschedd {action} --pid-file {unit}"
    assert read_running(unit) == pid
    assert pschedd("stop", "--pid-file", str(unit)).returncode == 0
    assert read_running(unit) is None


def test_two_instances_of_one_file_are_stopped_one_by_one(pschedd: Pschedd) -> None:
    text = pschedd.config.read_text()
    assert "psched.pid" in text
    pschedd.config.write_text(text + text.replace("development", "staging").replace("psched.pid", "staging.pid"))
    staging = pschedd.etc / "staging.pid"
    pids = pschedd.start(), None if pschedd("start", "-e", "staging").returncode else read_running(staging)
    assert pschedd("stop").returncode == 0
    assert (pschedd.pid, read_running(staging)) == (None, pids[1])
    assert pschedd("stop").stdout == "pschedd is not running\n", "the other instance is none of its daemons"
    assert pschedd("stop", "-e", "staging").returncode == 0
    assert read_running(staging) is None


@pytest.mark.skipif(os.geteuid() != 0, reason="only root is warned")
@pytest.mark.parametrize(("line", "warned"), [("", True), ("  user: root\n", False)])
def test_a_daemon_of_root_s_is_warned_about_unless_the_configuration_says_so(
    pschedd: Pschedd, line: str, warned: bool
) -> None:
    pschedd.config.write_text(pschedd.config.read_text() + line)
    done = pschedd("start")
    assert (done.returncode, _ROOT in done.stderr) == (0, warned)
    assert ("WARNING" in pschedd.log and "running as root" in pschedd.log) == warned
    pschedd("stop")


def test_a_title_that_the_system_cut_off_is_still_the_daemon_s() -> None:
    title = master_title("production", Path("/etc/psched/psched.yml"))
    assert is_title(title, title[:-4])
    assert not is_title(title, master_title("production", Path("/etc/psched/psched.yaml")))
    assert not is_title(title, master_title("production", None))
