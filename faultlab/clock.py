"""A wall clock that tests may set for other processes, workers and database servers alike. Linux only.

Waits go by the monotonic clock and are not shifted, except where a program waits until a wall time.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from pathlib import Path

from faultlab import prerequisites

_SOURCE = Path(__file__).with_name("clock_shim.c")
_PAGE = struct.Struct("=Q qqd qqd")
_SETTING = struct.Struct("=qqd")
_NANO = 1_000_000_000


def build_shim(folder: Path) -> Path:
    """Compile the library that shifts the clock into a folder and return its path; NOT RUN where that can't be."""
    if sys.platform != "linux":
        prerequisites.not_run("the clock of a process can be shifted on Linux only")
    library = folder / "clock_shim.so"
    compiler = str(prerequisites.find("cc", "gcc", "clang"))
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
    return library


class WallClock:
    """The wall clock of the processes that get `environment`: at first the true one, then what `set` says."""

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        self._current = 0
        self._setting = (0, 0, 1.0)
        file.write_bytes(_PAGE.pack(0, *self._setting, *self._setting))
        file.chmod(0o644)  # a database server runs as somebody else

    @property
    def environment(self) -> dict[str, str]:
        """The variables that a process must be started with; those it starts and forks inherit the clock."""
        others = os.environ.get("LD_PRELOAD", "")
        return {"LD_PRELOAD": f"{self._library}:{others}".rstrip(":"), "PSCHED_TEST_CLOCK": str(self._file)}

    def set(self, offset: float = 0.0, rate: float = 1.0) -> None:
        """Make the clock jump to `offset` seconds off the true time, and run `rate` times as fast from there."""
        self._setting = (time.time_ns(), round(offset * _NANO), rate)
        self._current = 1 - self._current
        with self._file.open("r+b", buffering=0) as page:
            page.seek(8 + self._current * _SETTING.size)
            page.write(_SETTING.pack(*self._setting))
            page.seek(0)
            page.write(self._current.to_bytes(8, sys.byteorder))

    def time(self) -> float:
        """Return what the processes take the time to be (unix seconds)."""
        base, offset, rate = self._setting
        now = time.time_ns()
        return (now + offset + (rate - 1) * (now - base)) / _NANO
