"""Processes that the kernel has killed for lack of memory, as the control group of this process counts them.

In the master. Linux, control groups of version 1 and 2; elsewhere nothing is counted, and such a death looks like any
other.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

_FILES = {"cgroup": "memory.oom_control", "cgroup2": "memory.events"}
_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)
_AGE = 5.0
"""Seconds after which a kill is not that of a child any more whose death was not seen yet: it was another process's."""


class OomKills:
    """Tells of a child that was killed whether the kernel did it. Times are monotonic seconds."""

    def __init__(self, proc: Path = Path("/proc/self")) -> None:
        """`proc`: where the kernel says what control group this process is in."""
        self._file = find_counter(proc)
        self._old = self._recent = self._count()
        self._looked = -math.inf

    def look(self, now: float) -> None:
        """Forget the kills that nobody has asked for: a program that a handler had started, for instance."""
        if now >= self._looked + _AGE:
            self._old, self._recent, self._looked = self._recent, self._count(), now

    def take(self) -> bool:
        """Tell whether there was a kill not long ago; each answers for one death."""
        count = self._count()
        if count <= self._old:
            return False
        self._old += 1
        self._recent = max(self._recent, self._old)
        return True

    def _count(self) -> int:
        if self._file is None:
            return 0
        try:
            found = _COUNT.search(self._file.read_text())
        except OSError:
            return 0
        return 0 if found is None else int(found[1])


def find_counter(proc: Path) -> Path | None:
    """Return the file in which the kernel counts the kills of our control group; None where there is none."""
    try:
        groups = [line.split(":", 2) for line in (proc / "cgroup").read_text().splitlines()]
        mounts = [line.split(" ") for line in (proc / "mountinfo").read_text().splitlines()]
    except OSError:
        return None
    for controller, kind in (("memory", "cgroup"), ("", "cgroup2")):
        for group in (path for _, names, path in groups if controller in names.split(",")):
            for mount in mounts:
                kind_found, _, options = mount[mount.index("-") + 1 :][:3]
                if kind_found != kind or (controller and controller not in options.split(",")):
                    continue
                top = Path(mount[4])
                inner = group.removeprefix(mount[3]) if mount[3] != "/" else group
                for folder in (top / inner.lstrip("/"), top):  # in a container only the latter may be there
                    if (folder / _FILES[kind]).is_file():
                        return folder / _FILES[kind]
    return None
