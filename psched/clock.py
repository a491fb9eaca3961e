"""Time behind one object, so that tests can own it. Used in every process.

No clock here decides what is due or when a lease ends: that is the database's alone. These measure spans within one
process.
"""

from __future__ import annotations

import time
from typing import Protocol

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Seconds since some fixed point; only differences mean anything."""

    def __call__(self) -> float:
        """Return the present time in seconds."""
        ...


def monotonic() -> float:
    """Seconds that never jump; stands still while the machine sleeps. For everything but leases."""
    return time.monotonic()


def boottime() -> float:
    """Seconds that never jump and count a suspended machine's sleep (CLOCK_BOOTTIME). For lease deadlines.

    Where there is no such clock (macOS) it is the monotonic one: a lease that ended during sleep is then found out
    by the fence alone.
    """
    return time.clock_gettime(_BOOTTIME)
