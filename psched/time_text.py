"""Times as text: durations such as `5m`, and unix seconds as dates in the displayed time zone."""

from __future__ import annotations

import re
from contextvars import ContextVar
from datetime import UTC, datetime, tzinfo

_DURATION = re.compile(r"([+-]?\d+(?:\.\d+)?)([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


def parse_seconds(text: str) -> float:
    """Return the seconds of a duration: a number, or a number with a unit such as `90s`, `5m`, `2h`, `1d` or `1w`.

    Raises ValueError.
    """
    found = _DURATION.fullmatch(text)
    return float(text) if found is None else float(found[1]) * _UNITS[found[2]]


def span(seconds: float) -> str:
    """Return a duration as text with its two largest units: `35 s`, `2 h 5 min`, `3 d 1 h`."""
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
"""The time zone in which times are displayed; None: the zone of this host."""


def local_datetime(seconds: float) -> datetime | None:
    """Return unix seconds as a datetime in `shown_zone`; None outside the years 1 to 9999."""
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
