"""A running daemon as its commands see it from outside: who it is, what it runs, how its log ends. Used by pschedd."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from psched.clock import monotonic
from psched.daemon.pidfile import read_report, read_running, signal_running
from psched.daemon.report import PendingWorker, Report

_PAUSE = 0.1
_TAIL = 16384


@dataclass(frozen=True, slots=True)
class Control:
    """The daemon that holds the lock of `pid_file`."""

    pid_file: Path

    def pid(self) -> int | None:
        """Return its master's process id, or None when none runs. Raises PidFileError."""
        return read_running(self.pid_file)

    def report(self) -> tuple[int | None, Report]:
        """Return its master's process id, and what that reports. Raises PidFileError."""
        pid, line = read_report(self.pid_file)
        return pid, Report.parse(line)

    def send(self, number: int) -> int | None:
        """Signal the master and return its pid, or None when none runs. Raises PermissionError, PidFileError."""
        return signal_running(self.pid_file, number)

    def wait(self, until: Callable[[int | None], bool], timeout: float | None, tell: Callable[[str], None]) -> bool:
        """Wait until `until(pid)`; False when `timeout` seconds (None: no limit) pass first.

        What the children run is told each time it changes, so that nobody wonders what a stop is waiting for.
        """
        start = time.monotonic()
        told: list[str] = []
        while not until(pid := self.pid()):
            waited = time.monotonic() - start
            if timeout is not None and waited >= timeout:
                return False
            if waited > 1 and pid is not None and (busy := running(pid)) != told:
                told = busy
                tell(f"waiting for: {'; '.join(busy) or 'the workers to leave'}")
            time.sleep(_PAUSE)
        return True


def has_ended(pid: int) -> bool:
    """Tell whether a process is gone, or waits for nothing but its parent's notice."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def workers(pid: int, pending: Sequence[PendingWorker] = ()) -> list[str]:
    """Return what each child of the master says of itself in its title: "worker 2 running s1 (pid 4711)".

    `pending`: the slots whose next worker is not at work yet; each has a line, whether there is a process or not.
    """
    awaited = {worker.number: worker for worker in pending}
    lines = {number: worker.text(monotonic()) for number, worker in awaited.items()}
    for number, title, child in _titles(pid):
        lines[number] = f"{title} (pid {child}){awaited[number].history if number in awaited else ''}"
    return [line for _, line in sorted(lines.items())]


def running(pid: int) -> list[str]:
    """Return those of `workers` that run a task."""
    return [worker for worker in workers(pid) if " running " in worker]


def _titles(pid: int) -> list[tuple[int, str, int]]:
    """Return the number, the title and the pid of each worker of the master."""
    try:
        children = psutil.Process(pid).children()
    except psutil.Error:
        return []
    titles = [(_title(child), child.pid) for child in children]
    return [(int(title.split()[1]), title, child) for title, child in titles if title.startswith("worker ")]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()).removeprefix("psched: ").strip()
    except psutil.Error:
        return ""  # it has just left


def log_end(path: Path, since: int, lines: int = 10) -> list[str]:
    """Return the last lines that were written to a log after it was `since` bytes long."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(since if since <= size else 0, size - _TAIL))
            return log.read().decode(errors="replace").splitlines()[-lines:]
    except OSError as error:
        return [f"(cannot read {path}: {error.strerror})"]


def size_of(path: Path) -> int:
    """Return the length of a log in bytes, 0 when there is none yet."""
    try:
        return path.stat().st_size
    except OSError:
        return 0
