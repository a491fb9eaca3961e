"""Handlers that record each run, and work or misbehave as their data says. They run in the workers."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import ClassVar

from psched.application import Base, Dispatch
from psched.clock import boottime

FILE = Path(os.environ["PSCHED_TEST_RECORDS"])


def append(**line: object) -> None:
    """Append one line to the records by a single write, even if the handler has closed its descriptors."""
    descriptor = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)
    os.write(descriptor, json.dumps({**line, "at": boottime(), "wall": time.time()}).encode() + b"\n")
    os.close(descriptor)


class Recorded(Base):
    """Records its begin, its end, and the result of settling. Between begin and end it calls `work`."""

    def run(self) -> None:
        self.id = uuid.uuid4().hex
        task = self.task
        self.note(
            "begin",
            key=task.key,
            occurrence=task.scheduled_time,
            pid=os.getpid(),
            master=os.getppid(),
            fence=task.fence,
            attempts=task.attempts,
        )
        self.work()
        self.note("end")
        self.settle()

    def work(self) -> None:
        """Sleep for the seconds in the schedule's data."""
        time.sleep(self.task.data.get("seconds", 0))

    def settle(self) -> None:
        try:
            self.task.finish()
        except Exception as error:
            self.note("settled", outcome=type(error).__name__)
            raise
        self.note("settled", outcome="finished")

    def note(self, event: str, **more: object) -> None:
        append(run=self.id, event=event, **more)

    def go(self) -> bool:
        """Return whether the test lets this schedule's run end."""
        return (FILE.parent / f"{self.task.key}.go").exists()


class Wait(Recorded):
    """Runs until the test lets it end, and records signs that it works. Ignores requests to stop."""

    def work(self) -> None:
        while not self.go():
            self.note("sign", key=self.task.key, pid=os.getpid())
            time.sleep(0.02)


class Program(Recorded):
    """In its first run it starts a program in another session, and waits for it. In later runs it ends immediately.

    The program works without end, and ignores requests to stop.
    """

    def work(self) -> None:
        if self.go() or (FILE.parent / "program").exists():
            return
        (FILE.parent / "program").touch()
        subprocess.run([sys.executable, __file__, self.id, self.task.key], start_new_session=True, check=True)


class Woken(Recorded):
    """Waits until it has been frozen and woken. Then calls the method that its data names, and records the result."""

    def work(self) -> None:
        while True:
            before = boottime()
            time.sleep(0.001)
            if boottime() - before > 1:
                break

    def settle(self) -> None:
        verb = self.task.data["verb"]
        try:
            getattr(self.task, verb)()
        except Exception as error:
            self.note("settled", outcome=type(error).__name__)
            raise
        self.note("settled", outcome=verb)

    def kill(self, reason: Exception) -> None:
        self.note("told", key=self.task.key, reason=type(reason).__name__)


class Raise(Recorded):
    def work(self) -> None:
        raise ValueError("as told")


class Unsettled(Recorded):
    def settle(self) -> None:
        """Leave the run unsettled."""


class Exit(Recorded):
    def work(self) -> None:
        sys.exit(3)


class Crash(Recorded):
    def work(self) -> None:
        os._exit(1)


class Fork(Recorded):
    """Forks, and returns in both processes."""

    def work(self) -> None:
        os.fork()


class Close(Recorded):
    def work(self) -> None:
        os.closerange(3, 1000)
        time.sleep(60)


class Spin(Recorded):
    """Runs a loop in C that never lets another thread run."""

    def work(self) -> None:
        re.match(r"(a+)+$", "a" * 64 + "b")


class Stop(Recorded):
    def work(self) -> None:
        os.kill(os.getpid(), signal.SIGSTOP)


class Handlers(Dispatch):
    """Routes each handler class by its name in lower case, and `work` to `Recorded`."""

    routes: ClassVar = {
        "work": Recorded,
        **{
            kind.__name__.lower(): kind
            for kind in (Wait, Program, Woken, Raise, Unsettled, Exit, Crash, Fork, Close, Spin, Stop)
        },
    }


def be_a_program(run: str, key: str) -> None:
    """Record signs without end, as the program of a handler."""
    while True:
        append(run=run, event="sign", key=key, pid=os.getpid())
        time.sleep(0.01)


if __name__ == "__main__":
    be_a_program(*sys.argv[1:])
