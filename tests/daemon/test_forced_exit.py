"""A forced exit succeeds, whatever handlers have done to the process."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil

from faultlab.prerequisites import not_run
from psched.process.child_protocol import FORCED
from tests.daemon.harness import is_alive, wait_for

_LEAVE = """
import os, subprocess
from psched.process.running_table import RunningTable
from psched.execution.forced_exit import ForcedExit
from psched.execution.active_runs import ActiveRuns
roots = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.setresuid(65534, 65534, 65534)
ours = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print(roots.pid, ours.pid, flush=True)
ForcedExit([], ActiveRuns(RunningTable(1)), print).leave("as told")
"""


def test_a_forced_exit_succeeds_though_some_descendants_cannot_be_killed() -> None:
    if os.geteuid() != 0:
        not_run("only root can become another user, run the tests as root")
    left = subprocess.Popen([sys.executable, "-c", _LEAVE], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert left.stdout is not None
    roots, ours = (psutil.Process(int(word)) for word in left.stdout.readline().split())
    try:
        _, said = left.communicate(timeout=15)
        assert left.returncode == FORCED
        assert f"pid {roots.pid} runs as another user".encode() in said
        wait_for(lambda: not is_alive(ours))
        assert is_alive(roots)
    finally:
        left.kill()
        roots.kill()


_LEAVE_WHILE_LOGGING = """
import logging, os, signal, subprocess, threading, time
from psched.process.running_table import RunningTable
from psched.execution.forced_exit import ForcedExit
from psched.execution.active_runs import ActiveRuns
roots = subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
os.setresuid(65534, 65534, 65534)
print(roots.pid, flush=True)
leaving, logs = threading.Event(), threading.Event()
park = signal.pthread_kill

def park_while_it_logs(thread, number):
    leaving.set()
    logs.wait()
    park(thread, number)

signal.pthread_kill = park_while_it_logs
forced_exit = ForcedExit([], ActiveRuns(RunningTable(1)), print)
threading.Thread(target=forced_exit.leave, args=("as told",)).start()
leaving.wait()
logging.lastResort.acquire()
logs.set()
time.sleep(60)
"""


def test_a_forced_exit_does_not_wait_for_a_parked_handler_that_was_logging() -> None:
    if os.geteuid() != 0:
        not_run("only root can become another user, run the tests as root")
    with subprocess.Popen([sys.executable, "-c", _LEAVE_WHILE_LOGGING], stdout=subprocess.PIPE) as left:
        assert left.stdout is not None
        roots = psutil.Process(int(left.stdout.readline()))
        try:
            assert left.wait(timeout=15) == FORCED
        finally:
            left.kill()
            roots.kill()
