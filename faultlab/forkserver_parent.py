"""The parent of fork servers (forkserver.py): imports psched once for all pytest workers of a run.

This is a process below the first test process: `python -P forkserver_parent.py DESCRIPTOR`. DESCRIPTOR is a listening
socket. The standard input is a pipe to the test process. At its end of file, this process ends.

A session of tests connects, and sends the length of the body, together with the descriptor of the socket on which the
session will request programs. The body is a tuple in Python's syntax: the modules that the programs need besides
psched. The answer has two lines: the pid of this process, and, after the first request for a program, the pid of the
session's fork server. The fork server is forked off this process, or, if modules are named, off a fork that has
imported them.
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
"""Databases for whose stores the statements are built in advance, because programs would spend time on this. The same
holds for the modules in `_LOADED`.
"""
_POWERS = 6
"""Statements are compiled for 1, 2, 4, 8, 16 and 32 types, because psched pads numbers of types to a power of two."""


@dataclass(frozen=True)
class Session:
    """The request of a session of tests: its listening socket, its connection, and the modules to import.

    The connection stays open until the session ends.
    """

    listener: socket.socket
    connection: socket.socket
    modules: tuple[str, ...]

    def close(self) -> None:
        """Close this process's sockets of the session, which another process serves."""
        self.listener.close()
        self.connection.close()


class Parent:
    """Forks a fork server for each session. In each fork server, `serve` returns the session."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._sessions: list[Session] = []
        self._modules: tuple[str, ...] = ()
        self._loaded = False
        self._forks: dict[tuple[str, ...], socket.socket] = {}

    def serve(self) -> Session:
        """Fork until the run of the tests is over, which ends this process."""
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
        """Fork, and return whether this process is now the fork server of the session."""
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
        """Pass a session on to the fork that has imported its modules. In a new fork, this returns, too."""
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
        """Close, in a fork, the sockets of its parent."""
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
    list(commands.psched.commands.values())  # this imports the module of each command
    if "PSCHED_TEST_UNSYNCED_SQLITE" in os.environ:
        unsynced: Any = importlib.import_module("faultlab.unsynced_sqlite")
        unsynced.sync_nothing()
    for url in _URLS:
        _preload(url)
    _compile()
    setproctitle.getproctitle()  # this finds the memory of the process title, which is beside the first environment


def _preload(url: str) -> None:
    """Build the statements of the stores once, as each master does before it forks. Connects to no database."""
    preload: Any = importlib.import_module("psched.supervisor.preload_libraries")
    config: Any = importlib.import_module("psched.config")
    preload.preload(config.from_mapping({"type": "rdb", "url": url, "schedules": {}, "queue": {}}))


def _compile() -> None:
    """Do once what masters and children do at their start: compile statements for SQLite, and write a status."""
    status: Any = importlib.import_module("psched.supervisor.master_status")
    status.MasterStatus().line()
    config: Any = importlib.import_module("psched.config")
    sections: Any = importlib.import_module("psched.execution.opened_stores")
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
