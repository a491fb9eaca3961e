"""Waking a handler thread for a task of this very process, where the database calls nobody. In the host's process.

Each ring wakes one thread that rests. Other processes find the task by polling.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from psched.store import Accepts, LeaseStore, Wakeup


class LocalWakeup:
    """Gives each handler thread a bell of its own, and rings the one that has been listening longest."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._listening: list[ThreadWakeup] = []

    def open_wakeup(self, accepts: Accepts | None = None) -> Wakeup | None:
        """Return the store's own bell where it has one, which all processes hear; else one of this process."""
        wakeup = self._store.open_wakeup(accepts)
        return ThreadWakeup(self) if wakeup is None else wakeup

    def ring(self) -> None:
        """Wake one listening thread, if any: the others have something to run, and look again when it is done."""
        with self._lock:
            if self._listening:
                self._listening.pop(0).strike()

    def listen(self, wakeup: ThreadWakeup) -> None:
        """Let `bell` be among those that are rung."""
        with self._lock:
            if wakeup not in self._listening:
                self._listening.append(wakeup)

    def leave(self, wakeup: ThreadWakeup) -> None:
        """Ring `bell` no more."""
        with self._lock:
            if wakeup in self._listening:
                self._listening.remove(wakeup)


class ThreadWakeup:
    """The `Bell` of one thread: a pipe that is readable when it has rung."""

    proven = False
    """Other processes do not ring it."""

    def __init__(self, chime: LocalWakeup) -> None:
        self._chime = chime
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._closed = False

    def arm(self, seconds: float) -> None:
        """Listen until it is disarmed; what rang before is forgotten."""
        self.rang()
        self._chime.listen(self)

    def fileno(self) -> int:
        """Return the readable end."""
        return self._reader

    def rang(self) -> bool:
        """Tell whether it has rung since the last call."""
        with suppress(BlockingIOError):
            return bool(os.read(self._reader, 4096))
        return False

    def disarm(self) -> None:
        """Listen no more. A ring that has come is passed on to somebody else, since this thread is busy."""
        self._chime.leave(self)
        if self.rang():
            self._chime.ring()

    def close(self) -> None:
        """Close the pipe; idempotent."""
        if not self._closed:
            self._closed = True
            self.disarm()
            os.close(self._reader)
            os.close(self._writer)

    def strike(self) -> None:
        """Ring. The chime's lock is held, so that it is not closed meanwhile."""
        with suppress(BlockingIOError):  # full: it rings already
            os.write(self._writer, b".")
