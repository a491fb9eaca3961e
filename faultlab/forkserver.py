"""Forks Python programs off a process that has imported psched: it costs milliseconds, an interpreter's start a second.

Each session of tests has a fork server, which its parent (forkserver_parent.py) forks when the session asks for the
first program. It ends with the session, and kills all its programs then.

A request is one connection: the length of what follows, with the three standard descriptors; then a dict as Python
writes it: `argv` (the program's file first), `cwd`, `environ`, `session` (whether to begin one). The answer is the pid,
a line, and in the end the exit code as `subprocess` has it, another line.
"""

from __future__ import annotations

import ast
import atexit
import errno
import io
import os
import runpy
import selectors
import signal
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from faultlab.forkserver_client import HEADER


class ForkServer:
    """Serves one request after another; `serve` returns in each child, with what it is to be."""

    def __init__(self, listener: socket.socket, session: socket.socket) -> None:
        """`session`: at the end of file, the session of tests is over."""
        self._listener = listener
        self._session = session
        self._waiting: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = os.pipe()

    def serve(self) -> dict[str, Any]:
        """Fork until the session is over, which ends the process; return what is asked for in each child."""
        for descriptor in (self._reader, self._writer):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for source in (self._session, self._listener, self._reader):
            self._selector.register(source, selectors.EVENT_READ)
        tell(self._session, os.getpid())
        while True:
            ready = {key.fileobj for key, _ in self._selector.select()}
            if self._session in ready:
                self._end()
            if self._reader in ready:
                self._reap()
            if self._listener in ready and (wanted := self._fork()) is not None:
                return wanted

    def _fork(self) -> dict[str, Any] | None:
        connection, _ = self._listener.accept()
        wanted: dict[str, Any]
        wanted, standard = received(connection, 3)
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            # or the garbage collector would close them when the program has opened something else by their numbers
            self._selector.close()
            for each in (self._listener, self._session, connection, *self._waiting.values()):
                each.close()
            _take_over(standard, "PYTHONUNBUFFERED" in wanted["environ"])
            return wanted
        for descriptor in standard:
            os.close(descriptor)
        self._waiting[pid] = connection
        tell(connection, pid)
        return None

    def _reap(self) -> None:
        with suppress(BlockingIOError):
            os.read(self._reader, 4096)
        with suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                with self._waiting.pop(ended[0]) as connection:
                    tell(connection, os.waitstatus_to_exitcode(ended[1]))

    def _end(self) -> None:
        for pid in self._waiting:
            os.kill(pid, signal.SIGKILL)
        os._exit(0)


def received(connection: socket.socket, count: int) -> tuple[Any, list[int]]:
    """Return what is asked for by a connection, and the `count` descriptors that are sent along."""
    header, descriptors, _, _ = socket.recv_fds(connection, HEADER, count)
    size, body = int.from_bytes(header, "big"), b""
    while len(body) < size:
        body += connection.recv(size - len(body))
    return ast.literal_eval(body.decode()), list(descriptors)


def tell(connection: socket.socket, number: int) -> None:
    """Answer with a line."""
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


def run_program(wanted: dict[str, Any]) -> None:
    """Be the program that is asked for: returns when it has ended, as an interpreter's main module does."""
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
