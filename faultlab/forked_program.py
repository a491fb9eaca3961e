"""A program that lets the fork server run another program. tests/programs.py writes scripts that call `main`.

This module imports few modules: `socket`, `json` and `subprocess` would make each call take 35 ms longer.
"""

from __future__ import annotations

import os
import sys
from _signal import SIGHUP, SIGINT, SIGQUIT, SIGTERM, signal  # type: ignore[import-not-found]
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket

_SOCKET = "PSCHED_TEST_FORKSERVER"
_HEADER = 8
_NOT_AFTER_A_FORK = ("LD_PRELOAD", "DYLD_INSERT_LIBRARIES")
"""Variables that take effect only when a process starts, as in forkserver_client.py."""


def main(argv: list[str]) -> int:
    """Let the fork server run the program `argv` (its file first) with the streams, folder and signals of this process.

    Return the program's exit code. Without a fork server, this process becomes the program.
    """
    if _SOCKET not in os.environ or any(name in os.environ for name in _NOT_AFTER_A_FORK):
        os.execv(sys.executable, [sys.executable, *argv])  # noqa: S606 – without a shell
    connection = socket(AF_UNIX, SOCK_STREAM)
    connection.connect(os.environ[_SOCKET])
    body = repr({"argv": argv, "cwd": os.getcwd(), "environ": dict(os.environ), "session": False}).encode()  # noqa: PTH109
    descriptors = b"".join(number.to_bytes(4, sys.byteorder) for number in range(3))
    connection.sendmsg([len(body).to_bytes(_HEADER, "big")], [(SOL_SOCKET, SCM_RIGHTS, descriptors)])
    connection.sendall(body)
    pid, told = _number(connection, b"")
    for number in (SIGHUP, SIGINT, SIGQUIT, SIGTERM):
        signal(number, lambda number, _: _send(pid, number))
    code, _ = _number(connection, told)
    return 128 - code if code < 0 else code


def _number(connection: socket, told: bytes) -> tuple[int, bytes]:
    """Return the number in the next line of the answer, and the bytes after the line."""
    while b"\n" not in told:
        piece = connection.recv(64)
        if not piece:
            raise EOFError("the fork server has ended")
        told += piece
    line, _, rest = told.partition(b"\n")
    return int(line), rest


def _send(pid: int, number: int) -> None:
    try:  # noqa: SIM105 – contextlib would have to be imported
        os.kill(pid, number)
    except ProcessLookupError:
        pass
