"""A wall clock that tests can set for other processes: workers and database servers. Linux only.

Waits use the monotonic clock and are not shifted, except where a program waits until a wall-clock time.
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
    """Compile the library that shifts the clock, and return its path. If this is impossible, the test is NOT RUN."""
    if sys.platform != "linux":
        prerequisites.not_run("only Linux can shift the clock of a process")
    library = folder / "clock_shim.so"
    compiler = str(prerequisites.find("cc", "gcc", "clang"))
    subprocess.run([compiler, "-O2", "-Wall", "-Werror", "-shared", "-fPIC", "-o", library, _SOURCE], check=True)
    return library


class WallClock:
    """The wall clock of processes that are started with `environment`. It shows the true time until `set`."""

    def __init__(self, library: Path, file: Path) -> None:
        self._library = library
        self._file = file
        self._current = 0
        self._setting = (0, 0, 1.0)
        file.write_bytes(_PAGE.pack(0, *self._setting, *self._setting))
        file.chmod(0o644)  # a database server runs as another user

    @property
    def environment(self) -> dict[str, str]:
        """The variables with which a process must be started. Its child processes inherit the clock."""
        others = os.environ.get("LD_PRELOAD", "")
        return {"LD_PRELOAD": f"{self._library}:{others}".rstrip(":"), "PSCHED_TEST_CLOCK": str(self._file)}

    def set(self, offset: float = 0.0, rate: float = 1.0) -> None:
        """Let the clock jump to the true time plus `offset` seconds, and then run `rate` times as fast."""
        self._setting = (time.time_ns(), round(offset * _NANO), rate)
        self._current = 1 - self._current
        with self._file.open("r+b", buffering=0) as page:
            page.seek(8 + self._current * _SETTING.size)
            page.write(_SETTING.pack(*self._setting))
            page.seek(0)
            page.write(self._current.to_bytes(8, sys.byteorder))

    def time(self) -> float:
        """Return the time that this clock shows now, in unix seconds."""
        base, offset, rate = self._setting
        now = time.time_ns()
        return (now + offset + (rate - 1) * (now - base)) / _NANO
