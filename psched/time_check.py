"""The check of a time that a caller gives in unix seconds."""

from __future__ import annotations

from datetime import date

from psched.error_messages import InvalidValueError, shown

LAST_TIME = 253_402_300_800
"""Unix seconds at the end of the year 9999."""


def check_time(name: str, time: object) -> float:
    """Return `time` if it is unix seconds in the years 1970 to 9999. Raises ValueError otherwise."""
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < LAST_TIME:
        hint = "; convert a datetime that has a zone with int(when.timestamp())" if isinstance(time, date) else ""
        raise InvalidValueError(
            f"{name} must be unix seconds, a number from 0 to {LAST_TIME - 1} (the years 1970 to 9999), "
            f"got {shown(time)}{hint}"
        )
    return time
