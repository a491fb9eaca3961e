"""Wakes a handler thread for a task that this process has submitted, if the store cannot notify workers.

Other processes find the task at their next poll.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress

from psched.store import Accepts, LeaseStore, Wakeup


class LocalWakeup:
    """Wakes the handler thread that has waited longest. Each thread has its own wake-up."""

    def __init__(self, store: LeaseStore) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: dict[ThreadWakeup, None] = {}

    def open_wakeup(self, accepts: Accepts | None = None) -> Wakeup | None:
        """Return the store's own wake-up if submits of all hosts notify it, else a wake-up within this process."""
        wakeup = self._store.open_wakeup(accepts)
        if wakeup is not None and not wakeup.covers_all_hosts:
            wakeup.close()
            wakeup = None
        return ThreadWakeup(self) if wakeup is None else wakeup

    def wake_one(self) -> None:
        """Wake one waiting thread, if there is one. Busy threads poll again when their task is done."""
        with self._lock:
            for wakeup in self._waiting:
                del self._waiting[wakeup]
                wakeup.signal()
                return

    def add(self, wakeup: ThreadWakeup) -> None:
        with self._lock:
            self._waiting[wakeup] = None

    def remove(self, wakeup: ThreadWakeup) -> None:
        with self._lock:
            self._waiting.pop(wakeup, None)


class ThreadWakeup:
    """The `Wakeup` of one thread: a pipe that is readable after a signal."""

    covers_all_hosts = False
    proven = False
    """Always False: the thread must not rely on wake-ups, because tasks that other processes submit do not wake it."""

    def __init__(self, owner: LocalWakeup) -> None:
        self._owner = owner
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        self._closed = False

    def listen(self, seconds: float) -> None:
        """Take signals from now on until `stop_listening`. Does not wait. Earlier signals are dropped."""
        self.is_notified()
        self._owner.add(self)

    def fileno(self) -> int:
        return self._reader

    def is_notified(self) -> bool:
        with suppress(BlockingIOError):
            return bool(os.read(self._reader, 4096))
        return False

    def stop_listening(self) -> None:
        """Stop waiting, because this thread is busy.

        A signal that has arrived already is passed on to another thread.
        """
        self._owner.remove(self)
        if self.is_notified():
            self._owner.wake_one()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.stop_listening()
            os.close(self._reader)
            os.close(self._writer)

    def signal(self) -> None:
        """Make the pipe readable.

        The caller holds the lock of `LocalWakeup`, so the pipe cannot be closed at the same time.
        """
        with suppress(BlockingIOError):  # the pipe is full, so it is readable already
            os.write(self._writer, b".")
