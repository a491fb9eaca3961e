"""The options of every command, which may stand before or after it. Used by the command line."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from psched.application.loader import load_modules
from psched.config import Reader, Settings, load
from psched.config.urls import is_in_memory
from psched.errors import ConfigError
from psched.schedules.rules import LAST_TIME, LONGEST_DELAY
from psched.suggest import shown

DEFAULT_CONFIG = Path("etc/psched.yml")

P = ParamSpec("P")
R = TypeVar("R")


class TypeGlobs(click.ParamType[str]):
    """Globs for types of tasks, separated by commas; at least one, for none would restrict nothing."""

    name = "globs"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> str:
        """Return the text as it was given. Raises UsageError when it has no glob."""
        if not str(value).replace(",", "").strip():
            problem = "--types is empty; give a type, a glob such as video.*, or leave the option out"
            raise click.UsageError(problem, context)
        return str(value)


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the common options say. `config` is None when -c was not given."""

    environment: str | None = None
    config: Path | None = None
    json: bool = False
    include: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    types: tuple[str, ...] = ()

    def settings(self, reader: Reader = "schedules") -> Settings:
        """Return the configuration; one without sections is the `reader`'s. Raises ConfigError."""
        return lasting(load(DEFAULT_CONFIG if self.config is None else self.config, self.environment, reader))

    def load_required(self) -> None:
        """Load what -I and -r name, for a command that runs no application. Raises ConfigError: it cannot be loaded."""
        load_modules(self.include, self.require)

    @property
    def has_config(self) -> bool:
        """Whether a configuration was named, or the usual one is there."""
        return self.config is not None or DEFAULT_CONFIG.exists()


def lasting(settings: Settings) -> Settings:
    """Return `settings`. Raises ConfigError for a database that no other process would see."""
    for section in (settings.schedules, settings.queue):
        if section is not None and is_in_memory(section.url):
            raise ConfigError(
                f"{settings.path}:{settings.environment}: url: {section.url} is in memory, where each process has its "
                "own and loses it; name a file, as in sqlite:///psched.db"
            )
    return settings


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Keep what was given; after the command wins over before it, and folders and modules add up."""
    if not value:
        return
    chosen, name = _chosen(context), str(parameter.name)
    if isinstance(value, tuple):
        value = getattr(chosen, name) + value
    context.meta[__name__] = replace(chosen, **{name: value})


def _chosen(context: click.Context) -> Chosen:
    chosen: Chosen = context.meta.get(__name__, Chosen())
    return chosen


def _option(*names: str, **attributes: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return click.option(*names, expose_value=False, callback=_remember, **attributes)


_COMMON = (
    _option(
        "-e", "--environment", metavar="ENV", help="Environment in the file (default: $PSCHED_ENV, or development)."
    ),
    _option("-c", "--config", type=click.Path(path_type=Path), metavar="PATH", help=f"Default: {DEFAULT_CONFIG}."),
    _option("--json", is_flag=True, help="Print JSON."),
)
_LOADING = (
    _option("-I", "--include", multiple=True, metavar="DIR", help="Folder for the import path; may be repeated."),
    _option("-r", "--require", multiple=True, metavar="MODULE|FILE.py", help="Load this first; may be repeated."),
    _option(
        "--types",
        type=TypeGlobs(),
        multiple=True,
        metavar="GLOB,…",
        help="Run only these types, of those the application routes; replaces `types:` of the configuration.",
    ),
)


def common_options(loading: bool = False) -> Callable[[Callable[Concatenate[Chosen, P], R]], Callable[P, R]]:
    """Give a command the common options, with `loading` those of an application; the values are its first argument."""

    def decorate(function: Callable[Concatenate[Chosen, P], R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            chosen = _chosen(click.get_current_context())
            if not loading and (chosen.include or chosen.require):
                chosen.load_required()
            return function(chosen, *args, **kwargs)

        decorated: Callable[..., R] = call
        for option in (*_COMMON, *(_LOADING if loading else ())):
            decorated = option(decorated)
        return decorated

    return decorate


_NUMBER = re.compile(r"[+-]?\d+(\.\d+)?(e[+-]?\d+)?", re.IGNORECASE)
_DATE = re.compile(r"\d{4}-\d\d-\d\d(?!\d).*")
_SPAN = re.compile(r"(?P<number>\d+(?:\.\d+)?)(?P<unit>[smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST = 1e9
"""Seconds (31 years): more is a slip."""
_EARLIEST = 100_000_000
"""Unix seconds in 1973: a start before that is meant as something else, as seconds from now."""
_MOST = 2**31 - 1


class Moment(click.ParamType[Callable[[float], float]]):
    """Unix seconds, a date like 2026-03-29 or 2026-03-29T12:00+02:00 (without offset: local), or 2d: so long ago."""

    name = "moment"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return a function from the present to the moment, both in unix seconds, for spans count from a clock."""
        return moment(value, lambda problem: self.fail(problem, parameter, context)) if _is_text(value) else value


