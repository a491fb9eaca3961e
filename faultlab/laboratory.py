"""The servers that the tests of a session share.

Each is started when a test first needs it. Runs in the test process.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from faultlab.clock import WallClock, build_shim
from faultlab.forkserver_client import Forks
from faultlab.mariadb import MariaDB
from faultlab.mysql_multiplexer import MultiplexedMariaDB
from faultlab.pgbouncer import PgBouncer
from faultlab.postgresql import PostgreSQL
from faultlab.servers import Server
from faultlab.unprivileged import chown_to_server_user


class Lab:
    """The servers that the tests of a session share, each started when it is first needed. A context manager."""

    def __init__(self, templates: Path | None = None) -> None:
        """`templates`: a folder of prepared data that other sessions use, too."""
        self._folder: Path | None = None
        self._templates = templates
        self._shared: dict[type[Server], Server] = {}
        self._forks = ExitStack()
        self._fork_servers: dict[tuple[str, ...], Forks] = {}
        self.kept: set[int] = set()
        """File descriptors of other objects that stay open between tests."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._forks.close()
        for server in self._shared.values():
            server.close()
        if self._folder is not None:
            shutil.rmtree(self._folder)

    def shared(self, kind: type[Server]) -> Server:
        """Return the running server of this kind, which all tests share. A test must leave it as it was before."""
        if kind not in self._shared:
            self._shared[kind] = self.private(kind).__enter__()
        return self._shared[kind]

    def shared_pooler(self, kind: type[PgBouncer] | type[MultiplexedMariaDB]) -> Server:
        """Return the running pooler of this kind, which all tests share. It has 8 sessions with a shared server."""
        if kind not in self._shared:
            if issubclass(kind, PgBouncer):
                self._shared[kind] = kind(self.shared(PostgreSQL), "transaction", sessions=8).__enter__()
            else:
                self._shared[kind] = kind(self.shared(MariaDB), sessions=8).__enter__()
        return self._shared[kind]

    def fork_server(self, modules: tuple[str, ...] = ()) -> Path:
        """Return the socket of the fork server whose programs need these modules besides psched."""
        if modules not in self._fork_servers:
            self._fork_servers[modules] = self._forks.enter_context(Forks(modules))
        return self._fork_servers[modules].path

    def private(self, kind: type[Server], *, durable: bool = False) -> Server:
        """Return a new server, not started, that belongs to one test."""
        return kind(template=self.templates / kind.__name__, durable=durable)

    def wall_clock(self) -> WallClock:
        """Return a wall clock that shows the true time until it is set."""
        library = self.folder / "clock_shim.so"
        if not library.exists():
            build_shim(self.folder)
        return WallClock(library, self.folder / f"clock-{uuid.uuid4().hex}")

    @property
    def templates(self) -> Path:
        """The folder in which the data of new servers are prepared."""
        return self.folder if self._templates is None else self._templates

    @property
    def folder(self) -> Path:
        """The folder of other prepared files, which are kept for the session."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="psched-lab-"))
            chown_to_server_user(self._folder)
        return self._folder

    @property
    def servers(self) -> set[int]:
        """The pids of the wrappers of the shared servers. All processes of a server descend from its wrapper."""
        return {server.wrapper for server in self._shared.values()}

    @property
    def fork_servers(self) -> list[list[int]]:
        """For each fork server, the pid of its parent, and its own pid if it has started."""
        return [server.pids for server in self._fork_servers.values()]

    @property
    def descriptors(self) -> set[int]:
        """The descriptors of the test process that belong to these servers."""
        of_fork_servers = (server.descriptors for server in self._fork_servers.values())
        return self.kept.union(*of_fork_servers, *(server.descriptors for server in self._shared.values()))
