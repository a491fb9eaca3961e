"""The threads that send alerts and events to other programs. These threads run in one process of each node."""

from __future__ import annotations

from collections.abc import Sequence

from psched.clock import monotonic
from psched.execution.alerts import AlertThread, open_alert_threads
from psched.execution.event_delivery import EventThread, open_event_threads
from psched.execution.opened_stores import OpenSection
from psched.execution.periodic_thread import join_all

STOPPING = 3.0
"""The maximum number of seconds that a stop waits for a running hook to end and for an answer to a sent request."""


class AlertAndEventThreads:
    def __init__(self, sections: Sequence[OpenSection], claimer: str) -> None:
        """`claimer`: names the only process that may claim under this name at a time.

        If this process dies, the next process with this name need not wait until the claims end.
        """
        self._threads: list[AlertThread | EventThread] = [
            *open_alert_threads(sections, claimer),
            *open_event_threads(sections, claimer),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Tell all threads to end soon."""
        for thread in self._threads:
            thread.close()

    def join(self, seconds: float | None = STOPPING) -> bool:
        """Wait up to `seconds` until all threads have ended; None: without limit. Return whether all have ended."""
        return join_all(self._threads, None if seconds is None else monotonic() + seconds)
