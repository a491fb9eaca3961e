"""Counters in shared memory: handlers count without a system call.

Used by the application in its workers, and by the process that measures. Needs nothing but Python, since peers run
with an interpreter of their own.
"""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

VARIABLE = "PSCHED_BENCH_TALLY"
"""The environment variable with the folder in which each worker process has a file."""

ACQUIRES = "PSCHED_BENCH_ACQUIRES"
"""The environment variable that makes the application keep how long its polls take."""

STATEMENTS = "PSCHED_BENCH_STATEMENTS"
"""The environment variable that makes the application count what its connections to SQLite are told to do."""

ROOM = 1 << 17
"""How many samples a process can keep. The file has holes where there are none."""

_RUNS = struct.Struct("=Qdd")
_KEPT = struct.Struct("=Q")
_HEAD = _RUNS.size + _KEPT.size
_SAMPLE = struct.Struct("=d")


class Tally:
    """How many handlers ran in this process, when the first and the last one did, and what they measured.

    One thread counts, and one takes samples: the same or another.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory: mmap.mmap | None = None
        self._opening = threading.Lock()
        self._count = self._kept = 0
        self._first = 0.0

    def count(self) -> None:
        """Note that a handler has run."""
        now = time.monotonic()
        memory = self._memory or self._open()
        if self._count == 0:
            self._first = now
        self._count += 1
        _RUNS.pack_into(memory, 0, self._count, self._first, now)

    def sample(self, seconds: float) -> None:
        """Keep what was measured. Raises struct.error when there is no room left."""
        memory = self._memory or self._open()
        _SAMPLE.pack_into(memory, _HEAD + self._kept * _SAMPLE.size, seconds)
        self._kept += 1
        _KEPT.pack_into(memory, _RUNS.size, self._kept)

    def _open(self) -> mmap.mmap:
        with self._opening:
            if self._memory is None:
                size = _HEAD + ROOM * _SAMPLE.size
                with (self._folder / f"{os.getpid()}.tally").open("w+b") as file:
                    file.truncate(size)
                    self._memory = mmap.mmap(file.fileno(), size)
            return self._memory


class CountedRuns(NamedTuple):
    """What all workers have counted together; times on the monotonic clock."""

    done: int
    first: float
    last: float


def read_tally(folder: Path) -> CountedRuns:
    """Return what was counted up to now."""
    ran = [_RUNS.unpack_from(head) for head in _heads(folder)]
    ran = [run for run in ran if run[0]]
    if not ran:
        return CountedRuns(0, 0.0, 0.0)
    return CountedRuns(sum(run[0] for run in ran), min(run[1] for run in ran), max(run[2] for run in ran))


def count_working(folder: Path) -> int:
    """Return how many processes have run a handler."""
    return sum(_RUNS.unpack_from(head)[0] > 0 for head in _heads(folder))


def read_firsts(folder: Path) -> list[float]:
    """Return when each process that has run a handler ran its first one, on the monotonic clock."""
    ran = [_RUNS.unpack_from(head) for head in _heads(folder)]
    return [first for count, first, _ in ran if count]


def read_samples(folder: Path) -> list[float]:
    """Return all that was measured up to now, in no particular order."""
    samples: list[float] = []
    for path in folder.glob("*.tally"):
        with path.open("rb") as file:
            head = file.read(_HEAD)
            kept = _KEPT.unpack_from(head, _RUNS.size)[0] if len(head) == _HEAD else 0
            samples.extend(value for (value,) in _SAMPLE.iter_unpack(file.read(kept * _SAMPLE.size)))
    return samples


def _heads(folder: Path) -> list[bytes]:
    heads = []
    for path in folder.glob("*.tally"):
        with path.open("rb") as file:
            heads.append(file.read(_HEAD))
    return [head for head in heads if len(head) == _HEAD]


@contextmanager
def in_environment(variable: str) -> Iterator[None]:
    """Set a variable for the workers that are started meanwhile."""
    os.environ[variable] = "1"
    try:
        yield
    finally:
        del os.environ[variable]


def tally_of_environment() -> Tally:
    """Return the tally of a worker process."""
    return Tally(Path(os.environ[VARIABLE]))
