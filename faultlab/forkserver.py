"""Forks Python programs off a process that has imported psched: it costs milliseconds, an interpreter's start a second.

A process of its own, below the test process: `python -P forkserver.py DESCRIPTOR MODULE …`. The descriptor is that of a
listening socket; the modules are imported at the first request, besides those that each of psched's programs needs.
Its stdin is a pipe whose other end the test process keeps: at the end of file all children are killed.

A request is one connection: the length of what follows, with the three standard descriptors; then a dict as Python
writes it: `argv` (the program's file first), `cwd`, `environ`, `session` (whether to begin one). The answer is the pid,
a line, and in the end the exit code as `subprocess` has it, another line.
"""

from __future__ import annotations

import ast
import atexit
import errno
import gc
import importlib
import io
import os
import runpy
import selectors
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import setproctitle

from faultlab.forkserver_client import HEADER

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


class ForkServer:
    """Serves one request after another; `serve` returns in each child, with what it is to be."""

    def __init__(self, listener: socket.socket, modules: Sequence[str]) -> None:
        self._listener = listener
        self._modules = modules
        self._waiting: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = os.pipe()
        self._loaded = False

    def serve(self) -> dict[str, Any]:
        """Fork until the tests are over, which ends the process; return what is asked for in each child."""
        for descriptor in (self._reader, self._writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for source in (_LIFELINE, self._listener.fileno(), self._reader):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            ready = {key.fd for key, _ in self._selector.select()}
            if _LIFELINE in ready:
                self._end()
            if self._reader in ready:
                self._reap()
            if self._listener.fileno() in ready and (wanted := self._fork()) is not None:
                return wanted

    def _fork(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        wanted, standard = _received(connection)
        self._load()
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            _take_over(standard, "PYTHONUNBUFFERED" in wanted["environ"])
            return wanted
        for descriptor in standard:
            os.close(descriptor)
        self._waiting[pid] = connection
        _tell(connection, pid)
        return None

    def _load(self) -> None:
        if not self._loaded:
            for name in (*_LOADED, *self._modules):
                importlib.import_module(name)
            commands: Any = importlib.import_module("psched.cli.main")
            list(commands.psched.commands.values())  # imports the module of each command
            if "PSCHED_TEST_UNSYNCED_SQLITE" in os.environ:
                unsynced: Any = importlib.import_module("faultlab.unsynced_sqlite")
                unsynced.sync_nothing()
            for url in _URLS:
                _preload(url)
            _compile()
            setproctitle.getproctitle()  # finds the place of titles, which is next to that of the first environment
            gc.freeze()
        self._loaded = True

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                with self._waiting.pop(ended[0]) as connection:
                    _tell(connection, os.waitstatus_to_exitcode(ended[1]))

    def _end(self) -> None:
        for pid in self._waiting:
            os.kill(pid, signal.SIGKILL)
        sys.exit()


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


def _received(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    header, descriptors, _, _ = socket.recv_fds(connection, HEADER, 3)
    size, body = int.from_bytes(header, "big"), b""
    while len(body) < size:
        body += connection.recv(size - len(body))
    wanted: dict[str, Any] = ast.literal_eval(body.decode())
    return wanted, list(descriptors)


def _tell(connection: socket.socket, number: int) -> None:
    try:
        connection.sendall(b"%d\n" % number)
    except OSError as error:  # whoever started it is gone, or does not want to know any more
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise


def _take_over(standard: list[int], at_once: bool) -> None:
    """Have these as standard descriptors, and no other ones."""
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 – they live as long as the process
    sys.stdout = _writing(1, "strict", at_once)
    sys.stderr = _writing(2, "backslashreplace", at_once)


def _writing(descriptor: int, errors: str, at_once: bool) -> io.TextIOWrapper:
    stream = open(descriptor, "w", errors=errors, closefd=False)  # noqa: SIM115
    stream.reconfigure(line_buffering=os.isatty(descriptor) or descriptor == 2, write_through=at_once)
    return stream


def _become(wanted: dict[str, Any]) -> None:
    """Be the program: returns when it has ended, as an interpreter's main module does."""
    if wanted["session"]:
        os.setsid()
    os.chdir(wanted["cwd"])
    os.environ.clear()
    os.environ.update(wanted["environ"])
    sys.argv = wanted["argv"]
    sys.orig_argv = [sys.executable, *sys.argv]
    sys.path.insert(0, str(Path(sys.argv[0]).parent))
    try:
        runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as exit_:
        if exit_.code is not None and not isinstance(exit_.code, int):
            raise
        _leave(exit_.code or 0)
    _leave(0)


def _leave(code: int) -> None:
    """End as an interpreter does, but free nothing: that takes 60 ms, to copy the memory shared with the server."""
    shutdown: Any = threading
    shutdown._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError):  # the interpreter reports it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)
    sys.exit(code)


if __name__ == "__main__":
    _become(ForkServer(socket.socket(fileno=int(sys.argv[1])), sys.argv[2:]).serve())
