from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable

from psched.backends import is_driver_error
from psched.clock import monotonic
from psched.error_messages import one_line

log = logging.getLogger(__name__)


class PeriodicThread(threading.Thread):
    """Calls `tick` every `interval` seconds while `tick` returns True, then sleeps until `wake`.

    If a tick takes longer than the interval, the next tick follows immediately. After a sleep, one interval passes
    before the first tick, so a run that ends within this interval causes no tick.
    """

    def __init__(
        self, name: str, tick: Callable[[], bool], interval: float, last: Callable[[], None] | None = None
    ) -> None:
        """`last`: called at the end of the thread, after `close`."""
        super().__init__(name=name, daemon=True)
        self._tick = tick
        self._last = last
        self.interval = interval
        """Seconds between two ticks; a tick may change it."""
        self._woken = threading.Event()
        self.is_idle = False
        """Whether the thread sleeps until `wake`. Also true during a tick, because that tick may find nothing to do."""
        self._closed = False

    def wake(self) -> None:
        """End the thread's current sleep: an idle thread ticks after one interval, any other thread immediately."""
        if not self._woken.is_set():  # the check is quicker than another `set` for each run during a tick
            self._woken.set()

    def wake_if_idle(self) -> None:
        if self.is_idle:
            self.wake()

    def close(self) -> None:
        self._closed = True
        self._woken.set()

    def run(self) -> None:
        """Tick until closed, even after an exception of a tick. An error that repeats is logged once."""
        logged = ""
        while not self._closed:
            self.is_idle = True
            begun = monotonic()
            try:
                is_needed = self._tick()
                logged = ""
            except Exception as error:
                is_needed = True
                if one_line(error) != logged:
                    logged = one_line(error)
                    fault = None if is_driver_error(error) else error
                    log.warning("%s failed: %s; retrying", self.name, logged, exc_info=fault)
            if not is_needed:
                self._woken.wait()
                begun = monotonic()
            self.is_idle = False
            self._woken.clear()
            if not self._closed:  # if `close` was called before `clear`, do not wait for the interval
                self._woken.wait(max(0.0, begun + self.interval - monotonic()))
        if self._last is not None:
            self._last()


def join_all(threads: Iterable[threading.Thread], end: float | None) -> bool:
    """Wait until threads have ended, at the latest until `end` (monotonic). Return False if a thread is still running.

    Threads that were never started count as ended.
    """
    running = [thread for thread in threads if thread.is_alive()]
    for thread in running:
        thread.join(None if end is None else max(0.0, end - monotonic()))
    return not any(thread.is_alive() for thread in running)
