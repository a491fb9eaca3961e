"""A process group that ends when the process that made it is gone, were it by SIGKILL. In children."""

from __future__ import annotations

import os
import subprocess

import psutil

_WATCH = "trap '' TERM; read -r end || kill -s KILL 0"
"""Waits for the end of its input, which comes when the other end of the pipe is closed, and kills its group."""


class Group:
    """A process group, led by a tiny process that watches over us and keeps the group's number taken.

    Without it a program would survive a worker that was killed, and run beside the next attempt, which begins as soon
    as the worker is missed.
    """

    def __init__(self) -> None:
        """Start the watcher. Raises OSError."""
        self._watcher = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH],
            cwd="/",
            env={},
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        )

    @property
    def number(self) -> int:
        """What others join the group by."""
        return self._watcher.pid

    def signal(self, number: int) -> None:
        """Signal all members. Those of another user (sudo) may not be ours to signal."""
        try:
            os.killpg(self.number, number)
        except PermissionError:
            return

    def has_members(self) -> bool:
        """Whether anybody else in it is alive; the dead whom nobody reaps (a container without init) do not count."""
        return any(self._is_member(pid) for pid in psutil.pids())

    def close(self) -> None:
        """Let the group go."""
        self._watcher.kill()
        self._watcher.communicate()

    def _is_member(self, pid: int) -> bool:
        try:
            in_group = pid != self.number and os.getpgid(pid) == self.number
            return in_group and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, PermissionError, psutil.Error):
            return False
