"""Finds processes, threads and descriptors that a test leaves behind. In the test process.

A process is known as the session's by its ancestry, or, when its parent is gone (a daemon), by a mark in the
environment that it inherited.
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
"""The environment variable that tells whose a process is."""

_HAS_PROC = sys.platform == "linux"
_DESCRIPTORS = "/proc/self/fd" if _HAS_PROC else "/dev/fd"


class Owned(Protocol):
    """What belongs to the session and is no leak: servers with their descendants (pids), and file descriptors.

    `fork_servers`: for each, the pid of its parent, and of the server. What the server forks is the session's, what its
    parent forks otherwise is not.
    """

    @property
    def servers(self) -> set[int]: ...

    @property
    def fork_servers(self) -> list[list[int]]: ...

    @property
    def descriptors(self) -> set[int]: ...


@dataclass(frozen=True)
class Holdings:
    """What there is at one moment: whose the processes are is asked for only those that come later."""

    pids: set[int]
    threads: set[threading.Thread]
    descriptors: set[tuple[int, str]]

    @classmethod
    def now(cls, owned: Owned) -> Holdings:
        """Look what there is now, but for the descriptors that the session owns."""
        return cls(
            pids=set(psutil.pids()),
            threads=set(threading.enumerate()),
            descriptors=set(_opened(owned.descriptors)),
        )

    def processes_since(self, before: Holdings, owned: Owned) -> set[psutil.Process]:
        """Return the session's processes that are here and were not there before, but for what the session owns.

        What ended meanwhile is nobody's any more: a server's session may, before it is asked whose it is.
        """
        new = self.pids - before.pids
        owners = _owners(owned) if new else {}
        return {process for pid in new for process in _ours(pid, owners) if process.is_running()}

    def since(self, before: Holdings, owned: Owned) -> list[str]:
        """Return the names of what is here and was not there before."""
        return [
            *(_name(process) for process in self.processes_since(before, owned)),
            *(f"thread {thread.name!r}" for thread in self.threads - before.threads),
            *(f"descriptor {number} → {target}" for number, target in self.descriptors - before.descriptors),
        ]


def left_since(before: Holdings, owned: Owned, patience: float) -> list[str]:
    """Return what is left of what came after `before`, once nothing is or `patience` (seconds) is over.

    Garbage may hold descriptors. To collect all of it takes some tenths of a second in a large process. So the youngest
    objects are collected first, and all of them ever more rarely.
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
    """Kill, and reap where they are ours, all processes that came after `before`."""
    new = Holdings.now(owned).processes_since(before, owned)
    for process in new:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue
    psutil.wait_procs(new, timeout=5)


def _owners(owned: Owned) -> dict[int, bool]:
    """Return whose descendants are the session's, and whose are not: the nearest of these ancestors decides."""
    owners = {os.getpid(): True, **dict.fromkeys(owned.servers, False)}
    for parent, *server in owned.fork_servers:
        owners |= {parent: False, **dict.fromkeys(server, True)}
    return owners


def _ours(pid: int, owners: Mapping[int, bool]) -> Iterator[psutil.Process]:
    """Yield the process with this pid if it is the session's and no server's: by its ancestry, or by its mark."""
    if pid in owners:
        return
    nearest = next((owners[ancestor] for ancestor in _ancestors(pid) if ancestor in owners), None)
    if nearest or (nearest is None and _is_marked(pid)):
        with suppress(psutil.NoSuchProcess):
            yield psutil.Process(pid)


def _is_marked(pid: int) -> bool:
    mark = os.environ.get(MARK)
    with suppress(OSError, psutil.Error):  # it has just ended, and may be ours for all that; or it is somebody else's
        if _HAS_PROC:
            return bool(mark) and f"{MARK}={mark}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return bool(mark) and psutil.Process(pid).environ().get(MARK) == mark
    return False


def _ancestors(pid: int) -> Iterator[int]:
    """Yield the parent, its parent, and so on. psutil looks at each of them several times, which takes milliseconds."""
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
    """Yield what is open. This is called twice for each test: `Path` would take three times as long."""
    for name in os.listdir(_DESCRIPTORS):  # noqa: PTH208
        descriptor = int(name)
        if descriptor in owned:
            continue
        try:
            target = os.readlink(f"{_DESCRIPTORS}/{name}") if _HAS_PROC else f"inode {os.fstat(descriptor).st_ino}"  # noqa: PTH115
        except OSError:
            continue  # the one that listed the folder
        yield descriptor, target
