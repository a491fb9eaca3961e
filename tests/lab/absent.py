"""What a test needs and this machine lacks: the test is then NOT RUN, by name and reason. In the test process."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

import pytest

NOT_RUN = "NOT RUN: "
"""How the reason of such a test begins."""

PACKAGES = {
    "cc": ("gcc", "gcc libc6-dev"),
    "mariadbd": ("mariadb", "mariadb-server"),
    "mariadb-install-db": ("mariadb", "mariadb-server"),
    "postgres": ("postgresql", "postgresql"),
    "initdb": ("postgresql", "postgresql"),
    "redis-server": ("redis", "redis-server"),
    "systemd-analyze": (None, "systemd"),
    "systemd-nspawn": (None, "systemd-container"),
    "dbus-daemon": (None, "dbus"),
}
"""Program → the Homebrew formula and the Debian packages it comes with."""


def not_run(reason: str) -> NoReturn:
    """End the test as NOT RUN; with PSCHED_REQUIRE_ALL=1 that is a failure."""
    pytest.skip(NOT_RUN + reason)


def find(*names: str, folders: Iterable[Path] = ()) -> Path:
    """Return the first of these programs that is in a folder or on the path, else end the test as NOT RUN."""
    for name in names:
        for folder in folders:
            if (folder / name).is_file():
                return folder / name
        if found := shutil.which(name) or shutil.which(name, path="/usr/local/sbin:/usr/sbin:/sbin"):
            return Path(found)
    not_run(f"{names[0]} not found{_remedy(names[0])}")


def _remedy(name: str) -> str:
    formula, packages = PACKAGES.get(name, (None, None))
    if sys.platform == "darwin":
        return f", install with: brew install {formula}" if formula else ""
    return f", install with: apt-get install {packages}" if packages else ""
