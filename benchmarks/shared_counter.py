"""Counters in shared memory, in which handlers count without a system call.

Used by the handlers in the workers, and by the measuring process. Needs only Python's standard library, because peers
use another virtualenv.
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
"""The environment variable that names the folder in which each worker process has a file."""

ACQUIRES = "PSCHED_BENCH_ACQUIRES"
"""The environment variable that makes the application record the seconds of its acquires."""

STATEMENTS = "PSCHED_BENCH_STATEMENTS"
"""The environment variable that makes the application count the statements that it sends to SQLite."""

ROOM = 1 << 17
"""The maximum number of samples of one process. The file is sparse, so unused samples take no space."""

_RUNS = struct.Struct("=Qdd")
_KEPT = struct.Struct("=Q")
_HEAD = _RUNS.size + _KEPT.size
_SAMPLE = struct.Struct("=d")


class Tally:
    """The runs of handlers in this process: their number, the times of the first and last, and recorded samples.

    A sample is a number of seconds. Only one thread may count, and only one may record samples; these may be two
    different threads.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._memory: mmap.mmap | None = None
        self._opening = threading.Lock()
        self._count = self._kept = 0
        self._first = 0.0

    def count(self) -> None:
        """Count a run of a handler."""
        now = time.monotonic()
        memory = self._memory or self._open()
        if self._count == 0:
            self._first = now
        self._count += 1
        _RUNS.pack_into(memory, 0, self._count, self._first, now)

    def sample(self, seconds: float) -> None:
        """Record a sample. Raises struct.error if the file is full."""
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
    """The number of runs that all workers have counted, and the times of the first and last (monotonic)."""

    done: int
    first: float
    last: float


def read_tally(folder: Path) -> CountedRuns:
    """Return the runs that all workers have counted up to now."""
    ran = [_RUNS.unpack_from(head) for head in _heads(folder)]
    ran = [run for run in ran if run[0]]
    if not ran:
        return CountedRuns(0, 0.0, 0.0)
    return CountedRuns(sum(run[0] for run in ran), min(run[1] for run in ran), max(run[2] for run in ran))


def count_working(folder: Path) -> int:
    """Return how many processes have run a handler."""
    return sum(_RUNS.unpack_from(head)[0] > 0 for head in _heads(folder))


def read_firsts(folder: Path) -> list[float]:
    """Return, for each process that has run a handler, the time of its first run (monotonic)."""
    ran = [_RUNS.unpack_from(head) for head in _heads(folder)]
    return [first for count, first, _ in ran if count]


def read_samples(folder: Path) -> list[float]:
    """Return all samples that were recorded up to now, in no particular order."""
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
    """Set a variable for workers that are started within the context."""
    os.environ[variable] = "1"
    try:
        yield
    finally:
        del os.environ[variable]


def tally_of_environment() -> Tally:
    """Return the tally of this worker process."""
    return Tally(Path(os.environ[VARIABLE]))
