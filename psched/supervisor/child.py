"""One process that the master has forked: its words, its end, and how to kill it with all it started. In the master."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass

import psutil

from psched.process import channel as pipes
from psched.process.channel import DONE, MasterPipe
from psched.process.signals import name_of


@dataclass(eq=False, slots=True)
class ChildProcess:
    """A child as its master knows it. `born` and `heard` (when it last said anything) are monotonic seconds."""

    name: str
    pid: int
    ends: MasterPipe
    born: float
    heard: float
    ready: bool = False
    gave_back: bool = False
    empty: bool = False
    """It leaves by force, and has given back all that it held."""
    left: bool = False
    """It said goodbye: it holds nothing, and its end is no accident."""
    why: str | None = None
    """What kept it from beginning, in its own words."""
    trouble: str | None = None
    """What keeps it from working at present, in its own words."""
    worked: bool = False
    """It has run a task to its end."""
    killed_here: bool = False
    """This master has killed it."""
    killed_because: str = ""
    """Why this master has killed it."""
    out_of_memory: bool = False
    """The kernel has killed it for lack of memory."""
    code: int | None = None
    """Its exit code once it is gone; a negative signal number when it was killed."""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def hear(self, now: float) -> bool:
        """Take in what it said, and when it has beaten; tell whether it said anything."""
        self.heard = max(self.heard, min(self.ends.beaten(), now))
        lines = self.ends.listen()
        for line in lines:
            self.heard = now
            word, _, rest = line.partition(" ")
            if word == pipes.READY:
                self.ready = True
            elif word == pipes.RAN:
                self.worked = True
            elif word == pipes.GAVE_BACK:
                self.gave_back = True
            elif word == pipes.EMPTY:
                self.empty = True
            elif word == pipes.BYE:
                self.left = True
            elif word == pipes.WHY:
                self.why = rest
            elif word == pipes.TROUBLE:
                self.trouble = rest or None
        return bool(lines)

    @property
    def orderly(self) -> bool:
        """Whether it ended in good order, and not because a handler called `os._exit(0)`."""
        return self.left and self.code == DONE

    @property
    def end(self) -> str:
        """How it ended, for the log."""
        if self.code is None:
            return "is alive"
        if self.out_of_memory:
            return "was killed by the kernel for lack of memory"
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        because = f" (it {self.killed_because})" if self.killed_because else ""
        return f"was killed by {name_of(-self.code)}{because}"

    @property
    def killed(self) -> bool:
        """Whether it ended by SIGKILL: no deed of its own."""
        return self.code == -signal.SIGKILL

    @property
    def gone(self) -> bool:
        """Whether it is dead and buried."""
        return self.code is not None

    def reap(self, now: float) -> bool:
        """Bury it if it is dead: True when it is gone. What an accident left of its process group is killed.

        The group goes before the pid is given back to the system, so that nobody else can have got the number.
        """
        if self.code is None and _is_dead(self.pid):
            self.hear(now)
            if not self.left:
                self._kill_group()
            self.code = _reap(self.pid)
        return self.gone

    def kill(self, because: str = "") -> None:
        """SIGKILL it and everything it has started, whatever session or group that has moved to."""
        self.killed_here = True
        self.killed_because = because
        family = _descendants(self.pid)
        os.kill(self.pid, signal.SIGKILL)  # not reaped yet, so the pid is still its own
        self._kill_group()
        for process in family:
            with suppress(psutil.Error):  # it is gone, or runs as somebody whom we may not kill
                process.kill()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS: not permitted when only the dead are in it
            os.killpg(self.pid, signal.SIGKILL)


def _descendants(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        return []


def _is_dead(pid: int) -> bool:
    """Tell whether our child is dead, without reaping it."""
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


def _reap(pid: int) -> int:
    """Reap our dead child and return its exit code, or minus the signal that killed it."""
    try:
        _, status = os.waitpid(pid, 0)
    except ChildProcessError:
        return -signal.SIGKILL  # somebody else's code in this process has reaped it; how it ended is lost
    return os.waitstatus_to_exitcode(status)
