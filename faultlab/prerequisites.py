"""Programs that tests need. A test whose program is missing is NOT RUN, with a reason that says how to install it.

`python -m faultlab.prerequisites [pytest's arguments]` prints the packages that the selected tests need and this
machine lacks; scripts/test installs them. If the machine lacks no package at all, the tests are not collected.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NoReturn

import pytest

CHOSEN = "PSCHED_TEST_SERVERS"
"""The environment variable that names a folder of programs. These take precedence over installed programs."""

NOT_RUN = "NOT RUN: "
"""The beginning of the reason of a test that is NOT RUN."""


@dataclass(frozen=True)
class Package:
    """A product, and the names of its packages on each system. A name is empty if the system has no package."""

    product: str
    debian: str
    homebrew: str = ""

    @property
    def here(self) -> str:
        """The names of the packages on this system, separated by spaces."""
        return self.homebrew if sys.platform == "darwin" else self.debian

    @property
    def remedy(self) -> str:
        """How to install the packages on this system, as the end of a sentence."""
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
    "prometheus": Package("Prometheus", "prometheus", "prometheus"),
    "promtool": Package("Prometheus", "prometheus", "prometheus"),
    "logrotate": Package("logrotate", "logrotate"),
    "chromium": Package("Chromium", "chromium"),
}
"""For each program, the package that contains it."""

_PROGRAMS: dict[str, tuple[str, ...]] = {
    "sqlite": (),
    "mariadb": ("mariadbd", "mariadb-install-db"),
    "mysqlclient": ("mariadbd", "mariadb-install-db"),
    "galera": ("mariadbd", "mariadb-install-db"),
    "postgresql": ("postgres", "initdb"),
    "pair": ("postgres", "initdb"),
    "pgbouncer": ("pgbouncer", "postgres", "initdb"),
    "multiplexer": ("mariadbd", "mariadb-install-db"),
    "redis": ("redis-server",),
    "wall_clock": ("cc",),
    "machine": ("systemd-nspawn", "dbus-daemon"),
}
"""For each fixture or parameter of a test, the programs that it needs. The names are in lower case.

If a test has none of these, the names that its module imports from `faultlab` are looked up.
"""

_SYSTEM = "/usr/local/sbin:/usr/sbin:/sbin"
_ELSEWHERE = {
    "/usr/lib/postgresql": "*/bin",
    "/opt/homebrew/opt": "postgresql*/bin",
    "/usr/local/opt": "postgresql*/bin",
}
"""Folders of programs that are not on the path, with patterns. There, several versions may be installed side by side.
"""


def not_run(reason: str) -> NoReturn:
    """End the test as NOT RUN. With PSCHED_REQUIRE_ALL=1 this is a failure."""
    pytest.skip(NOT_RUN + reason)


def require_mysqlclient() -> None:
    """End the test as NOT RUN if the driver mysqlclient is not installed."""
    if find_spec("MySQLdb") is None:
        not_run("mysqlclient: not installed, install with: pip install mysqlclient (it needs libmariadb-dev)")


def find(*names: str) -> Path:
    """Return the path of the first of these programs that exists. If none exists, end the test as NOT RUN.

    Programs in the folder named by PSCHED_TEST_SERVERS take precedence over installed programs.
    """
    for locate in (chosen, _locate):
        for name in names:
            if path := locate(name):
                return path
    package = PACKAGES.get(names[0])
    not_run(f"{package.product}: {names[0]} not found{package.remedy}" if package else f"{names[0]} not found")


def chosen(name: str) -> Path | None:
    """Return the path of this program in the folder named by PSCHED_TEST_SERVERS; None if it is not there."""
    folder = os.environ.get(CHOSEN)
    path = Path(folder, name).absolute() if folder else None
    return path if path is not None and path.is_file() else None


def missing(programs: Iterable[str]) -> list[str]:
    """Return the packages of the programs that this machine lacks."""
    lacking = [PACKAGES[program] for program in programs if program in PACKAGES and not _locate(program)]
    return sorted({name for package in lacking for name in package.here.split()})


class CollectPrograms:
    """pytest plugin: collects in `programs` the names of the programs that the selected tests need."""

    def __init__(self) -> None:
        self.programs: set[str] = set()

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            self.programs.update(_programs_of(item))


def _programs_of(item: pytest.Item) -> Iterator[str]:
    for marker in item.iter_markers("needs"):
        yield from marker.args
    if not isinstance(item, pytest.Function):
        return
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    words = set(item.fixturenames)
    if "unit" not in item.path.parts:  # in unit tests, a parameter such as "redis" may be a word of a configuration
        words.update(_words(list(parameters.values())))
        if not words & _PROGRAMS.keys():  # if no parameter names a server, use all that the module imports
            words.update(name.lower() for name, value in vars(item.module).items() if _is_of_faultlab(value))
    for word in words & _PROGRAMS.keys():
        yield from _PROGRAMS[word]


def _words(value: Any) -> Iterator[str]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from _words(part)
    elif isinstance(value, str | type):
        yield (value if isinstance(value, str) else value.__name__).lower()


def _is_of_faultlab(value: object) -> bool:
    return str(getattr(value, "__module__", "")).startswith("faultlab.")


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


def main() -> None:
    """Print the missing packages, separated by spaces. The output of pytest goes to stderr."""
    packages = missing(PACKAGES)
    if packages:
        needed = CollectPrograms()
        with redirect_stdout(sys.stderr):
            pytest.main(["--collect-only", "-qq", "--no-summary", *sys.argv[1:]], plugins=[needed])
        packages = missing(needed.programs)
    print(*packages)


if __name__ == "__main__":
    main()
