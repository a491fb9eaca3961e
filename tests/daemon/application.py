"""The application of the daemon tests: handlers that write traces, wait, or misbehave. They run in the workers."""

from __future__ import annotations

import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from psched.application import App, Base, Dispatch
from psched.errors import PreemptedError
from psched.task import Task

FOLDER = Path(__file__).parent
VERSION = 1
_MOST_DESCRIPTORS = 100
"""The limit of descriptors of a process whose handler opens all of them."""

app = App()


def trace(event: str, task: Task, **more: object) -> None:
    """Append one line to the file `traces`, by a single write."""
    line = {
        "event": event,
        "key": task.key,
        "pid": os.getpid(),
        "master": os.getppid(),
        "at": time.monotonic(),
        "scheduled_time": task.scheduled_time,
        "version": VERSION,
        **more,
    }
    descriptor = os.open(FOLDER / "traces", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    os.write(descriptor, json.dumps(line).encode() + b"\n")
    os.close(descriptor)


@app.task("quick")
def quick(task: Task) -> None:
    """End immediately."""
    trace("ran", task, random=random.random())


@app.task("wait")
def wait(task: Task) -> None:
    """Run until a file named after the task's key exists. Ignore requests to stop."""
    trace("began", task)
    while not (FOLDER / f"{task.key}.go").exists():
        time.sleep(0.01)
    trace("ended", task)


@app.task("early", finish=False)
def finishes_early(task: Task) -> None:
    """In the first run, finish the task long before the handler returns. In later runs, finish it at the end.

    The handler returns when a file named after the task's key exists.
    """
    began = FOLDER / f"{task.key}.began"
    is_first = not began.exists()
    began.touch()
    if is_first:
        task.finish()
    trace("began", task)
    while not (FOLDER / f"{task.key}.go").exists():
        time.sleep(0.01)
    if not is_first:
        task.finish()
    trace("ended", task)


@app.task("heed", finish=False)
def heed(task: Task) -> None:
    """Run until asked to stop."""
    trace("began", task)
    while task.stop_reason is None:
        time.sleep(0.01)
    trace("stopped", task, reason=type(task.stop_reason).__name__)


@app.task("print")
def prints(task: Task) -> None:
    """Write to stdout and stderr."""
    print("on stdout", flush=True)
    print("on stderr", file=sys.stderr, flush=True)
    trace("ran", task, stdin=sys.stdin.read())


@app.task("parent")
def parent(task: Task) -> None:
    """Start a program in a session of its own, and wait for its end."""
    program = subprocess.Popen(["sleep", "60"], start_new_session=True)
    trace("began", task, program=program.pid)
    program.wait()


@app.task("daemonise")
def daemonises(task: Task) -> None:
    """Start a program in the background that outlives the handler, and return."""
    shell = subprocess.run(["sh", "-c", "setsid sleep 60 >&- 2>&- & echo $!"], check=True, capture_output=True)
    trace("ran", task, program=int(shell.stdout))


@app.task("raise")
def raises(task: Task) -> None:
    trace("ran", task)
    raise ValueError("as told")


@app.task("foreign")
def lets_out_what_another_task_raised(task: Task) -> None:
    trace("ran", task)
    raise PreemptedError("'other': the lease of this run is lost")


@app.task("exit")
def exits(task: Task) -> None:
    trace("ran", task)
    sys.exit(3)


@app.task("os_exit")
def os_exits(task: Task) -> None:
    trace("ran", task)
    os._exit(0)


@app.task("segfault")
def segfaults(task: Task) -> None:
    trace("ran", task)
    signal.signal(signal.SIGSEGV, signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGSEGV)


@app.task("fork")
def forks(task: Task) -> None:
    """Fork, and return in both processes."""
    trace("ran", task)
    pid = os.fork()
    if pid:
        trace("forked", task, program=pid)


@app.task("stay")
def forks_and_stays(task: Task) -> None:
    """Fork a process that lives on after the handler has returned."""
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    trace("forked", task, program=pid)


@app.task("close")
def closes_everything(task: Task) -> None:
    trace("ran", task)
    os.closerange(3, 1000)
    while not (FOLDER / f"{task.key}.go").exists():
        time.sleep(0.01)


@app.task("shut")
def closes_everything_and_returns(task: Task) -> None:
    trace("ran", task)
    os.closerange(3, 1000)


@app.task("reuse")
def closes_and_reuses_everything(task: Task) -> None:
    trace("ran", task)
    os.closerange(3, 1000)
    for number in range(40):
        os.open(FOLDER / f"reused.{number}", os.O_RDWR | os.O_CREAT)
    while not (FOLDER / f"{task.key}.go").exists():
        time.sleep(0.01)


@app.task("leak")
def leaks_all_descriptors(task: Task) -> None:
    """Leave the process without a free file descriptor."""
    trace("ran", task)
    resource.setrlimit(resource.RLIMIT_NOFILE, (_MOST_DESCRIPTORS, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    with suppress(OSError):
        while True:
            os.open(os.devnull, os.O_RDONLY)


@app.task("frozen")
def holds_the_interpreter(task: Task) -> None:
    """Run a loop in C that never lets another thread run."""
    trace("began", task)
    re.match(r"(a+)+$", "a" * 64 + "b")


@app.task("stopped")
def stops_itself(task: Task) -> None:
    trace("began", task)
    os.kill(os.getpid(), signal.SIGSTOP)


@app.task("steal", finish=False)
def takes_all_signals(task: Task) -> None:
    """Ignore the signals and the wakeup descriptor on which the worker relies."""
    for number in (signal.SIGTERM, signal.SIGQUIT, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    signal.set_wakeup_fd(-1)
    trace("began", task)
    while task.stop_reason is None:
        time.sleep(0.01)


class Unsettled(Base):
    """A handler class that returns without settling its task."""

    def run(self) -> None:
        trace("ran", self.task)


class ForeignClass(Base):
    """A handler class without a decider. It raises an error of psched, as if from another task."""

    def run(self) -> None:
        trace("ran", self.task)
        raise PreemptedError("'other': the lease of this run is lost")


class Classes(Dispatch):
    """Routes the types of the handler classes."""

    routes: ClassVar = {"unsettled": Unsettled, "foreign class": ForeignClass}
