"""Clocks that measure durations within one process.

Clocks are passed as arguments, so that tests can replace them. The database's clock decides what is due and when a
lease ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

Clock = Callable[[], float]
"""Returns seconds since some fixed point; only differences mean anything."""

monotonic: Clock = time.monotonic
"""Returns seconds that never jump and stand still while the machine sleeps. For everything but leases."""

boottime: Clock = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds that never jump and include the sleep of a suspended machine. For lease deadlines.

macOS has no such clock and gets the monotonic one: there only the fence detects a lease that ended during sleep.
"""


def wait_steps(seconds: float, pause: float) -> Iterator[float]:
    """Yield the seconds that have passed: at once, and after each `pause`, until they are `seconds` or more."""
    begun = monotonic()
    waited = 0.0
    yield waited
    while waited < seconds:
        time.sleep(pause)
        waited = monotonic() - begun
        yield waited
