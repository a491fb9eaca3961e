"""Retries of calls to a database or Redis (`Retries`), and the wait after a refused login (`LoginBackoff`)."""

from __future__ import annotations

import copy
import enum
import random
from collections.abc import Callable
from typing import TypeVar

from psched.backends.common.connection_options import Timeouts
from psched.clock import Clock, monotonic

T = TypeVar("T")


class LoginBackoff:
    """The logins of one process to one server. Safe to use from several threads.

    A refused login may succeed soon, for example while the password is changed on the server and in the configuration.
    But servers count failed logins, and lock accounts and hosts. So a process waits longer after each failed login.
    """

    LONGEST = 45.0
    """The maximum number of seconds between two logins. Each poll of a worker may log in, because polls are a little
    rarer."""

    def __init__(self, clock: Clock = monotonic, chance: Callable[[float, float], float] = random.uniform) -> None:
        self._clock = clock
        self._chance = chance
        self._failures = 0
        self._refused: tuple[Exception, float] | None = None

    def pause(self) -> float:
        """Return the seconds until the next login may be tried."""
        refused = self._refused
        return 0.0 if refused is None else max(0.0, refused[1] - self._clock())

    def log_in(self, connect: Callable[[], T], is_refused: Callable[[Exception], bool]) -> T:
        """Return the result of `connect`, or raise its error.

        After a refused login, raises the same error without asking the server, until `pause` returns 0.
        """
        refused = self._refused
        if refused is not None and self._clock() < refused[1]:
            raise copy.copy(refused[0]) from None
        try:
            connection = connect()
        except Exception as error:
            if is_refused(error):
                seconds = min(2.0**self._failures, self.LONGEST / 0.75) * self._chance(0.5, 0.75)
                self._failures = min(self._failures + 1, 10)
                self._refused = copy.copy(error), self._clock() + seconds
            raise
        self._failures, self._refused = 0, None
        return connection


def sent_within(timeouts: Timeouts) -> float:
    """Return how many seconds after its start a call without a deadline may still reach the database.

    At the end of `SPAN` there may be another attempt. If the connection of this attempt is lost, the attempt is
    repeated once. Each of these two attempts may have to connect first.
    """
    return Retries.SPAN + 2 * (timeouts.connect + timeouts.read)


class Retries:
    """Decides whether one call is repeated, and after which pause."""

    CONFLICTS = 10
    """After more conflicts than this number, a call without a deadline fails."""
    SPAN = 10.0
    """The number of seconds for which a call without a deadline is repeated."""
    LONGEST = 0.5
    """The maximum number of seconds between two attempts after lost connections. It is short, because the deadline of a
    call is the end of a lease."""

    def __init__(self, begun: float, until: float | None, clock: Clock, logins: LoginBackoff | None = None) -> None:
        """`begun`: when the call began. `until`: the call's deadline, or None."""
        self._until = until
        self._logins = logins
        self._end = begun + self.SPAN if until is None else until
        self._clock = clock
        self._conflicts = 0
        self._losses = 0

    def pause(self, reason: RetryReason | None, is_refused: bool = False) -> float | None:
        """Return the seconds to wait before the next attempt, or None to give up.

        After a refused login, a call with a deadline waits until `logins` allows the next login. A call without a
        deadline gives up.
        """
        pause = 0.0
        if reason is RetryReason.CONFLICT:
            self._conflicts += 1
            if self._until is None and self._conflicts > self.CONFLICTS:
                return None
            pause = random.uniform(0, min(1.0, 0.01 * 2 ** min(self._conflicts, 10)))
        elif reason is RetryReason.LOST:
            self._losses += 1
            if self._losses == 1:
                return 0  # not an outage: the pooled connection may have been closed long ago
            if self._until is None:
                return None
            pause = min(self.LONGEST, 0.05 * 2 ** min(self._losses, 10)) * random.uniform(0.5, 1)
        elif is_refused and self._until is not None and self._logins is not None:
            pause = self._logins.pause()
            if not pause:
                return None
        else:
            return None
        return pause if self._clock() + pause < self._end else None


class RetryReason(enum.Enum):
    """Why a database error is temporary."""

    CONFLICT = "rolled back because of another transaction (deadlock, serialisation, lock or statement timeout)"
    LOST = "the connection or the server is gone; whether the server executed the statement is unknown"
