"""Forks Python programs off a process that has imported psched.

A fork takes milliseconds; a new interpreter takes a second to import psched. Each session of tests has a fork server.
The parent of the fork server (forkserver_parent.py) forks it when the session asks for the first program. The fork
server ends with the session, and then kills all programs.

A request is one connection. The client sends the length of the body, together with the three standard descriptors. The
body is a dict in Python's syntax: `argv` (the program's file first), `cwd`, `environ`, and `session` (whether to begin
a session). The answer has two lines: first the pid, and in the end the exit code as in `subprocess`.
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
    """Serves one request after another. In each forked child, `serve` returns the request."""

    def __init__(self, listener: socket.socket, session: socket.socket) -> None:
        """`session`: a socket, which is at end of file when the session of tests is over."""
        self._listener = listener
        self._session = session
        self._waiting: dict[int, socket.socket] = {}
        self._selector = selectors.DefaultSelector()
        self._reader, self._writer = os.pipe()

    def serve(self) -> dict[str, Any]:
        """Fork until the session is over, which ends this process. In each child, return the request."""
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
            # Otherwise the garbage collector would close these descriptors later, when the program uses their numbers
            # again.
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
    """Return the body of a request, and the `count` descriptors that were sent with it."""
    header, descriptors, _, _ = socket.recv_fds(connection, HEADER, count)
    size, body = int.from_bytes(header, "big"), b""
    while len(body) < size:
        body += connection.recv(size - len(body))
    return ast.literal_eval(body.decode()), list(descriptors)


def tell(connection: socket.socket, number: int) -> None:
    """Send a line with a number. Do nothing if the client is gone."""
    try:
        connection.sendall(b"%d\n" % number)
    except OSError as error:  # the client is gone, or has closed its end
        if error.errno not in (errno.EPIPE, errno.ECONNRESET):
            raise


def _take_over(standard: list[int], at_once: bool) -> None:
    """Make these descriptors the standard descriptors, and close all others."""
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
    """Run the requested program in this process, and end the process.

    An error of the program is raised, so that the interpreter reports it.
    """
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
    """End the process like an interpreter, but free no memory: this would copy shared pages, which takes 60 ms."""
    shutdown: Any = threading
    shutdown._shutdown()
    atexit._run_exitfuncs()
    with suppress(OSError):  # in case of an error, `sys.exit` below reports it
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code & 0xFF)
    sys.exit(code)
