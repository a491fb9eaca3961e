"""Finds processes, threads and descriptors that a test has left behind. Runs in the test process.

A process belongs to the session if it descends from the session's processes. A process whose parent is gone (a daemon)
belongs to the session if it has inherited a mark in its environment.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

MARK = "PSCHED_TEST_SESSION"
"""The environment variable with the mark of a session, which the session's processes inherit."""

_HAS_PROC = sys.platform == "linux"
_DESCRIPTORS = "/proc/self/fd" if _HAS_PROC else "/dev/fd"


class Owned(Protocol):
    """What belongs to the session and is no leak: servers with their descendants (pids), and file descriptors.

    `fork_servers`: for each, the pid of its parent, and the pid of the server. Children of the server belong to the
    session; other children of its parent do not.
    """

    @property
    def servers(self) -> set[int]: ...

    @property
    def fork_servers(self) -> list[list[int]]: ...

    @property
    def descriptors(self) -> set[int]: ...


@dataclass(frozen=True)
class Holdings:
    """What exists at one moment: all processes of the host, and the threads and descriptors of this process."""

    pids: set[int]
    threads: set[threading.Thread]
    descriptors: set[tuple[int, str]]

    @classmethod
    def now(cls, owned: Owned) -> Holdings:
        """Return what exists now, except the descriptors that the session owns."""
        return cls(
            pids=set(psutil.pids()),
            threads=set(threading.enumerate()),
            descriptors=set(_opened(owned.descriptors)),
        )

    def processes_since(self, before: Holdings, owned: Owned) -> set[psutil.Process]:
        """Return the session's processes that are new since `before`, except those that the session owns.

        A process that has ended in the meantime is left out, because it can no longer be seen to whom it belonged.
        """
        new = self.pids - before.pids
        owners = _owners(owned) if new else {}
        return {process for pid in new for process in _ours(pid, owners) if process.is_running()}

    def since(self, before: Holdings, owned: Owned) -> list[str]:
        """Return the names of processes, threads and descriptors that are new since `before`."""
        return [
            *(_name(process) for process in self.processes_since(before, owned)),
            *(f"thread {thread.name!r}" for thread in self.threads - before.threads),
            *(f"descriptor {number} → {target}" for number, target in self.descriptors - before.descriptors),
        ]


def left_since(before: Holdings, owned: Owned, patience: float) -> list[str]:
    """Wait for up to `patience` seconds until nothing is left that is new since `before`. Return names of the rest.

    Unreachable objects may hold descriptors. To collect all of them takes some tenths of a second in a large process.
    So the youngest objects are collected first, and all objects less and less often.
    """
    deadline = time.monotonic() + patience
    looks = 0
    while (left := Holdings.now(owned).since(before, owned)) and time.monotonic() < deadline:
        looks += 1
        if looks.bit_count() == 1:  # 1, 2, 4, 8 …
            gc.collect(min(looks // 2, 2))
        time.sleep(0.01)
    return left


def kill_since(before: Holdings, owned: Owned) -> None:
    """Kill all processes of the session that are new since `before`, and reap the children of this process."""
    new = Holdings.now(owned).processes_since(before, owned)
    for process in new:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(new, timeout=5)


def _owners(owned: Owned) -> dict[int, bool]:
    """Map pids to whether their descendants belong to the session. The nearest ancestor of a process decides."""
    owners = {os.getpid(): True, **dict.fromkeys(owned.servers, False)}
    for parent, *server in owned.fork_servers:
        owners |= {parent: False, **dict.fromkeys(server, True)}
    return owners


def _ours(pid: int, owners: Mapping[int, bool]) -> Iterator[psutil.Process]:
    """Yield the process if it belongs to the session, by its ancestors or its mark, and does not belong to a server."""
    if pid in owners:
        return
    nearest = next((owners[ancestor] for ancestor in _ancestors(pid) if ancestor in owners), None)
    if nearest or (nearest is None and _is_marked(pid)):
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _is_marked(pid: int) -> bool:
    mark = os.environ.get(MARK)
    with suppress(OSError, psutil.Error):  # the process has just ended, or belongs to another user
        if _HAS_PROC:
            return bool(mark) and f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return bool(mark) and psutil.Process(pid).environ().get(MARK) == mark
    return False


def _ancestors(pid: int) -> Iterator[int]:
    """Yield the pid of the parent, of its parent, and so on. With psutil this would take milliseconds."""
    with suppress(OSError, psutil.Error):
        while pid > 1:
            pid = _parent(pid)
            yield pid


def _parent(pid: int) -> int:
    if not _HAS_PROC:
        return psutil.Process(pid).ppid()
    _, _, state_and_parent = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(") ")
    return int(state_and_parent.split(maxsplit=2)[1])


def _name(process: psutil.Process) -> str:
    try:
        command = "not reaped" if process.status() == psutil.STATUS_ZOMBIE else " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        command = "just ended"
    return f"process {process.pid} ({command[:200]})"


def _opened(owned: set[int]) -> Iterator[tuple[int, str]]:
    """Yield the open descriptors, with their targets.

    Called twice for each test; `Path` would take three times as long.
    """
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208
        descriptor = int(name)
        if descriptor in owned:
            continue
        try:
            target = os.readlink(f"{_DESCRIPTORS}/{name}") if _HAS_PROC else f"inode {os.fstat(descriptor).st_ino}"  # noqa: PTH115
        except OSError:
            continue  # the descriptor that has listed the folder
        yield descriptor, target
