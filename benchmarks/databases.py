"""Creates a fresh, durable database on a private server for each measurement. Runs in the measuring process."""

from __future__ import annotations

import itertools
import shutil
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from faultlab import mariadb, postgresql, redis
from faultlab.laboratory import Lab
from faultlab.pgbouncer import PgBouncer
from faultlab.servers import Server


class DefaultPostgreSQL(postgresql.PostgreSQL):
    """PostgreSQL with the settings that an installation has."""


class DefaultMariaDB(mariadb.MariaDB):
    """MariaDB with the memory that an installation has by default. MariaDB servers of tests have less."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M"]


class DefaultRedis(redis.Redis):
    """Redis with the settings that an installation has: snapshots, but no append-only file."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--save", "3600 1 300 100 60 10000", "--appendonly", "no"]


_SERVERS: dict[str, type[Server]] = {"postgresql": DefaultPostgreSQL, "mariadb": DefaultMariaDB, "redis": DefaultRedis}

DURABILITY = {
    "postgresql": "fsync on, synchronous_commit on: each commit is on disk",
    "mariadb": "innodb_flush_log_at_trx_commit 1, doublewrite on, no binary log: each commit is on disk",
    "sqlite": "WAL, synchronous FULL: each commit is on disk",
    "redis": "snapshots only: a power cut loses up to minutes",
}
"""For each store, what a commit guarantees. These are the defaults of the servers, and psched's default for SQLite."""

STORES = tuple(DURABILITY)

BEHIND = {"pgbouncer": "postgresql"}
"""For each pooler, the store behind the pooler. Poolers are only measured if `--store` names them."""


@dataclass(frozen=True)
class Place:
    """A fresh, empty database. `folder` is for the files of one measurement."""

    store: str
    url: str
    folder: Path
    server: Server | None


class Grounds:
    """All places of one run of the benchmark. Starts each server when it is first needed. Thread-safe."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self._lab = lab
        self._folder = folder
        self._servers: dict[str, Server] = {}
        self._numbers = itertools.count(1)
        self._lasting: dict[tuple[str, str], Place] = {}
        self._kept = ExitStack()
        self._starting = threading.Lock()

    @contextmanager
    def place(self, store: str) -> Iterator[Place]:
        """Yield a new place with this store. Afterwards delete its database and its folder."""
        folder = self._folder / f"{store}-{next(self._numbers)}"
        folder.mkdir()
        try:
            if store == "sqlite":
                yield Place(store, f"sqlite:///{folder / 'bench.db'}", folder, None)
            else:
                with ExitStack() as stack:
                    with self._starting:
                        server = self._server(store)
                        url = stack.enter_context(server.database())
                    yield Place(BEHIND.get(store, store), url, folder, server)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def lasting(self, store: str, name: str) -> Iterator[Place]:
        """Yield the place with this store and name. The place keeps its contents until `close`."""
        if (store, name) not in self._lasting:
            self._lasting[store, name] = self._kept.enter_context(self.place(store))
        yield self._lasting[store, name]

    def close(self) -> None:
        """Delete all places, and end all servers."""
        self._kept.close()
        for server in self._servers.values():
            server.close()

    def _server(self, store: str) -> Server:
        if store in BEHIND and store not in self._servers:
            self._servers[store] = PgBouncer(self._server(BEHIND[store]), "transaction", sessions=10).__enter__()
        elif store not in self._servers:
            self._servers[store] = self._lab.private(_SERVERS[store], durable=True).__enter__()
        return self._servers[store]
