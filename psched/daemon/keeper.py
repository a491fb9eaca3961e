"""Keeps the leases of what a child runs alive: a thread that does nothing else, so that nothing else delays it."""

from __future__ import annotations

from collections.abc import Sequence

from psched.clock import Clock, boottime
from psched.daemon.renewal import Renewal
from psched.daemon.runner import Runner
from psched.daemon.ticker import Ticker
from psched.source import Source
from psched.task import Task

_LONGEST_TICK = 1.0
_AGAIN = 0.25
"""Seconds between two attempts while leases cannot be renewed: connections may be lost one after the other."""


class Keeper:
    """Renews the leases of what runs."""

    def __init__(
        self, sources: Sequence[Source], runners: Sequence[Runner], interval: float, clock: Clock = boottime
    ) -> None:
        """`interval`: seconds between two renewals of one lease (`task_heartbeat_interval`)."""
        self._renewal = Renewal(sources, runners, interval, is_at_work, clock)
        self._interval = min(interval, _LONGEST_TICK)
        self.ticker = Ticker("keeper", self.tick, self._interval)

    def tick(self) -> bool:
        """Renew what is due; returns True while anything is held."""
        holds = self._renewal.renew()
        self.ticker.interval = min(self._interval, _AGAIN) if self._renewal.failing else self._interval
        return holds


def is_at_work(task: Task) -> bool:
    """Tell whether a task was begun and has not come to its end."""
    return task.started and not task.concluded
