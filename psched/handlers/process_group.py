"""Runs a program in a process group that ends together with the worker, even if the worker is killed.

Used in child processes.
"""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import MappingProxyType
from typing import Self

import psutil

_GUARD = "trap '' TERM; read -r end || kill -s KILL 0"
"""The script of the guard: wait until the worker has closed its end of the pipe, then kill the process group."""


_LIMITED = """
import os, resource, sys
limits, *argv = sys.argv[1:]
try:
    for each in limits.split(","):
        which, limit = map(int, each.split("="))
        hard = limit + 1 if which == resource.RLIMIT_CPU else limit  # SIGXCPU, a second later SIGKILL
        resource.setrlimit(which, (limit, hard))
    os.execvp(argv[0], argv)
except (OSError, ValueError) as error:
    print(f"psched: cannot run {argv[0]!r} with its rlimits: {error}", file=sys.stderr)
    sys.exit(127)
"""


class ProcessGroup:
    """A process group. Its leader is a small guard process that kills the group when the worker is gone.

    Without the guard, a program would survive a killed worker and run at the same time as the next attempt. As long as
    the guard lives, the system does not reuse the number of the group.
    """

    def __init__(self) -> None:
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD],
            cwd="/",
            env={},
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    @property
    def id(self) -> int:
        return self._guard.pid

    def signal(self, number: int) -> None:
        """Signal all members. The system may forbid this for processes of another user (sudo)."""
        with suppress(PermissionError):
            os.killpg(self.id, number)

    def has_members(self) -> bool:
        """Whether another process of the group is alive. Zombies, as in a container without init, do not count."""
        return any(self._is_member(pid) for pid in psutil.pids())

    def close(self) -> None:
        self._guard.kill()
        self._guard.communicate()

    def _is_member(self, pid: int) -> bool:
        try:
            in_group = pid != self.id and os.getpgid(pid) == self.id
            return in_group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, PermissionError, psutil.Error):
            return False


_OUTPUT_BYTES = 8192
_TAIL_LINES = 40
_CHUNK = 65536
_TICK = 0.1
"""Seconds between two checks whether the run should stop."""
_GROUP_TICK = 0.02
"""Seconds between two checks whether a group has ended."""
_DRAIN_CHUNKS = 32
"""How many chunks of output are read after the program has ended. They hold more than a pipe does."""
_LAST_WAIT = 1.0
"""Seconds to wait after SIGKILL. Remaining processes are busy in the kernel or another user's, and are left alone."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a program ended.

    - `status`: the exit status of the program, negative for a signal.
    - `cut_short`: `stop` or `timeout` if psched ended the program.
    - `left_behind`: whether the program left processes in its group. These were then ended, too.
    - `output`: the last 8 kB of the program's output.
    """

    status: int
    seconds: float
    cut_short: str | None
    left_behind: bool
    output: str

    @property
    def tail(self) -> str:
        """The last lines of the output, for the log."""
        return "\n".join(self.output.splitlines()[-_TAIL_LINES:])


class Program:
    """A program that runs with its descendants in one process group and writes to a pipe. Usable by one thread.

    Another thread may set `stop` at any time: then the group gets SIGTERM, and SIGKILL after `grace` seconds. The group
    is also killed when this process ends. A process that has moved to another group is neither signalled nor killed.
    """

    def __init__(
        self,
        argv: Sequence[str],
        cwd: str | None,
        env: Mapping[str, str],
        stop: threading.Event,
        rlimits: Mapping[int, int] = MappingProxyType({}),
    ) -> None:
        """Start the program. Raises OSError or ValueError if it cannot be started.

        `rlimits`: limits by resource, see getrlimit(2). If there are limits, a Python process sets them and then
        becomes the program, or exits with status 127 and a line of output. It would not be safe to set them between
        fork and exec in a process with threads.
        """
        limits = ",".join(f"{resource}={limit}" for resource, limit in rlimits.items())
        launcher = [sys.executable, "-I", "-S", "-c", _LIMITED, limits] if limits else []
        self._stop = stop
        self._started = time.monotonic()
        self._group = ProcessGroup()
        try:
            self._process = subprocess.Popen(
                [*launcher, *argv],
                cwd=cwd,
                env=env,
                bufsize=0,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                process_group=self._group.id,
            )
        except BaseException:
            self._group.close()
            raise
        assert self._process.stdout is not None
        self._pipe = self._process.stdout
        os.set_blocking(self._pipe.fileno(), False)
        self._poll = select.poll()
        self._poll.register(self._pipe, select.POLLIN)
        self._open = True
        self._output = bytearray()
        self._cut_short: str | None = None
        self._left_behind = False
        self._kill_at = self._give_up_at = math.inf

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._group.signal(signal.SIGKILL)
            self._process.wait()
        self._pipe.close()
        self._group.close()

    def wait(self, timeout: float | None, timeout_grace: float, grace: float) -> Ending:
        """Wait until no process of the group is left. End the group after `timeout` seconds, or when the run must stop.

        SIGKILL follows SIGTERM after `timeout_grace` seconds at a timeout, and after `grace` seconds at a stop.
        """
        while self._process.poll() is None:
            if self._open:
                self._read(_TICK)
            else:
                with suppress(subprocess.TimeoutExpired):
                    self._process.wait(_TICK)
            self._end_if_due(timeout, timeout_grace, grace)
        seconds = time.monotonic() - self._started
        self._end_rest(grace)
        for _ in range(_DRAIN_CHUNKS):
            if not self._read(0):
                break
        return Ending(self._process.returncode, seconds, self._cut_short, self._left_behind, self._text())

    def _end_if_due(self, timeout: float | None, timeout_grace: float, grace: float) -> None:
        now = time.monotonic()
        if self._cut_short is None and self._stop.is_set():
            self._cut_short = "stop"
            self._terminate(now + grace)
        elif self._cut_short is None and timeout is not None and now >= self._started + timeout:
            self._cut_short = "timeout"
            self._terminate(now + timeout_grace)
        elif self._cut_short == "timeout" and self._stop.is_set():
            self._kill_at = min(self._kill_at, now + grace)
        self._kill_if_due(now)

    def _end_rest(self, grace: float) -> None:
        """End the processes that the program left in its group, after a moment in which they may end by themselves."""
        self._read(_GROUP_TICK if self._group.has_members() else 0)
        while self._group.has_members():
            now = time.monotonic()
            self._left_behind = True
            if self._kill_at == math.inf:
                self._terminate(now + grace)
            self._kill_if_due(now)
            if now >= self._give_up_at:
                return
            self._read(_GROUP_TICK)

    def _terminate(self, kill_at: float) -> None:
        self._kill_at = kill_at
        self._group.signal(signal.SIGTERM)

    def _kill_if_due(self, now: float) -> None:
        if now >= self._kill_at and self._give_up_at == math.inf:
            self._give_up_at = now + _LAST_WAIT
            self._group.signal(signal.SIGKILL)

    def _read(self, seconds: float) -> bool:
        """Wait for output and read it. Return False if there was none."""
        if not self._open:
            time.sleep(seconds)
            return False
        if not self._poll.poll(seconds * 1000):
            return False
        chunk = self._pipe.read(_CHUNK)
        if chunk:
            self._output += chunk
            del self._output[:-_OUTPUT_BYTES]
        elif chunk is not None:
            self._poll.unregister(self._pipe)
            self._open = False
        return bool(chunk)

    def _text(self) -> str:
        lines = self._output.decode(errors="replace").splitlines()
        return "\n".join("".join(c if c.isprintable() or c == "\t" else "\ufffd" for c in line) for line in lines)
