"""The masters of this host, found by their process titles, which name the configuration."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

_MASTER = "psched: master ["


def master_title(environment: str, config: Path | None) -> str:
    """`config`: the configuration file, if any."""
    return f"{_MASTER}{environment}]" + (f" {config}" if config is not None else "")


def title_of(pid: int) -> str | None:
    """Return the title of a master; None for another process, or one that this user or sandbox does not see."""
    with suppress(psutil.Error):
        title = " ".join(psutil.Process(pid).cmdline()).strip()
        return title if title.startswith(_MASTER) else None
    return None


def is_title(title: str, found: str) -> bool:
    """Return whether `found` is the process title `title`, whose path may have been cut off."""
    return title.startswith(found) and "] /" in found


@dataclass(frozen=True, slots=True)
class RunningMaster:
    """`pid_file`: None if there is none, or if this user may not see it."""

    pid: int
    pid_file: Path | None


def running_masters(title: str) -> Iterator[RunningMaster]:
    """Yield the masters on this host that have this title."""
    for pid in psutil.pids():
        found = title_of(pid)
        if found is not None and is_title(title, found):
            yield RunningMaster(pid, _pid_file_of(pid))


def _pid_file_of(pid: int) -> Path | None:
    """Return the open file of the process whose first line is its process id."""
    with suppress(psutil.Error):
        for opened in psutil.Process(pid).open_files():
            path = Path(opened.path)
            with suppress(OSError), path.open("rb") as file:
                if file.readline(32).strip() == str(pid).encode():
                    return path
    return None
