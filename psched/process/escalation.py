"""Decides when a child is ordered to stop, and when it is killed. Each child has one `Escalation`.

Nothing in this module acts: an `Escalation` depends only on time. `tick(now)` returns each order once, as a signal:
SIGTERM for a graceful stop, SIGQUIT for an immediate stop, SIGKILL to kill the child. Only SIGKILL is repeated, until
the child is gone. `deadline` is the latest time for the next call. Times are monotonic seconds.
"""

from __future__ import annotations

import math
import signal

from psched.config import Settings

RELEASE = 1.5
"""How many seconds a child has after `child_kill_interval` to kill its descendants and release its leases."""
_KILL_AGAIN = 5.0
"""Seconds after SIGKILL. A child that still exists then is killed again: its disk hangs, or its descendants multiply.
"""


class Escalation:
    def __init__(self, settings: Settings, now: float, lifetime: float = math.inf) -> None:
        """`lifetime`: after this many seconds the child is killed."""
        self._silence = settings.child_heartbeat_limit
        self._graceful = settings.child_graceful_kill_limit
        self._kill_interval = settings.child_kill_interval
        self._lifetime = lifetime
        self._last_seen = now
        self._end_at = now + lifetime
        self._leave_at = math.inf
        self.stopping = False
        self._given: signal.Signals | None = None
        self._next_kill = math.inf
        self._is_suspect = False

    def child_seen(self, now: float) -> None:
        """Record that a heartbeat or a message of the child has arrived."""
        self._last_seen = max(self._last_seen, now)

    def host_resumed(self, now: float) -> None:
        """Measure silence and lifetime from `now` on, because the child was suspended together with the host."""
        self.child_seen(now)
        self._end_at = now + self._lifetime

    def stop(self, immediate: bool, now: float) -> None:
        """Begin to stop the child. A further call can only make the stop faster."""
        if not self.stopping:
            self.stopping = True
            self._leave_at = math.inf if self._graceful is None else now + self._graceful
        if immediate:
            self._leave_at = min(self._leave_at, now)

    def silent(self, now: float) -> bool:
        return now >= self._last_seen + self._silence

    @property
    def idle(self) -> bool:
        """Whether `tick` may be skipped until the deadline."""
        return not self._is_suspect and not self.stopping

    def tick(self, now: float) -> signal.Signals | None:
        self._is_suspect = now >= self._last_seen + self._silence / 2
        order = self._due(now)
        if order == self._given and now < self._next_kill:
            return None
        self._given = order
        if order == signal.SIGKILL:
            self._next_kill = now + _KILL_AGAIN
        return order

    @property
    def deadline(self) -> float:
        if self._given == signal.SIGKILL:
            return self._next_kill
        silence = self._silence if self._is_suspect else self._silence / 2
        steps = [self._last_seen + silence, self._kill_at]
        if self.stopping and self._given is None:
            return -math.inf
        if self._given != signal.SIGQUIT:
            steps.append(self._leave_at)
        return min(steps)

    @property
    def _kill_at(self) -> float:
        return min(self._end_at, self._leave_at + self._kill_interval + RELEASE)

    def _due(self, now: float) -> signal.Signals | None:
        if self._given == signal.SIGKILL or self.silent(now) or now >= self._kill_at:
            return signal.SIGKILL
        if now >= self._leave_at:
            return signal.SIGQUIT
        return signal.SIGTERM if self.stopping else None
