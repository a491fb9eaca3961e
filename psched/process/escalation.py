"""How a child is made to end: a pure function of time. In the master, one per child.

Nothing here acts. `tick(now)` says what to do now, each thing once; `deadline` says when to ask again at the latest.
Times are monotonic seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

RELEASE = 1.5
"""Seconds a child has beyond `child_kill_interval`: to kill its descendants and give back what it held."""
_AGAIN = 5.0
"""A child that is still there so many seconds after SIGKILL (its disk hangs, its tree grows) is killed again."""


class Order(IntEnum):
    """What the master does to a child, in rising severity."""

    GRACEFUL = 1
    IMMEDIATE = 2
    KILL = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds: of silence; from an immediate stop to the end; from a graceful to an immediate one (None: never)."""

    silence: float
    kill_interval: float
    graceful: float | None


class Escalation:
    """What is known of one child: when it was heard, since when it is to stop."""

    def __init__(self, limits: Limits, now: float) -> None:
        self._limits = limits
        self._heard = now
        self._leave_at = math.inf
        self._given: Order | None = None
        self._asked: Order | None = None
        self._kill_again = math.inf
        self._doubted = False

    @property
    def stopping(self) -> bool:
        """Whether the child has been asked to stop."""
        return self._asked is not None

    def hear(self, now: float) -> None:
        """The child gave a sign of life; or nobody could have heard it, because the whole host stood still."""
        self._heard = max(self._heard, now)

    def stop(self, immediate: bool, now: float) -> None:
        """Ask for the child's end. Asking again can only hasten it."""
        graceful = self._limits.graceful
        if self._asked is None:
            self._asked = Order.GRACEFUL
            self._leave_at = math.inf if graceful is None else now + graceful
        if immediate:
            self._leave_at = min(self._leave_at, now)

    def silent(self, now: float) -> bool:
        """Tell whether the child has been silent for so long that it counts as frozen."""
        return now >= self._heard + self._limits.silence

    @property
    def idle(self) -> bool:
        """Whether the child was heard not long ago and is not to stop: it can be left alone until the deadline."""
        return not self._doubted and not self.stopping

    def tick(self, now: float) -> Order | None:
        """Return what to do now, or None."""
        self._doubted = now >= self._heard + self._limits.silence / 2
        order = self._due(now)
        if order is None or (self._given is not None and order <= self._given and now < self._kill_again):
            return None
        self._given = order
        if order is Order.KILL:
            self._kill_again = now + _AGAIN
        return order

    @property
    def deadline(self) -> float:
        """When `tick` may next have something to say."""
        if self._given is Order.KILL:
            return self._kill_again
        silence = self._limits.silence
        steps = [self._heard + (silence if self._doubted else silence / 2), self._kill_at]
        if self._asked is not None and self._given is None:
            return -math.inf
        if self._given is not Order.IMMEDIATE:
            steps.append(self._leave_at)
        return min(steps)

    @property
    def _kill_at(self) -> float:
        return self._leave_at + self._limits.kill_interval + RELEASE

    def _due(self, now: float) -> Order | None:
        if self._given is Order.KILL or self.silent(now) or now >= self._kill_at:
            return Order.KILL
        if now >= self._leave_at:
            return Order.IMMEDIATE
        return self._asked
