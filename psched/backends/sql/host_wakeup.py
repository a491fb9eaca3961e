"""Wakes idle workers on the same host, on databases that cannot notify.

SQLite: each transaction writes to the WAL file, and Linux reports such writes (inotify). The last write comes a few
milliseconds before the commit ends, so a poll right after a wake-up may come too early.

MariaDB and MySQL: a submitter sends a datagram to a socket. The names of the server, the database and the table make
the name of the socket. It is an abstract socket of Linux: no file remains, and no permission is needed. Workers on
other hosts, or in another network namespace, find the submitted row by polling.
"""

from __future__ import annotations

import hashlib
import socket
import sys
from contextlib import suppress

from sqlalchemy import URL

if sys.platform == "linux":
    from inotify_simple import INotify, flags

    _CHANGES = flags.MODIFY | flags.DELETE_SELF  # the last connection that closes deletes the file

_DEFAULT_PORT = 3306
_ENOUGH = 1_000
"""The maximum number of datagrams that one call of `is_notified` reads."""


def socket_name(url: URL, table: str) -> bytes | None:
    """Return the name of the socket for `table`. Processes get the same name if their URLs have the same server name.

    Returns None if this system has no abstract sockets.
    """
    if sys.platform != "linux":
        return None
    server = str(url.query.get("unix_socket") or f"{(url.host or 'localhost').lower()}:{url.port or _DEFAULT_PORT}")
    digest = hashlib.sha256("\0".join((server, url.database or "", table)).encode()).hexdigest()
    return f"\0psched/{digest[:40]}".encode()


def notify_host(name: bytes) -> None:
    """Wake the worker that listens on this host, if any. Never waits and never raises: a poll finds the row anyway."""
    with suppress(OSError), _datagram_socket() as sender:  # nobody listens, or the socket is full of notifications
        sender.sendto(b"1", name)


class HostWakeup:
    """A `Wakeup` for rows that are inserted on this host. Only one of the processes on a host is notified."""

    proven = False
    covers_all_hosts = False

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._socket = _datagram_socket()
        self._is_bound = False

    def listen(self, seconds: float) -> None:
        """Bind the socket's name if no other process has bound it."""
        if not self._is_bound:
            with suppress(OSError):  # the name is bound by another process
                self._socket.bind(self._name)
                self._is_bound = True

    def fileno(self) -> int:
        return self._socket.fileno()

    def is_notified(self) -> bool:
        notified = False
        with suppress(BlockingIOError):
            for _ in range(_ENOUGH):
                self._socket.recv(1)
                notified = True
        return notified

    def stop_listening(self) -> None:
        """Release the socket's name, so that another process can bind it."""
        if self._is_bound:
            self._socket.close()
            self._socket = _datagram_socket()
            self._is_bound = False

    def close(self) -> None:
        self._socket.close()


def _datagram_socket() -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    made.setblocking(False)
    return made


class WalWatch:
    """A `Wakeup` for one waiting thread. Every transaction wakes it, whatever the transaction writes."""

    proven = False
    covers_all_hosts = False

    def __init__(self, path: str) -> None:
        """Raises OSError if the user has too many inotify instances."""
        self._path = path
        self._inotify = INotify(nonblocking=True)
        self._watched: int | None = None

    def listen(self, seconds: float) -> None:
        """Watch the file until `stop_listening`.

        Raises OSError if the file is missing or the user has too many watches.
        """
        if self._watched is None:
            self.is_notified()
        self._watched = self._inotify.add_watch(self._path, _CHANGES)

    def fileno(self) -> int:
        return int(self._inotify.fileno())

    def is_notified(self) -> bool:
        return any(True for _ in self._inotify.read(timeout=0))

    def stop_listening(self) -> None:
        if self._watched is not None:
            with suppress(OSError):  # the file was deleted, and with it the watch
                self._inotify.rm_watch(self._watched)
        self._watched = None

    def close(self) -> None:
        self._inotify.close()
