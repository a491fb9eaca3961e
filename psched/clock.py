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

macOS has no such clock, so `boottime` is the monotonic clock there. If a lease ends while the machine is suspended,
only the fence detects it on macOS.
"""


def wait_steps(seconds: float, pause: float) -> Iterator[float]:
    """Sleep `pause` seconds between steps, and yield at each step the seconds since the first step.

    Ends after the first step at or after `seconds`.
    """
    begun = monotonic()
    waited = 0.0
    yield waited
    while waited < seconds:
        time.sleep(pause)
        waited = monotonic() - begun
        yield waited
