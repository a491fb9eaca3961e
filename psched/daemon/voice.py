"""What the master tells the service manager, and when. In the master."""

from __future__ import annotations

import math
from collections.abc import Callable

from psched.daemon.notify import Notifier

_STATUS_INTERVAL = 1.0


class Voice:
    """Feeds the watchdog as long as the loop turns, and keeps the status line up to date."""

    def __init__(self, notifier: Notifier, ready: Callable[[], None]) -> None:
        """`ready` is called once, when the children are up."""
        self._notifier = notifier
        self._ready = ready
        self._next_watchdog = -math.inf if notifier.watchdog_interval is not None else math.inf
        self._next_status = -math.inf
        self._status = ""
        self._is_behind = False
        self._reloading = False

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest, monotonic."""
        return min(self._next_watchdog, self._next_status if self._is_behind else math.inf)

    def came_up(self, status: str) -> None:
        """The children are up."""
        self._notifier.ready(status)
        self._ready()

    def reloading(self) -> None:
        """A restart is being rehearsed."""
        self._reloading = True
        self._notifier.reloading()

    def reloaded(self) -> None:
        """It is over, well or not; may be said at any time."""
        if self._reloading:
            self._reloading = False
            self._notifier.ready()

    def stopping(self) -> None:
        """The daemon is going to end."""
        self._notifier.stopping()

    def tick(self, now: float, status: str) -> None:
        """Say that the loop turns, and what it looks after."""
        interval = self._notifier.watchdog_interval
        if interval is not None and now >= self._next_watchdog:
            self._next_watchdog = now + interval
            self._notifier.watchdog()
            self._status = ""  # said anew now and then: what a new master says before it is known as one is not heard
        if status != self._status and now >= self._next_status:
            self._status, self._next_status = status, now + _STATUS_INTERVAL
            self._notifier.status(status)
        self._is_behind = status != self._status
