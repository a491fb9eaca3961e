"""Clocks that measure durations within one process, durations as text, and unix seconds as local dates.

Clocks are passed as arguments, so that tests can replace them. The database's clock decides what is due and when a
lease ends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo
from functools import partial

Clock = Callable[[], float]
"""Returns seconds since some fixed point; only differences mean anything."""

monotonic: Clock = time.monotonic
"""Returns seconds that never jump and stand still while the machine sleeps. For everything but leases."""

boottime: Clock = partial(time.clock_gettime, getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
"""Returns seconds that never jump and include the sleep of a suspended machine. For lease deadlines.

macOS has no such clock and gets the monotonic one: there only the fence detects a lease that ended during sleep.
"""


_DURATION = re.compile(r"([+-]?\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_seconds(text: str) -> float:
    """Return a duration in seconds: a number, or a number with a unit such as `90s`, `5m`, `2h`, `1d` or `1w`.

    Raises ValueError.
    """
    found = _DURATION.fullmatch(text)
    return float(text) if found is None else float(found[1]) * _UNITS[found[2]]


def span(seconds: float) -> str:
    """Return a duration in its two largest units: `35 s`, `2 h 5 min`, `3 d 1 h`."""
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    rest, parts = int(seconds), list[str]()
    for name, size in units:
        count, rest = divmod(rest, size)
        if count or parts:
            parts.append(f"{count} {name}" if count else "")
        if len(parts) == 2:
            break
    return " ".join(part for part in parts if part) or "0 s"


shown_zone: ContextVar[tzinfo | None] = ContextVar("psched_shown_zone", default=None)
"""The time zone in which times are shown; None: this host's."""


def local_datetime(seconds: float) -> datetime | None:
    """Return unix seconds in `shown_zone`; None outside the years 1 to 9999."""
    try:
        return datetime.fromtimestamp(seconds, UTC).astimezone(shown_zone.get())
    except (ValueError, OverflowError, OSError):
        return None


def parse_local_datetime(text: str) -> float:
    """Return the unix seconds of a date in `shown_zone`, such as `2027-03-01T09:00`. Raises ValueError."""
    return datetime.fromisoformat(text).replace(tzinfo=shown_zone.get()).astimezone().timestamp()


def local_time(seconds: float) -> str:
    """Return unix seconds as a date in `shown_zone`: `2026-11-22 21:30:00 +0100`."""
    moment = local_datetime(seconds)
    return str(seconds) if moment is None else f"{moment:%Y-%m-%d %H:%M:%S %z}"


def wait_steps(seconds: float, pause: float) -> Iterator[float]:
    """Yield the seconds that have passed: at once, and after each `pause`, until they are `seconds` or more."""
    begun = monotonic()
    waited = 0.0
    yield waited
    while waited < seconds:
        time.sleep(pause)
        waited = monotonic() - begun
        yield waited
