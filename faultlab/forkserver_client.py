"""The client of the fork server (forkserver.py), which starts Python programs. Runs in the test process.

An interpreter that imports psched takes a second of processor time. A fork takes some milliseconds.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, Any, Self

SOCKET = "PSCHED_TEST_FORKSERVER"
"""The environment variable with the path of the socket of the session's fork server."""

PARENT = "PSCHED_TEST_FORK_PARENT"
"""The environment variable with the path of the socket of the process that forks the fork servers of this run."""

HEADER = 8
"""The number of bytes of a request's length."""

_PARENT_PROGRAM = Path(__file__).with_name("forkserver_parent.py")
_ROOT = Path(__file__).parents[1]
_NOT_AFTER_A_FORK = ("LD_PRELOAD", "DYLD_INSERT_LIBRARIES")
"""Variables that take effect only when a process starts."""


class ForkParent:
    """The process that forks the fork servers of a run (forkserver_parent.py). A context manager."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="psched-fork-")
        self.path = Path(self._folder.name) / "socket"
        with _listening(self.path) as listener:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(_PARENT_PROGRAM), str(listener.fileno())],
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
                stdin=subprocess.PIPE,
                pass_fds=[listener.fileno()],
            )
        return self

    def __exit__(self, *error: object) -> None:
        with self._process:
            pass  # closing its stdin ends the process
        self._folder.cleanup()

    @property
    def descriptors(self) -> set[int]:
        """The descriptors of this process that belong to the parent of fork servers."""
        assert self._process.stdin is not None
        return {self._process.stdin.fileno()}


class Forks:
    """The fork server of a session. Its parent is the process that `PARENT` names, or else a parent of its own.

    A context manager.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        """`modules`: the modules that the programs need besides psched."""
        self._modules = tuple(modules)
        self._parent = None if PARENT in os.environ else ForkParent()
        self._told = b""

    def __enter__(self) -> Self:
        parent = os.environ.get(PARENT) if self._parent is None else str(self._parent.__enter__().path)
        self._folder = tempfile.TemporaryDirectory(prefix="psched-fork-")
        self.path = Path(self._folder.name) / "socket"
        self._connection = socket.socket(socket.AF_UNIX)
        self._connection.connect(str(parent))
        with _listening(self.path) as listener:
            _ask(self._connection, self._modules, [listener.fileno()])
        return self

    def __exit__(self, *error: object) -> None:
        self._connection.shutdown(socket.SHUT_WR)
        while self._connection.recv(64):
            pass  # until the server has ended
        self._connection.close()
        self._folder.cleanup()
        if self._parent is not None:
            self._parent.__exit__(*error)

    @property
    def pids(self) -> list[int]:
        """The pid of the server's parent, and the pid of the server if a program was requested.

        Waits until the parent has sent its pid.
        """
        if not self._told:
            self._told = self._connection.recv(64)
        with suppress(BlockingIOError):
            self._told += self._connection.recv(64, socket.MSG_DONTWAIT)
        return [int(line) for line in self._told.split(b"\n")[:-1]]

    @property
    def descriptors(self) -> set[int]:
        """The descriptors of the test process that belong to the fork server."""
        return {self._connection.fileno()} | (set() if self._parent is None else self._parent.descriptors)


