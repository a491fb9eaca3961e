"""What a test needs and this machine lacks: the test is then NOT RUN, by name and reason. In the test process.

`python -m faultlab.absent` prints the packages that would complete this machine, for scripts/test to install.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

CHOSEN = "PSCHED_TEST_SERVERS"
"""The environment variable that names a folder of programs to be taken instead of those that are installed."""

NOT_RUN = "NOT RUN: "
"""How the reason of such a test begins."""


@dataclass(frozen=True)
class Package:
    """What a program belongs to, and the names of its packages; empty where there is none."""

    what: str
    debian: str
    homebrew: str = ""

    @property
    def here(self) -> str:
        """The packages of this system, separated by spaces."""
        return self.homebrew if sys.platform == "darwin" else self.debian

    @property
    def remedy(self) -> str:
        """How to install it here, to be appended to a sentence."""
        command = "brew" if sys.platform == "darwin" else "apt-get"
        return f", install with: {command} install {self.here}" if self.here else ""


_MARIADB = Package("MariaDB", "mariadb-server", "mariadb")
_POSTGRESQL = Package("PostgreSQL", "postgresql", "postgresql@17")

PACKAGES = {
    "cc": Package("C compiler", "gcc libc6-dev"),
    "mariadbd": _MARIADB,
    "mariadb-install-db": _MARIADB,
    "postgres": _POSTGRESQL,
    "initdb": _POSTGRESQL,
    "redis-server": Package("Redis", "redis-server", "redis"),
    "openssl": Package("OpenSSL", "openssl", "openssl"),
    "systemd-analyze": Package("systemd", "systemd"),
    "systemd-nspawn": Package("systemd", "systemd-container"),
    "dbus-daemon": Package("systemd", "dbus"),
    "pgbouncer": Package("PgBouncer", "pgbouncer", "pgbouncer"),
    "logrotate": Package("logrotate", "logrotate"),
}
"""Program → the package it comes with."""

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
    """Return where the first of these programs is, a chosen one before all installed, else end the test as NOT RUN."""
    for locate in (chosen, _locate):
        for name in names:
            if path := locate(name):
                return path
    package = PACKAGES.get(names[0])
    not_run(f"{package.what}: {names[0]} not found{package.remedy}" if package else f"{names[0]} not found")


def chosen(name: str) -> Path | None:
    """Return where this program is in the folder that PSCHED_TEST_SERVERS names; None when it is not there."""
    folder = os.environ.get(CHOSEN)
    path = Path(folder, name).absolute() if folder else None
    return path if path is not None and path.is_file() else None


def lacking() -> list[str]:
    """Return the packages that would bring what is missing, under this system's names."""
    return sorted({name for program in PACKAGES if not _locate(program) for name in PACKAGES[program].here.split()})


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
