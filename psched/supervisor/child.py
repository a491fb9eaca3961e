"""One child process: its messages, how it ended, and how to kill it with its descendants. Used in the master."""

from __future__ import annotations

import logging
import math
import os
import re
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from psched.process import child_protocol as protocol
from psched.process.child_spec import ChildSpec
from psched.process.escalation import Escalation
from psched.process.running_table import RunRecord
from psched.process.signals import name_of

log = logging.getLogger(__name__)

_FLAGS = {
    protocol.READY: "ready",
    protocol.RAN: "worked",
    protocol.RECOVERED: "recovered",
    protocol.APPLIED: "applied",
    protocol.EMPTY: "empty",
    protocol.BYE: "left",
}
"""The attribute of `ChildProcess` that each message sets to True."""
_CGROUP_FILES = {"cgroup": "memory.oom_control", "cgroup2": "memory.events"}
_OOM_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_OOM_AGE = 5.0
"""Seconds after which an out-of-memory kill no longer explains the death of a child."""


@dataclass(eq=False, slots=True)
class ChildProcess:
    """A child process. `forked_at` is in monotonic seconds. `spec` is None for a child that is not a worker."""

    name: str
    pid: int
    pipe: protocol.MasterPipe
    escalation: Escalation
    forked_at: float
    spec: ChildSpec | None = None
    ready: bool = False
    recovered: bool = False
    """Whether the child has released the leases of the dead children in its spec."""
    applied: bool = False
    """Whether the child has applied the schedules of its application, or can never apply them."""
    empty: bool = False
    """Whether the child has released all its own leases during a forced exit."""
    left: bool = False
    """Whether the child has reported an orderly end. Then it holds no lease."""
    start_error: str | None = None
    trouble: str | None = None
    worked: bool = False
    killed_here: bool = False
    killed_because: str = ""
    was_frozen: bool = False
    """Whether the master killed the child because it was silent for too long."""
    out_of_memory: bool = False
    code: int | None = None
    """The exit code of the reaped child, negative for a signal; None until it is reaped."""

    def __str__(self) -> str:
        return f"{self.name} (pid {self.pid})"

    def receive(self, now: float) -> bool:
        """Handle the messages of the child. Return whether there were any."""
        messages = self.pipe.receive()
        self.escalation.child_seen(now if messages else min(self.pipe.last_beat(), now))
        for message in messages:
            word, _, rest = message.partition(" ")
            if word in _FLAGS:
                setattr(self, _FLAGS[word], True)
            elif word == protocol.START_ERROR:
                self.start_error = rest
            elif word == protocol.TROUBLE:
                self.trouble = rest or None
        return bool(messages)

    @property
    def orderly(self) -> bool:
        """Whether the child reported an orderly end and exited with code 0. False if a handler called `os._exit(0)`."""
        return self.left and self.code == protocol.DONE

    @property
    def end(self) -> str:
        if self.code is None:
            return "is alive"
        if self.out_of_memory:
            return "was killed by the kernel for lack of memory"
        if self.code >= 0:
            return f"ended with exit code {self.code}"
        because = f" (it {self.killed_because})" if self.killed_because else ""
        return f"was killed by {name_of(-self.code)}{because}"

    @property
    def cause(self) -> str:
        """How the child ended: one of a few fixed words, for counters."""
        if self.out_of_memory:
            return "out_of_memory"
        if self.killed_here:
            return "frozen" if self.was_frozen else "killed"
        if self.code is not None and self.code < 0:
            return name_of(-self.code)
        return "left" if self.left else "exit"

    @property
    def was_sigkilled(self) -> bool:
        return self.code == -signal.SIGKILL

    @property
    def killed_by_others(self) -> bool:
        """Whether another process sent the SIGKILL that ended the child. The master and the kernel do not count."""
        return self.was_sigkilled and not self.killed_here and not self.out_of_memory

    @property
    def gone(self) -> bool:
        return self.code is not None

    @property
    def while_running(self) -> str:
        """For the log: the tasks (`section:key`) that the child is running, or was running when it died."""
        return f" while running {', '.join(self.running)}" if self.running else ""

    @property
    def running(self) -> tuple[str, ...]:
        return tuple([run.name for run in self.runs])

    @property
    def runs(self) -> tuple[RunRecord, ...]:
        """The runs that are in progress in the child, or were in progress when it died."""
        return () if self.spec is None else self.spec.running_table.runs()

    def escalate(self, now: float) -> None:
        """Send the order that is due, or kill the child."""
        order = self.escalation.tick(now)
        if order == signal.SIGKILL:
            silent = self.escalation.silent(now)
            reason = "was silent for too long and counts as frozen" if silent else "did not exit in time"
            if self.spec is not None:  # the end of any other child is logged with its reason
                log.error("%s %s; killing it%s", self, reason, self.while_running)
            self.was_frozen = silent
            self.kill(reason)
        elif order is not None:
            self.pipe.send(order)

    def reap(self, now: float) -> bool:
        """Reap the child if it is dead, and return whether it is gone. After a crash, kill its process group first."""
        if self.code is None and _is_dead(self.pid):
            self.receive(now)
            if not self.left:
                self._kill_group()
            try:
                self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            except ChildProcessError:
                self.code = -signal.SIGKILL  # other code in this process has reaped the child; its exit code is lost
        return self.gone

    def kill(self, because: str = "") -> None:
        """Send SIGKILL to the child and all its descendants, in any session or group."""
        self.killed_here = True
        self.killed_because = because
        kill_tree(self.pid)
        self._kill_group()

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):  # macOS, if all processes of the group are dead
            os.killpg(self.pid, signal.SIGKILL)


