"""The parent of fork servers (forkserver.py): imports psched, once for all pytest workers of a run.

A process of its own, below the first test process: `python -P forkserver_parent.py DESCRIPTOR`. The descriptor is that
of a listening socket. Its stdin is a pipe whose other end the test process keeps: at the end of file it ends.

A session of tests asks by one connection: the length of what follows, with the descriptor of a socket where the
session's programs will be asked for; then the modules that they need besides psched, a tuple as Python writes it. The
answers are lines: the pid of this process, and, once a first program is asked for, that of the session's fork server.
That is a fork of this process, or, where modules are named, of a fork that has imported these.
"""

from __future__ import annotations

import gc
import importlib
import os
import select
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any

import setproctitle

from faultlab.forkserver import ForkServer, received, run_program, tell

_LIFELINE = 0

_LOADED = (
    "psched.cli.main", "psched.cli.pschedd", "psched.supervisor.run_master",
    "psched.handlers.command", "psched.handlers.enqueue",
    "psched.backends.rdb", "psched.backends.rdb_compat", "psched.backends.redis", "psched.backends.sql.sqlite",
    "psched.backends.sql.mysql", "psched.backends.sql.postgresql", "sqlalchemy.dialects.sqlite.pysqlite",
    "sqlalchemy.dialects.mysql.pymysql", "sqlalchemy.dialects.postgresql.psycopg",
)  # fmt: skip
_URLS = ("sqlite:////nowhere/psched.db", "mysql://localhost/psched", "postgresql://localhost/psched")
"""What programs need and would spend their time on: modules, and the statements of the stores on these databases."""
_POWERS = 6
"""Programs ask for so many types, padded to a power of two."""


@dataclass(frozen=True)
class Session:
    """What a session has sent: where it asks for programs, and the modules. The connection lasts as long as it does."""

    listener: socket.socket
    connection: socket.socket
    modules: tuple[str, ...]

    def close(self) -> None:
        """Leave the session to another process."""
        self.listener.close()
        self.connection.close()


class Parent:
    """Forks a fork server for each session; `serve` returns in each of them, with its session."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._sessions: list[Session] = []
        self._modules: tuple[str, ...] = ()
        self._loaded = False
        self._forks: dict[tuple[str, ...], socket.socket] = {}

    def serve(self) -> Session:
        """Fork until the run is over, which ends the process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        while True:
            sources: list[Any] = [_LIFELINE, self._control]
            for session in self._sessions:
                sources += [session.listener, session.connection]
            ready, _, _ = select.select(sources, [], [])
            _reap()
            if _LIFELINE in ready:
                os._exit(0)
            if self._control in ready:
                self._accept()
            for session in self._sessions:
                if session.connection in ready:
                    self._forget(session)
                    break
                if session.listener in ready:
                    if self._fork(session):
                        return session
                    break

    def _accept(self) -> None:
        if self._modules:
            _, descriptors, _, _ = socket.recv_fds(self._control, 1, 2)
            listener, connection = map(_socket, descriptors)
            self._sessions.append(Session(listener, connection, self._modules))
            return
        connection = self._control.accept()[0]
        modules, descriptors = received(connection, 1)
        self._sessions.append(Session(_socket(descriptors[0]), connection, modules))
        tell(connection, os.getpid())

    def _fork(self, session: Session) -> bool:
        """Fork, and return whether this is the fork server of the session."""
        self._load()
        if session.modules != self._modules:
            self._pass_on(session)
            return False
        if os.fork():
            self._forget(session)
            return False
        self._sessions.remove(session)
        self._close()
        return True

    def _pass_on(self, session: Session) -> None:
        """Give a session to the fork that has its modules. Returns in a new fork, too."""
        if session.modules not in self._forks:
            ours, theirs = socket.socketpair()
            if os.fork() == 0:
                ours.close()
                self._close()
                self._control, self._modules, self._loaded = theirs, session.modules, False
                return
            theirs.close()
            self._forks[session.modules] = ours
        descriptors = [session.listener.fileno(), session.connection.fileno()]
        socket.send_fds(self._forks[session.modules], [b"."], descriptors)
        self._forget(session)

    def _close(self) -> None:
        """Close in a fork what is its parent's."""
        for session in self._sessions:
            session.close()
        for each in (self._control, *self._forks.values()):
            each.close()
        self._sessions = []
        self._forks = {}

    def _forget(self, session: Session) -> None:
        self._sessions.remove(session)
        session.close()

    def _load(self) -> None:
        if not self._loaded:
            if self._modules:
                _import(self._modules)
            else:
                _load_psched()
            gc.freeze()
        self._loaded = True


def _socket(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


def _reap() -> None:
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _import(names: Sequence[str]) -> None:
    for name in names:
        importlib.import_module(name)


def _load_psched() -> None:
    _import(_LOADED)
    commands: Any = importlib.import_module("psched.cli.main")
    list(commands.psched.commands.values())  # imports the module of each command
    if "PSCHED_TEST_UNSYNCED_SQLITE" in os.environ:
        unsynced: Any = importlib.import_module("faultlab.unsynced_sqlite")
        unsynced.sync_nothing()
    for url in _URLS:
        _preload(url)
    _compile()
    setproctitle.getproctitle()  # finds the place of titles, which is next to that of the first environment


def _preload(url: str) -> None:
    """Do once what each master does before it forks: build the statements of the stores. Nothing is connected."""
    preload: Any = importlib.import_module("psched.supervisor.preload")
    config: Any = importlib.import_module("psched.config")
    preload.preload(config.from_mapping({"type": "rdb", "url": url, "schedules": {}, "queue": {}}))


def _compile() -> None:
    """Do once what masters and children do when they start: compile statements for SQLite, write a status."""
    status: Any = importlib.import_module("psched.supervisor.master_status")
    status.MasterStatus().line()
    config: Any = importlib.import_module("psched.config")
    sections: Any = importlib.import_module("psched.execution.open_sections")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/psched.db"
        settings = config.from_mapping({"type": "rdb", "url": url, "schedules": {}, "queue": {}})
        for opened in sections.open_sections(settings, "fork server"):
            with closing(opened.source.store) as store:
                store.create_tables()
                store.check_tables()
                for types in (None, *(list(map(str, range(1 << power))) for power in range(_POWERS))):
                    store.prepare(types)
                    store.next_due(types)


if __name__ == "__main__":
    asked_for = Parent(socket.socket(fileno=int(sys.argv[1]))).serve()
    run_program(ForkServer(asked_for.listener, asked_for.connection).serve())
