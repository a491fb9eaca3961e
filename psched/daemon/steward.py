"""Tends what a child holds and does not run: what waits to begin, and what has run and is not settled. In children.

This is apart from the leases of what runs: there may be many, and a row that somebody has locked may take seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from psched.clock import Clock, boottime
from psched.daemon.keeper import is_at_work
from psched.daemon.renewal import Renewal
from psched.daemon.runner import Runner, give_back
from psched.daemon.ticker import Ticker
from psched.source import Source
from psched.task import Task

_PATIENCE = 1.0
"""What waits behind a handler that has been running for so many seconds is given back, for others to run."""


class Steward:
    """Gives back what cannot begin soon, settles what has waited for others for too long, renews the rest."""

    def __init__(
        self, sources: Sequence[Source], runners: Sequence[Runner], interval: float, clock: Clock = boottime
    ) -> None:
        """`interval`: seconds between two renewals of one lease (`task_heartbeat_interval`)."""
        self.ticker = Ticker("steward", self.tick, min(interval, _PATIENCE))
        self.stopping = False
        self._runners = runners
        self._renewal = Renewal(sources, runners, interval, lambda task: not is_at_work(task), clock)
        self._clock = clock

    def tick(self) -> bool:
        """Do what is due now; True while anything is held."""
        self._give_back()
        for runner in self._runners:
            runner.settle_overdue()
        return self._renewal.renew()

    def stop(self) -> None:
        """Give back at once whatever has not begun."""
        self.stopping = True
        self.ticker.poke(urgent=True)

    def _give_back(self) -> None:
        """Give back what need not wait here. Where one fails the others would, too: they are tried again next time."""
        for runner in self._runners:
            if self.stopping or runner.busy_for() > _PATIENCE:
                all(self._not_begun_is_given_back(task) for task in runner.waiting())

    def _not_begun_is_given_back(self, task: Task) -> bool:
        """Give back a task unless it has begun, or its lease is over; False when that failed."""
        with task.lock:
            return task.started or self._clock() >= task.deadline or give_back(task)