class Forked:
    """A forked program, with those methods of `subprocess.Popen` that the tests use."""

    def __init__(self, argv: Sequence[str], connection: socket.socket, *streams: IO[bytes] | None) -> None:
        self.args = list(argv)
        self.stdin, self.stdout, self.stderr = streams
        self.returncode: int | None = None
        self._connection = connection
        self._told = b""
        self.pid = int(self._line(None))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.stdin is not None:
            self.stdin.close()
        self.wait()
        self._close()

    def poll(self) -> int | None:
        """Return the program's exit code; None if the program still runs."""
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program, and return its exit code, negative for a signal.

        Raises TimeoutExpired (seconds).
        """
        if self.returncode is None:
            self.returncode = int(self._line(timeout))
            self._connection.close()
        return self.returncode

    def communicate(self, timeout: float | None = None) -> tuple[bytes, bytes]:
        """Wait until the program and its outputs have ended, and return the outputs.

        Raises TimeoutExpired (seconds).
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        said: dict[int, bytes] = {output.fileno(): b"" for output in (self.stdout, self.stderr) if output is not None}
        living = set(said)
        while living:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            ready, _, _ = select.select(living, [], [], left)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            for output in ready:
                piece = os.read(output, 65536)
                said[output] += piece
                living -= {output} if not piece else set()
        self.wait(timeout)
        texts = [b"" if output is None else said[output.fileno()] for output in (self.stdout, self.stderr)]
        self._close()
        return texts[0], texts[1]

    def send_signal(self, number: int) -> None:
        """Send a signal to the program, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, but the server has not yet sent the exit code
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _close(self) -> None:
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                stream.close()

    def _line(self, timeout: float | None) -> bytes:
        while b"\n" not in self._told:
            if timeout is not None and not select.select([self._connection], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout)
            told = self._connection.recv(64)
            if not told:
                self._connection.close()
                raise EOFError("the fork server has ended")
            self._told += told
        line, _, self._told = self._told.partition(b"\n")
        return line


Process = subprocess.Popen[bytes] | Forked


def start(argv: Sequence[str], cwd: Path, env: Mapping[str, str], **options: Any) -> Process:
    """Start a Python program, whose file is `argv[0]`. Fork it if possible, otherwise start an interpreter.

    `env` may name another fork server than the environment of this process. `options`: as for `subprocess.Popen`.
    """
    forkable = options.keys() <= {
        "stdin",
        "stdout",
        "stderr",
        "start_new_session",
    }
    server = env.get(SOCKET, os.environ.get(SOCKET))
    if server is None or not forkable or any(name in env for name in _NOT_AFTER_A_FORK):
        return subprocess.Popen([sys.executable, *argv], cwd=cwd, env=env, **options)
    with ExitStack() as stack:
        standard = [_descriptor(stack, options.get(name), n) for n, name in enumerate(("stdin", "stdout", "stderr"))]
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(server)
        wanted = {"argv": list(argv), "cwd": str(cwd), "environ": dict(env), "session": "start_new_session" in options}
        _ask(connection, wanted, [given for given, _ in standard])
        return Forked(argv, connection, *(ours for _, ours in standard))


def run(argv: Sequence[str], cwd: Path, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run a Python program, whose file is `argv[0]`, for at most `timeout` seconds.

    Return its exit code and output. Raises TimeoutExpired.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = start(argv, cwd, os.environ, stdin=subprocess.DEVNULL, **pipes)
    with process:
        try:
            out, err = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode is not None
    return subprocess.CompletedProcess(argv, process.returncode, out.decode(), err.decode())


def _listening(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen(64)
    return listener


def _ask(connection: socket.socket, what: object, descriptors: list[int]) -> None:
    body = repr(what).encode()
    socket.send_fds(connection, [len(body).to_bytes(HEADER, "big")], descriptors)
    connection.sendall(body)


def _descriptor(stack: ExitStack, option: Any, number: int) -> tuple[int, IO[bytes] | None]:
    """Return the program's standard descriptor `number`, and our end if this descriptor is a pipe."""
    if option is None:
        return number, None
    if option == subprocess.DEVNULL:
        return stack.enter_context(open(os.devnull, "r+b", buffering=0)).fileno(), None  # noqa: PTH123
    if option != subprocess.PIPE:
        return option if isinstance(option, int) else option.fileno(), None
    reader, writer = os.pipe()
    theirs, ours = (writer, reader) if number else (reader, writer)
    stack.callback(os.close, theirs)
    return theirs, open(ours, "rb" if number else "wb")  # noqa: PTH123 – closed by whoever uses it
