"""A small disk (tmpfs) that a trial fills up. Runs in the test process; only on Linux, as root.

The disk is mounted at a folder that all users can enter, because servers run as an ordinary user.
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Self

_STEPS = (1 << 20, 1 << 12)
"""The number of bytes of each step of `fill`: large steps until one fails, then single pages."""


class SmallDisk:
    """A context manager: entering mounts the disk, leaving unmounts it. `path`: the folder of the disk."""

    def __init__(self, megabytes: int = 400) -> None:
        self._megabytes = megabytes
        self.path = Path()

    def __enter__(self) -> Self:
        self.path = Path(tempfile.mkdtemp(prefix="psched-disk-"))
        try:
            options = f"size={self._megabytes}m,mode=1777"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.path], check=True, capture_output=True)
        except BaseException:
            self.path.rmdir()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        subprocess.run(["umount", "--lazy", self.path], check=True)
        self.path.rmdir()

    def fill(self) -> None:
        """Use up all the space that is left. May be called again, because other programs may have freed some."""
        with (self.path / "ballast").open("ab") as file:
            for step in _STEPS:
                while _grown(file.fileno(), step):
                    pass

    def free(self) -> None:
        """Free the space."""
        (self.path / "ballast").unlink(missing_ok=True)


def can_mount() -> bool:
    """Return whether such a disk can be mounted here."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return False
    try:
        with SmallDisk(1):
            return True
    except (OSError, subprocess.CalledProcessError):
        return False


def _grown(descriptor: int, step: int) -> bool:
    try:
        os.posix_fallocate(descriptor, os.fstat(descriptor).st_size, step)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        return False
    return True
