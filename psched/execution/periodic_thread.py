"""A thread that tends something at intervals, and sleeps while there is nothing to tend. In children."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from psched.clock import monotonic

log = logging.getLogger(__name__)


class PeriodicThread(threading.Thread):
    """Calls `tick` every `interval` seconds for as long as it returns True, then sleeps until `poke`.

    One that takes longer than that is followed by the next at once. After a poke out of sleep one interval passes
    before the first tick, so that what is over by then costs nothing.
    """

    def __init__(
        self, name: str, tick: Callable[[], bool], interval: float, last: Callable[[], None] | None = None
    ) -> None:
        """`last` is called when it was closed, as the end of the thread."""
        super().__init__(name=name, daemon=True)
        self._tick = tick
        self._last = last
        self.interval = interval
        """Seconds between two ticks; a tick may change it."""
        self._wake = threading.Event()
        self._asleep = False
        self._closed = False

    def poke(self, urgent: bool = False) -> None:
        """Say that there is something to tend; cheap when the thread is awake. `urgent`: tick now."""
        if urgent or self._asleep:
            self._wake.set()

    def close(self) -> None:
        """End the thread after the tick it is in."""
        self._closed = True
        self._wake.set()

    def run(self) -> None:
        """Tick until closed. A tick that raises is logged and does not end the tending."""
        while not self._closed:
            self._asleep = True
            begun = monotonic()
            if not self._supervise():
                self._wake.wait()
                begun = monotonic()
            self._asleep = False
            self._wake.clear()
            self._wake.wait(max(0.0, begun + self.interval - monotonic()))
        if self._last is not None:
            self._last()

    def _supervise(self) -> bool:
        try:
            return self._tick()
        except Exception:
            log.exception("%s failed; going on", self.name)
            return True
