"""Clocks that measure durations within one process.

Clocks are passed as arguments, so that tests can replace them. Only the database's clock decides when a row is due and
when a lease ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

Clock = Callable[[], float]
"""Returns seconds since some fixed point. Only the difference of two values means anything."""

monotonic: Clock = time.monotonic
"""Returns seconds that never jump and do not count the sleep of a suspended machine."""

boottime: Clock = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds that never jump and count the sleep of a suspended machine. This clock measures leases.

macOS has no such clock, so the monotonic clock is used there. On macOS only the fence detects a lease that ended while
the machine was suspended.
"""


def wait_steps(seconds: float, pause: float) -> Iterator[float]:
    """Yield the seconds since the first step: first 0, then again after each `pause` (in seconds).

    Ends when at least `seconds` have passed.
    """
    begun = monotonic()
    waited = 0.0
    yield waited
    while waited < seconds:
        time.sleep(pause)
        waited = monotonic() - begun
        yield waited
