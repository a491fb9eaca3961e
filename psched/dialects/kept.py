"""Connections that stay at hand between single statements. Used in children and clients.

To borrow one from the pool and give it back takes Python as long as all that psched does for a statement.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from psched.dialects.direct import Direct

T = TypeVar("T")


class Kept:
    """Keeps connections that are the pool's all the same: whoever asks the pool is first given what is kept.

    Safe to use from several threads.
    """

    def __init__(self, most: int) -> None:
        """`most`: connections that are kept."""
        self._most = most
        self._idle: deque[Direct] = deque()
        self._lock = threading.Lock()
        self._asking = 0

    def take(self, connect: Callable[[], Direct]) -> Direct:
        """Return one that was kept, else what `connect` gets from the pool."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.asking(connect)

    def keep(self, direct: Direct) -> None:
        """Keep a connection for the next statement, unless somebody waits for the pool."""
        if not direct.can_be_kept or len(self._idle) >= self._most:
            direct.close()
            return
        self._idle.append(direct)
        if self._asking or not self._most:  # looked at last: who begins to ask from now on sees what is kept
            self.give_back()

    def asking(self, ask: Callable[[], T]) -> T:
        """Return what `ask` gets from the pool, which has everything that is kept until then."""
        with self._lock:
            self._asking += 1
        try:
            self.give_back()
            return ask()
        finally:
            with self._lock:
                self._asking -= 1

    def close(self) -> None:
        """Keep nothing from now on; idempotent."""
        self._most = 0
        self.give_back()

    def anew(self) -> Kept:
        """Return one like this that keeps nothing yet."""
        return Kept(self._most)

    def give_back(self) -> None:
        """Give all that is kept back to the pool."""
        while True:
            try:
                direct = self._idle.pop()
            except IndexError:
                return
            direct.close()
