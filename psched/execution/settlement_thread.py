"""The thread of a handler child that settles runs while the handler runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from psched.execution.fetcher_connection import FetchedTaskPoller
from psched.execution.periodic_thread import PeriodicThread

_SETTLEMENT = 0.025
"""Seconds between two settlements. A task that waits behind a run for longer is returned to the fetching child."""


class SettlementThread(PeriodicThread):
    """Settles runs while the handler runs, and reports the runs in progress to the fetching child."""

    def __init__(self, pollers: Sequence[FetchedTaskPoller], report_running: Callable[[], bool]) -> None:
        """`report_running`: returns False if it must be called again."""
        self._pollers = pollers
        self._report_running = report_running
        super().__init__("settlement", self.tick, _SETTLEMENT)

    def tick(self) -> bool:
        left = [poller.settle() for poller in self._pollers]
        is_reported = self._report_running()
        return any(left) or not is_reported