def kill_tree(pid: int) -> None:
    """Send SIGKILL to a child and all its descendants.

    No other process has the pid, because the child is not reaped yet.
    """
    try:
        descendants = psutil.Process(pid).children(recursive=True)
    except psutil.Error:
        descendants = []
    os.kill(pid, signal.SIGKILL)
    for process in descendants:
        with suppress(psutil.Error):  # the process has ended, or the master may not kill it
            process.kill()


def _is_dead(pid: int) -> bool:
    if not hasattr(os, "waitid"):  # macOS before Python 3.13
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return True


class OomKills:
    """The out-of-memory kills in this process's control group. Outside of Linux no kill is counted."""

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        self._file = find_oom_counter(proc)
        self._old = self._recent = self._count()
        self._looked = -math.inf

    def look(self, now: float) -> None:
        """Forget kills older than `_OOM_AGE` seconds that `take` has not matched with a dead child.

        Such a kill may have hit a program that a handler had started.
        """
        if now >= self._looked + _OOM_AGE:
            self._old, self._recent, self._looked = self._recent, self._count(), now

    def take(self) -> bool:
        """Return whether there was a recent kill. Each kill explains only one death."""
        count = self._count()
        if count <= self._old:
            return False
        self._old += 1
        self._recent = max(self._recent, self._old)
        return True

    def _count(self) -> int:
        if self._file is None:
            return 0
        try:
            found = _OOM_COUNT.search(self._file.read_text())
        except OSError:
            return 0
        return 0 if found is None else int(found[1])


def find_oom_counter(proc: Path) -> Path | None:
    """Return the file in which the kernel counts out-of-memory kills in this process's control group.

    None if there is no such file.
    """
    try:
        groups = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        mounts = [line.split(" ") for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError:
        return None
    for controller, kind in (("memory", "cgroup"), ("", "cgroup2")):
        for group in (path for _, names, path in groups if controller in names.split(",")):
            for mount in mounts:
                kind_found, _, options = mount[mount.index("-") + 1 :][:3]
                if kind_found != kind or (controller and controller not in options.split(",")):
                    continue
                top = Path(mount[4])
                inner = group.removeprefix(mount[3]) if mount[3] != "/" else group
                for folder in (top / inner.lstrip("/"), top):  # in a container only the latter may be there
                    if (folder / _CGROUP_FILES[kind]).is_file():
                        return folder / _CGROUP_FILES[kind]
    return None
