"""What a test needs and this machine lacks: the test is then NOT RUN, by name and reason. In the test process.

`python -m tests.lab.absent` prints the packages that would complete this machine, for scripts/test to install.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest

NOT_RUN = "NOT RUN: "
"""How the reason of such a test begins."""

PACKAGES = {
    "cc": (None, "gcc libc6-dev"),
    "mariadbd": ("mariadb", "mariadb-server"),
    "mariadb-install-db": ("mariadb", "mariadb-server"),
    "postgres": ("postgresql@17", "postgresql"),
    "initdb": ("postgresql@17", "postgresql"),
    "redis-server": ("redis", "redis-server"),
    "systemd-analyze": (None, "systemd"),
    "systemd-nspawn": (None, "systemd-container"),
    "dbus-daemon": (None, "dbus"),
    "logrotate": (None, "logrotate"),
}
"""Program → the Homebrew formula and the Debian packages it comes with."""

_SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"
_ELSEWHERE = {
    "/usr/lib/postgresql": "*/bin",
    "/opt/homebrew/opt": "postgresql*/bin",
    "/usr/local/opt": "postgresql*/bin",
}
"""Where packages put programs that are not on the path: several versions side by side."""


def not_run(reason: str) -> NoReturn:
    """End the test as NOT RUN; with PSCHED_REQUIRE_ALL=1 that is a failure."""
    pytest.skip(NOT_RUN + reason)


def find(*names: str) -> Path:
    """Return where the first of these programs that is installed is, else end the test as NOT RUN."""
    for name in names:
        if path := _locate(name):
            return path
    formula, packages = PACKAGES.get(names[0], (None, None))
    command, what = ("brew", formula) if sys.platform == "darwin" else ("apt-get", packages)
    not_run(f"{names[0]} not found" + (f", install with: {command} install {what}" if what else ""))


def lacking() -> list[str]:
    """Return the packages that would bring what is missing, under this system's names."""
    column = 0 if sys.platform == "darwin" else 1
    packages = [PACKAGES[name][column] for name in PACKAGES if _locate(name) is None]
    return sorted({name for names in packages if names is not None for name in names.split()})


def _locate(name: str) -> Path | None:
    folders = [folder for root, pattern in _ELSEWHERE.items() for folder in Path(root).glob(pattern)]
    for folder in sorted(folders, key=_version, reverse=True):
        if (folder / name).is_file():
            return folder / name
    found = shutil.which(name) or shutil.which(name, path=_SYSTEM)
    return Path(found) if found else None


def _version(folder: Path) -> int:
    digits = re.search(r"\d+", folder.parent.name)
    return int(digits[0]) if digits else 0


if __name__ == "__main__":
    print(*lacking())
