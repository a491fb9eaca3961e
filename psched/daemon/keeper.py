"""Keeps the leases of what a child runs alive: a thread that does nothing else, so that nothing else delays it."""

from __future__ import annotations

from collections.abc import Sequence

from psched.clock import Clock, boottime
from psched.daemon.renewal import Renewal
from psched.daemon.runner import Runner
from psched.daemon.ticker import Ticker
from psched.source import Source
from psched.task import Task


class Keeper:
    """Renews the leases of what runs."""

    def __init__(
        self, sources: Sequence[Source], runners: Sequence[Runner], interval: float, clock: Clock = boottime
    ) -> None:
        """`interval`: seconds between two renewals of one lease (`task_heartbeat_interval`)."""
        self.tick = Renewal(sources, runners, interval, is_at_work, clock).renew
        """Renew what is due; returns True while anything is held."""
        self.ticker = Ticker("keeper", self.tick, min(interval, 1.0))


def is_at_work(task: Task) -> bool:
    """Tell whether a task was begun and has not come to its end."""
    return task.started and not task.concluded
