"""When to log in again after a server refused a login. Used in children and clients.

A password that is wrong now may be right soon: it was changed on the server or in the configuration first. But servers
count logins that fail, and lock accounts and hosts. So a process waits longer after each of them.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import TypeVar

from psched.clock import Clock, monotonic

T = TypeVar("T")


class LoginBackoff:
    """The logins of one process to one server. Safe to use from several threads."""

    LONGEST = 45.0
    """Seconds between two logins at the most; workers poll a little more rarely, so that each poll may log in."""

    def __init__(self, clock: Clock = monotonic, chance: Callable[[float, float], float] = random.uniform) -> None:
        self._clock = clock
        self._chance = chance
        self._failures = 0
        self._refused: tuple[Exception, float] | None = None

    def pause(self) -> float:
        """Return the seconds until the next login may be tried; 0 when it may."""
        refused = self._refused
        return 0.0 if refused is None else max(0.0, refused[1] - self._clock())

    def log_in(self, connect: Callable[[], T], is_refused: Callable[[Exception], bool]) -> T:
        """Return what `connect` returns, and raise what it raises.

        After a login that was refused the same error is raised again, without asking the server, until `pause` is over.
        """
        refused = self._refused
        if refused is not None and self._clock() < refused[1]:
            raise copy.copy(refused[0]) from None
        try:
            connection = connect()
        except Exception as error:
            if is_refused(error):
                self._note(error)
            raise
        self._failures, self._refused = 0, None
        return connection

    def _note(self, error: Exception) -> None:
        seconds = min(2.0**self._failures, self.LONGEST / 0.75) * self._chance(0.5, 0.75)
        self._failures = min(self._failures + 1, 10)
        self._refused = copy.copy(error), self._clock() + seconds