def moment(text: str, fail: Callable[[str], Any]) -> Callable[[float], float]:
    """Return what tells the moment that `text` means from the present one; calls `fail` when it means none."""
    span = _SPAN.fullmatch(text)
    if span is not None:
        seconds = float(span["number"]) * _UNITS[span["unit"]]
        if seconds > _LONGEST:
            fail(f"{shown(text)} reaches back more than 31 years ({_LONGEST:.0f} s); give a shorter span, or a date")
        return lambda now: now - seconds
    found = _absolute(text)
    if found is None:
        fail(f"{shown(text)} is no time; give unix seconds, a date like 2026-03-29, or a span like 2d (two days ago)")
    found = _within(text, found.timestamp() if isinstance(found, datetime) else float(found or 0), 0, fail)
    return lambda _: found


class UnixTime(click.ParamType[float]):
    """Unix seconds, or a date with time and zone, such as 2026-12-01T08:00+01:00 or 2026-12-01T07:00Z."""

    name = "time"

    def __init__(self, whole: bool = False) -> None:
        """`whole`: seconds are rounded up."""
        self._whole = whole

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        """Return unix seconds, of 1973 or later."""
        if not _is_text(value):
            return value
        seconds = self._seconds(value, lambda problem: self.fail(problem, parameter, context))
        return math.ceil(seconds) if self._whole else int(seconds) if seconds.is_integer() else seconds

    def _seconds(self, text: str, fail: Callable[[str], Any]) -> float:
        found = _absolute(text)
        if found is None:
            fail(f"{shown(text)} is no time; {_EXAMPLES}")
        if isinstance(found, datetime) and found.tzinfo is None:
            example = found.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
            fail(f"{shown(text)} names no time zone; write it as in {example}, or with an offset such as +01:00")
        seconds = found.timestamp() if isinstance(found, datetime) else float(found or 0)
        return _within(text, seconds, _EARLIEST, fail)


_EXAMPLES = "give unix seconds, or a date with a time zone such as 2026-12-01T08:00+01:00"


def _within(text: str, seconds: float, earliest: int, fail: Callable[[str], Any]) -> float:
    """Return `seconds`; calls `fail` when they are before `earliest` or after the year 9999."""
    if seconds >= LAST_TIME:
        fail(f"{shown(text)} is after the year 9999, unix seconds {LAST_TIME - 1}; are these milliseconds? {_EXAMPLES}")
    if seconds < earliest:
        year = datetime.fromtimestamp(earliest, UTC).year
        fail(f"{shown(text)} is before {year}, unix seconds {earliest} (now it is {time.time():.0f}); {_EXAMPLES}")
    return seconds


def _absolute(text: str) -> float | datetime | None:
    """Return the unix seconds or the date that `text` is, None when it is neither."""
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _DATE.fullmatch(text):
        return None
    try:
        found = datetime.fromisoformat(re.sub(r" (?=[+-]\d\d:?\d\d$)", "", text))  # as `list` prints it
        found.timestamp()
    except (ValueError, OverflowError):
        return None
    return found


def _is_text(value: object) -> bool:
    return isinstance(value, str)


NO_BOUND = -1.0
"""What `none` is read as, where None means that an option was not given."""


class Count(click.ParamType[int]):
    """A whole number, or none where that may be: no bound."""

    name = "count"

    def __init__(self, lowest: int = 1, highest: int = _MOST, none: bool = False) -> None:
        """Both are included."""
        self._lowest, self._highest, self._none = lowest, highest, none

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> int:
        """Return the number, NO_BOUND for none."""
        if self._none and value == "none":
            return int(NO_BOUND)
        number = int(value) if re.fullmatch(r"[+-]?\d{1,18}", str(value)) else None
        if number is None or not self._lowest <= number <= self._highest:
            expected = f"expected a whole number from {self._lowest} to {self._highest}"
            self.fail(f"{expected}{', or none' if self._none else ''}, got {shown(value)}", parameter, context)
        return number


class Seconds(click.ParamType[float]):
    """A number of seconds, or none where that may be: no bound."""

    name = "seconds"

    def __init__(self, lowest: float = 0, highest: float = _LONGEST, none: bool = False) -> None:
        """Both are included."""
        self._lowest, self._highest, self._none = lowest, highest, none

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """Return the seconds, whole ones as int; NO_BOUND for none."""
        if self._none and value == "none":
            return NO_BOUND
        seconds = float(value) if _NUMBER.fullmatch(str(value)) else math.nan
        if not self._lowest <= seconds <= self._highest:
            expected = f"expected a number of seconds from {self._lowest:.0f} to {self._highest:.0f}"
            self.fail(f"{expected}{', or none' if self._none else ''}, got {shown(value)}", parameter, context)
        return int(seconds) if seconds.is_integer() else seconds


DELAY = Seconds(-LONGEST_DELAY, LONGEST_DELAY)
"""A delay may be negative: the run is then before its occurrence."""
