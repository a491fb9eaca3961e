"""The types of options for click: times, dates, durations, counts and waits."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

import click

from psched.error_messages import shown
from psched.retry_wait import MAX_COUNT, MAX_SECONDS, Backoff
from psched.time_check import LAST_TIME
from psched.time_text import parse_seconds

_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?!\d).*")
_DURATION = re.compile(rf"{_NUMBER.pattern}|[+-]?\d+(\.\d+)?[smhdw]", re.IGNORECASE)
_SPAN = re.compile(r"\d+(\.\d+)?[smhdw]")
_EARLIEST = 100_000_000
"""Unix seconds in 1973. An earlier time is probably a mistake, such as a number of seconds from now."""
_EXAMPLES = "give unix seconds, or a date with a time zone such as 2026-12-01T08:00+01:00"

NO_BOUND = -1.0
"""The value of an option if the user gives the word `none`. If the option is not given, its value is None."""

When = Callable[[float], float]
"""Takes the current time by the database's clock, and returns the time that the option means. Both are unix seconds."""


@dataclass(frozen=True)
class _Parsed(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    """Type of an option. `parse` converts the text, or raises ValueError. A default is converted if it is text."""

    name: str
    parse: Callable[[str], Any]

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return self.parse(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), parameter, context)


def _unix_time(text: str) -> float:
    found = _number_or_date(text, _EXAMPLES)
    if isinstance(found, datetime) and found.tzinfo is None:
        example = found.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
        problem = f"has no time zone; write it as in {example}, or with an offset such as +01:00"
        raise ValueError(f"{shown(text)} {problem}")
    seconds = _within(text, found, _EARLIEST)
    return int(seconds) if seconds.is_integer() else seconds


def _wall_date(text: str) -> date:
    expected = "give a date such as 2027-03-29, or a date with time such as 2027-03-29T02:30"
    found: date
    try:
        found = date.fromisoformat(text)
    except ValueError:
        try:
            found = datetime.fromisoformat(text).replace(microsecond=0)
        except ValueError:
            raise ValueError(f"{shown(text)} is not a date; {expected}") from None
    if isinstance(found, datetime) and found.tzinfo is not None:
        raise ValueError(f"{shown(text)} has an offset, but is read in the schedule's zone; {expected}")
    if not 1970 <= found.year <= 9998:
        raise ValueError(f"{shown(text)} is not from 1970 to 9998; {expected}")
    return found


def _moment(text: str) -> When:
    if _SPAN.fullmatch(text):
        ago = parse_seconds(text)
        if ago > MAX_SECONDS:
            problem = f"is more than 31 years ({MAX_SECONDS:.0f} s) ago; give a shorter span, or a date"
            raise ValueError(f"{shown(text)} {problem}")
        return lambda now: now - ago
    found = _number_or_date(text, "give unix seconds, a date like 2026-03-29, or a span like 2d (two days ago)")
    moment = _within(text, found, 0)
    return lambda _: moment


def _number_or_date(text: str, expected: str) -> float | datetime:
    if _NUMBER.fullmatch(text):
        return float(text)
    if _DATE.fullmatch(text):
        with suppress(ValueError, OverflowError):
            found = datetime.fromisoformat(re.sub(r" (?=[+-]\d\d:?\d\d$)", "", text))  # the format of `list`
            found.timestamp()
            return found
    raise ValueError(f"{shown(text)} is not a time; {expected}")


def _within(text: str, found: float | datetime, earliest: int) -> float:
    """Return the unix seconds of `found`. Raises ValueError for a time before `earliest` or after the year 9999."""
    seconds = found.timestamp() if isinstance(found, datetime) else found
    if seconds >= LAST_TIME:
        problem = f"is after the year 9999, unix seconds {LAST_TIME - 1}; did you give milliseconds?"
        raise ValueError(f"{shown(text)} {problem} {_EXAMPLES}")
    if seconds < earliest:
        year = datetime.fromtimestamp(earliest, UTC).year
        problem = f"is before {year}, unix seconds {earliest} (now it is {time.time():.0f})"
        raise ValueError(f"{shown(text)} {problem}; {_EXAMPLES}")
    return seconds


