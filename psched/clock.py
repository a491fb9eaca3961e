"""Clocks that measure durations within one process.

Clocks are passed as arguments, so that tests can replace them. Only the database's clock decides when a row is due and
when a lease ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

Clock = Callable[[], float]
"""Returns seconds since some fixed point, so only the difference of two values means anything."""

monotonic: Clock = time.monotonic
"""Returns seconds that never jump and do not count the sleep of a suspended machine."""

boottime: Clock = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds that never jump and count the sleep of a suspended machine. This clock measures leases.

macOS has no such clock, so `boottime` is the monotonic clock there. If a lease ends while the machine is suspended,
only the fence detects it on macOS.
"""


def wait_steps(seconds: float, pause: float) -> Iterator[float]:
    """Yield the seconds since the first step: first 0, then, after each `pause` (in seconds), the time that has passed.

    Ends when at least `seconds` have passed.
    """
    begun = monotonic()
    waited = 0.0
    yield waited
    while waited < seconds:
        time.sleep(pause)
        waited = monotonic() - begun
        yield waited
