"""What handlers have done, in memory shared with whoever measures: counting costs them no system call.

Used by the application in its workers, and by the process that measures. Needs nothing but Python, since peers run
with an interpreter of their own.
"""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path
from typing import NamedTuple

VARIABLE = "PSCHED_BENCH_TALLY"
"""The environment variable with the folder in which each worker process has a file."""

_CELL = struct.Struct("=Qdd")
_SAMPLE = struct.Struct("=d")


class Tally:
    """How many handlers ran in this process, and when the first and the last one did. One handler thread at a time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._pid = 0
        self._count = 0
        self._first = 0.0

    def count(self) -> None:
        """Note that a handler has run."""
        now = time.monotonic()
        if self._pid == 0:
            self._open(now)
        self._count += 1
        _CELL.pack_into(self._memory, 0, self._count, self._first, now)

    def sample(self, seconds: float) -> None:
        """Keep what one handler has measured."""
        with (self._folder / f"{os.getpid()}.samples").open("ab") as file:
            file.write(_SAMPLE.pack(seconds))

    def _open(self, now: float) -> None:
        self._pid = os.getpid()
        self._first = now
        path = self._folder / f"{self._pid}.tally"
        path.write_bytes(bytes(_CELL.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _CELL.size)


class Counted(NamedTuple):
    """What all workers have counted together; times on the monotonic clock."""

    done: int
    first: float
    last: float


def read_tally(folder: Path) -> Counted:
    """Return what was counted up to now."""
    cells = [_CELL.unpack(data) for path in folder.glob("*.tally") if (data := path.read_bytes())]
    ran = [cell for cell in cells if cell[0]]
    if not ran:
        return Counted(0, 0.0, 0.0)
    return Counted(sum(cell[0] for cell in ran), min(cell[1] for cell in ran), max(cell[2] for cell in ran))


def read_samples(folder: Path) -> list[float]:
    """Return all that handlers have kept, in no particular order."""
    return [value for path in folder.glob("*.samples") for (value,) in _SAMPLE.iter_unpack(path.read_bytes())]


def tally_of_environment() -> Tally:
    """Return the tally of a worker process."""
    return Tally(Path(os.environ[VARIABLE]))
