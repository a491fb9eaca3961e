"""The master as process 1 of a process namespace, as in a container.

`scripts/test-container` runs it in a real container.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import psutil
import pytest

from faultlab.prerequisites import not_run
from tests.daemon.harness import HERE, Daemon
from tests.programs import ROOT


@pytest.mark.needs("unshare", "nsenter")
def test_the_commands_reach_a_master_that_is_process_1(make_daemon: Callable[..., Daemon]) -> None:
    daemon = make_daemon(pid_file="psched.pid")
    with started_as_process_1(daemon) as master:
        assert daemon.wait_until_ready() == 1
        refusal = "was not replaced (pid 1 continues): this master is process 1: if it ended"
        assert refusal in command_inside(master, daemon, "upgrade")
        master.send_signal(signal.SIGTERM)
        daemon.wait_until_gone([master])
    assert daemon.log.endswith(" ended\n")


@contextmanager
def started_as_process_1(daemon: Daemon) -> Iterator[psutil.Process]:
    """Start the master as process 1 of a namespace. Yield it as the host sees it."""
    if os.geteuid() != 0:
        not_run("only root makes process namespaces, run the tests as root")
    isolation = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"]
    program = [sys.executable, str(HERE / "master.py"), str(daemon.config)]
    with subprocess.Popen([*isolation, *program], env={**os.environ, "PYTHONPATH": str(ROOT)}) as launcher:
        try:
            [master] = daemon.wait_for(lambda: psutil.Process(launcher.pid).children())
            yield master
        finally:
            launcher.kill()


def command_inside(master: psutil.Process, daemon: Daemon, action: str) -> str:
    entering = ["nsenter", "--target", str(master.pid), "--pid", "--mount", f"--wd={daemon.folder}"]
    argv = [*entering, sys.executable, "-m", "psched.cli.pschedd", "-c", daemon.config, action]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(argv, capture_output=True, text=True, env=environ, timeout=60, check=False)
    return done.stdout + done.stderr
