"""Databases that many tests share, each test with tables of its own: a fresh database costs a quarter of a second."""

from __future__ import annotations

import itertools
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from tests.lab.laboratory import Lab
from tests.lab.mariadb import MariaDB
from tests.lab.postgresql import PostgreSQL
from tests.lab.servers import Server
from tests.stores.bench import Bench

KINDS: dict[str, type[Server]] = {"mariadb": MariaDB, "postgresql": PostgreSQL}
DATABASES = ["sqlite", *KINDS]
STORES = ["rdb", "rdb_compat"]


class Places:
    """Gives out benches: a context object, which drops the databases in the end."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab
        self._stack = ExitStack()
        self._urls: dict[type[Server], str] = {}
        self._numbers = itertools.count()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def bench(self, type_: str, database: str, folder: Path) -> Bench:
        """Return a bench for a table that does not exist yet; SQLite's file is in `folder`."""
        url = f"sqlite:///{folder}/psched.db" if database == "sqlite" else self.url(KINDS[database])
        return Bench(type_, url, f"schedules_{next(self._numbers)}")

    def url(self, kind: type[Server]) -> str:
        """Return the URL of the database on a server of this kind."""
        if kind not in self._urls:
            self._urls[kind] = self._stack.enter_context(self._lab.shared(kind).database())
        return self._urls[kind]
