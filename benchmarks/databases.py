"""Creates a fresh, durable database on a private server for each measurement. In the measuring process."""

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
    """As it is installed."""


class DefaultMariaDB(mariadb.MariaDB):
    """As it is installed: with memory enough, which the laboratory's has not."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M"]


class DefaultRedis(redis.Redis):
    """As it is installed: snapshots, no append-only file."""

    def _command(self) -> list[str]:
        return [*super()._command(), "--save", "3600 1 300 100 60 10000", "--appendonly", "no"]


_SERVERS: dict[str, type[Server]] = {"postgresql": DefaultPostgreSQL, "mariadb": DefaultMariaDB, "redis": DefaultRedis}

DURABILITY = {
    "postgresql": "fsync on, synchronous_commit on: each commit is on disk",
    "mariadb": "innodb_flush_log_at_trx_commit 1, doublewrite on, no binary log: each commit is on disk",
    "sqlite": "WAL, synchronous FULL: each commit is on disk",
    "redis": "snapshots only: a power cut loses up to minutes",
}
"""Store → what a commit means. These are the defaults of the servers and, for SQLite, of psched."""

STORES = tuple(DURABILITY)

BEHIND = {"pgbouncer": "postgresql"}
"""Pooler → the store behind it: the same place for psched, by another way. Measured only where it is asked for."""


@dataclass(frozen=True)
class Place:
    """A fresh, empty database. `folder` is there for whatever goes with one measurement."""

    store: str
    url: str
    folder: Path
    server: Server | None


class Grounds:
    """All places of one run of the benchmark, for any thread; servers are started when first needed."""

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
        """Yield a place of this store, and leave nothing of it."""
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
        """Yield the place of this store with this name, which stays as it is left until all is closed."""
        if (store, name) not in self._lasting:
            self._lasting[store, name] = self._kept.enter_context(self.place(store))
        yield self._lasting[store, name]

    def close(self) -> None:
        """End all servers."""
        self._kept.close()
        for server in self._servers.values():
            server.close()

    def _server(self, store: str) -> Server:
        if store in BEHIND and store not in self._servers:
            self._servers[store] = PgBouncer(self._server(BEHIND[store]), "transaction", sessions=10).__enter__()
        elif store not in self._servers:
            self._servers[store] = self._lab.private(_SERVERS[store], durable=True).__enter__()
        return self._servers[store]
