"""The handlers of trials, which record their runs, and misbehave as their data says. Runs in children.

The handlers write whole lines to a descriptor that is opened before the first fault.
"""

from __future__ import annotations

import json
import os
import time
import uuid
import zlib
from pathlib import Path
from typing import ClassVar

from psched.application import Base, Dispatch
from psched.clock import boottime

FILE = Path(os.environ["PSCHED_TRIAL_RECORDS"])
NODE = os.environ["PSCHED_TRIAL_NODE"]
SIGN_EVERY = 0.05
"""Seconds between two signs of life."""

_RECORDS = os.open(FILE, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)


class Work(Base):
    """Works for the `seconds` in its data, records signs of life, and finishes the task.

    `together`: the run is settled together with others. `stubborn`: the handler ignores requests to stop.
    """

    def run(self) -> None:
        self.id = uuid.uuid4().hex
        task = self.task
        known = {"key": task.row.key, "occurrence": task.scheduled_time, "fence": task.fence}
        self.note("begin", **known, pid=os.getpid(), node=NODE, wall=time.time())
        self.work()
        self.note("end")
        self.settle()

    def work(self) -> None:
        """Work, but end early if the run is asked to stop."""
        end = boottime() + self.task.data.get("seconds", 0)
        while (left := end - boottime()) > 0:
            time.sleep(min(left, SIGN_EVERY))
            self.note("sign")
            if self.task.stop_reason is not None and not self.task.data.get("stubborn"):
                raise self.task.stop_reason

    def settle(self) -> None:
        """Finish the task, and record the outcome.

        The outcome of a run that is settled together with others is not recorded.
        """
        if self.task.data.get("together"):
            self.task.conclude()
            return
        try:
            self.task.finish()
        except Exception as error:
            self.note("settled", outcome=type(error).__name__)
            raise
        self.note("settled", outcome="finished")

    def note(self, event: str, **more: object) -> None:
        """Append one line to the records."""
        line = {"run": self.id, "event": event, "at": boottime(), **more}
        os.write(_RECORDS, json.dumps(line).encode() + b"\n")

    def first_time(self) -> bool:
        """Return whether this is the first run of its key. Works even if the store does not count attempts."""
        mark = FILE.parent / f"{self.task.key}.mark"
        try:
            mark.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True


class Flaky(Work):
    """Raises at its first run."""

    def work(self) -> None:
        if self.first_time():
            self.note("settled", outcome="raised")
            raise ValueError("as told")


class Exit(Work):
    """Ends its process at its first run, as a crash of the interpreter would."""

    def work(self) -> None:
        if self.first_time():
            self.note("settled", outcome="exited")
            os._exit(1)


class Bomb(Work):
    """At its first run, leaves a dozen sleeping processes behind, and ends its own process."""

    def work(self) -> None:
        if not self.first_time():
            return
        for _ in range(12):
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        self.note("settled", outcome="exited")
        os._exit(1)


class Moody(Work):
    """Fails at each attempt of certain occurrences: about one in `fails` (in its data).

    Also fails at its time limit.
    """

    def work(self) -> None:
        fails = self.task.data.get("fails")
        try:
            super().work()
            if fails and zlib.crc32(f"{self.task.key}/{self.task.scheduled_time}".encode()) % fails == 0:
                raise ValueError("as told")
        except (ValueError, TimeoutError):
            self.note("settled", outcome="raised")
            raise


class Handlers(Dispatch):
    """Routes the name of each handler class, in lower case, to this class.

    Also routes the type of which only this node runs tasks.
    """

    routes: ClassVar = {
        f"only-{NODE}": Work,
        **{kind.__name__.lower(): kind for kind in (Work, Moody, Flaky, Exit, Bomb)},
    }
