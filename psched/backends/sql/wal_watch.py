"""Wakes idle workers on SQLite: each transaction writes to the WAL file, and Linux reports such writes (inotify).

The last write comes a few milliseconds before the commit ends, so a poll right after a wake-up may come too early.
"""

from __future__ import annotations

import sys
from contextlib import suppress

if sys.platform == "linux":
    from inotify_simple import INotify, flags

    _CHANGES = flags.MODIFY | flags.DELETE_SELF  # the last connection that closes deletes the file


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
