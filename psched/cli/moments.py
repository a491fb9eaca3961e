"""Moments as the command line takes them: unix seconds, dates, or a span before now."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from typing import Any

import click

_SPAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}


class Moment(click.ParamType[Callable[[float], float]]):
    """Unix seconds, a date like 2026-03-29 or 2026-03-29T12:00+02:00 (without offset: local), or 2d: so long ago."""

    name = "moment"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return a function from the present to the moment, both in unix seconds, for spans count from a clock."""
        found = moment(value) if isinstance(value, str) else value
        if found is None:
            self.fail(f"{value!r} is no time; give unix seconds, a date like 2026-03-29 or a span like 2d", parameter)
        return found


def moment(text: str) -> Callable[[float], float] | None:
    """Return what tells the moment that `text` means from the present one, or None when it means none."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        seconds = float(span["number"]) * _UNITS[span["unit"]]
        return lambda now: now - seconds
    time = _absolute(text)
    return None if time is None else lambda _: time


def _absolute(text: str) -> float | None:
    try:
        return float(text) if re.fullmatch(r"-?\d+(\.\d+)?", text) else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


NO_BOUND = -1.0
"""What `none` is read as, where None means that an option was not given."""


class Count(click.ParamType[int]):
    """A whole number from 1 on, or none: no bound."""

    name = "count"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        """Return the number, NO_BOUND for none."""
        if value == "none":
            return int(NO_BOUND)
        if not (isinstance(value, int) or re.fullmatch(r"\d{1,9}", str(value))) or int(value) < 1:
            self.fail(f"{value!r} is no number of attempts; give one from 1 on, or none", parameter)
        return int(value)


class Seconds(click.ParamType[float]):
    """A number of seconds, or none: no bound."""

    name = "seconds"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """Return the seconds, NO_BOUND for none."""
        if value == "none":
            return NO_BOUND
        try:
            seconds = float(value)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds < 1e9:
            self.fail(f"{value!r} is no number of seconds; give one from 0 on, or none", parameter)
        return seconds