UNIX_TIME = _Parsed("time", _unix_time)
"""Unix seconds, or a date with time and zone, 1973 or later."""
UNIX_TIME_OR_NONE = _Parsed("time", lambda text: NO_BOUND if text == "none" else _unix_time(text))
"""Like `UNIX_TIME`, or the word none for no limit."""
WHOLE_TIME = _Parsed("time", lambda text: math.ceil(_unix_time(text)))
"""Like `UNIX_TIME`, rounded up to whole seconds."""
MOMENT = _Parsed("when", _moment)
"""Unix seconds, a date (in local time if it has no offset), or 2d for two days ago. The value is a `When`."""

WALL_DATE = _Parsed("date", _wall_date)
"""A date, or a date with time, without a time zone."""


def count(lowest: int = 1, highest: int = MAX_COUNT, none: bool = False) -> _Parsed:
    """Return the type of an option that takes a whole number. `none`: also accept the word none, for no limit."""
    pattern = re.compile(r"[+-]?\d{1,18}")
    return _Parsed("n", lambda text: _number(text, "a whole number", pattern, lowest, highest, none))


def seconds(lowest: float = 0, highest: float = MAX_SECONDS, none: bool = False) -> _Parsed:
    """Return the type of an option that takes seconds, or a duration such as 90s, 5m or 2h.

    `none`: also accept the word none, for no limit.
    """
    return _Parsed(
        "sec", lambda text: _number(text, "seconds or a duration (90s, 5m, 2h)", _DURATION, lowest, highest, none)
    )


def _wait(text: str) -> float | Backoff:
    first, is_growing, limit = text.partition("..")
    if not is_growing:
        return _number(text, "seconds or a duration (90s, 5m, 2h), or FIRST..LIMIT", _DURATION, 0, MAX_SECONDS, True)
    bounds = [
        _number(each, "FIRST..LIMIT, such as 10s..5m", _DURATION, 0, MAX_SECONDS, False) for each in (first, limit)
    ]
    if bounds[1] < bounds[0]:
        raise ValueError(f"expected FIRST..LIMIT, such as 10s..5m, with the shorter wait first, got {shown(text)}")
    return Backoff(bounds[0], limit=bounds[1])


WAIT_OR_NONE = _Parsed("wait", _wait)
"""A wait between attempts: seconds, a duration, FIRST..LIMIT for a wait that doubles, or the word none."""


def exactly(word: str) -> _Parsed:
    """Return the type of an option that takes only `word`. (click's Choice would show `_` in the word as `-`.)"""

    def parse(text: str) -> str:
        if text != word:
            raise ValueError(f"expected {word}, got {shown(text)}")
        return text

    return _Parsed(word, parse)


def _number(text: str, kind: str, pattern: re.Pattern[str], lowest: float, highest: float, none: bool) -> float:
    if none and text == "none":
        return NO_BOUND
    number = parse_seconds(text.lower()) if pattern.fullmatch(text) else math.nan
    if not lowest <= number <= highest:
        expected = f"expected {kind} from {lowest:.15g} to {highest:.15g}{', or none' if none else ''}"
        raise ValueError(f"{expected}, got {shown(text)}")
    return int(number) if number.is_integer() else number


def _place(text: str) -> tuple[float, str]:
    time, _, key = text.partition(":")
    if not key or not _NUMBER.fullmatch(time):
        raise ValueError(f"expected the text that the previous page printed, such as 1796108400:KEY, got {shown(text)}")
    return float(time), key


PLACE = _Parsed("place", _place)
"""`next_run_time` and key of a schedule, as in 1796108400:KEY. A list of schedules continues after this schedule."""
