"""Converts the text that visitors wrote into addresses and forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

from psched.error_messages import InvalidValueError
from psched.time_text import local_datetime, parse_local_datetime, parse_seconds

T = TypeVar("T")
_MOST_DIGITS = 15
"""The maximum number of digits of a number. A longer number fits into no column of a table, and cannot be a time."""


def parsed(text: str, convert: Callable[[str], T], problem: str) -> T:
    """Return `convert(text)`. If `convert` refuses the text, raises InvalidValueError with `problem` and the text."""
    try:
        return convert(text)
    except (ValueError, OverflowError) as error:
        raise InvalidValueError(f"{problem}, got {text[:50]!r}") from error


def whole_number(given: Mapping[str, str], name: str) -> int | None:
    """Return a number of the address; None if it is missing or not a number.

    Raises InvalidValueError if it has more than 15 digits.
    """
    text = given.get(name, "")
    if not (text.isascii() and text.isdecimal()):
        return None
    if len(text) > _MOST_DIGITS:
        raise InvalidValueError(f"{name} must be a number of at most {_MOST_DIGITS} digits, got {text[:50]!r}")
    return int(text)


def parse_moment(name: str, text: str) -> float:
    """Return the unix seconds of a date in the shown zone. Raises InvalidValueError."""
    return parsed(text, parse_local_datetime, f"{name} must be a time such as 2027-03-01T09:00")


def moment_text(time: float) -> str:
    """Return unix seconds as text that `parse_moment` can read."""
    there = local_datetime(time)
    return "" if there is None else f"{there:%Y-%m-%dT%H:%M}"


def parse_span(text: str) -> float:
    """Return a duration in seconds. Raises ValueError, also for a negative or infinite duration."""
    found = parse_seconds(text)
    if not 0 <= found < math.inf:
        raise ValueError(text)
    return found
