"""Finds the masters of this host by their process titles. A title contains the path of the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_MASTER = "psched: master ["


def master_title(environment: str, config: Path | None) -> str:
    """Return the process title of a master. `config`: the configuration file, if any."""
    return f"{_MASTER}{environment}]" + (f" {config}" if config is not None else "")


def title_of(pid: int) -> str | None:
    """Return the process title of a master; None for other processes, and for those that this user cannot see."""
    with suppress(psutil.Error):
        title = " ".join(psutil.Process(pid).cmdline()).strip()
        return title if title.startswith(_MASTER) else None
    return None


def is_title(title: str, found: str) -> bool:
    """Return whether `found` is the process title `title`. In `found`, the system may have cut off the path."""
    return title.startswith(found) and "] /" in found


@dataclass(frozen=True, slots=True)
class RunningMaster:
    """A running master. `pid_file`: None if it has none, or if this user cannot see it."""

    pid: int
    pid_file: Path | None


def running_masters(title: str) -> Iterator[RunningMaster]:
    for pid in psutil.pids():
        found = title_of(pid)
        if found is not None and is_title(title, found):
            yield RunningMaster(pid, _pid_file_of(pid))


def _pid_file_of(pid: int) -> Path | None:
    """Return the file that the process has open and whose first line is its process id."""
    with suppress(psutil.Error):
        for opened in psutil.Process(pid).open_files():
            path = Path(opened.path)
            with suppress(OSError), path.open("rb") as file:
                if file.readline(32).strip() == str(pid).encode():
                    return path
    return None
