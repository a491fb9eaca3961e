"""Who uses something at the moment that another thread may want to close. In the host's process."""

from __future__ import annotations

import threading


class Loans:
    """Counts users, and tells the last one that it is to be closed. Any thread, signal handlers too."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._open = 0
        self._called_in = False

    def begin(self) -> None:
        """Use it from now on."""
        with self._lock:
            self._open += 1

    def end(self) -> bool:
        """Use it no more; True when the caller is to close it."""
        with self._lock:
            self._open -= 1
            return self._called_in and self._open == 0

    def call_in(self) -> bool:
        """Have it closed; True when nobody uses it, so that the caller is to do so."""
        with self._lock:
            self._called_in = True
            return self._open == 0
