"""A small disk (tmpfs) that a trial fills up. In the test process; Linux, as root.

It is mounted in a folder that everybody may enter, since servers run as an ordinary user.
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
"""Bytes by which it is filled up: in large steps while they fit, then to the last page."""


class SmallDisk:
    """A context: mounted when it is entered, and gone when it is left. `path` is its folder."""

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
        """Take all the space that is left; again and again, as others may give some back."""
        with (self.path / "ballast").open("ab") as file:
            for step in _STEPS:
                while _grown(file.fileno(), step):
                    pass

    def free(self) -> None:
        """Give the space back."""
        (self.path / "ballast").unlink(missing_ok=True)


def can_mount() -> bool:
    """Tell whether such a disk can be had here."""
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
