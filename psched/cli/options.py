"""The options that all commands share, which may be given before or after the command; and the parsing of values."""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, tzinfo
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import click

from psched.application.loader import load_modules
from psched.config import SectionName, Settings, default_file, load
from psched.config.database_urls import is_in_memory
from psched.config.validators import folders, required
from psched.cron import DIALECTS, CronDialect
from psched.error_messages import ESCAPES, shown
from psched.errors import ConfigError
from psched.payload import long_number
from psched.retry_wait import MAX_COUNT, MAX_SECONDS, Backoff
from psched.schedule_options import LAST_TIME
from psched.time_text import parse_seconds, shown_zone

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Chosen:
    """The values of the common options. `config`: None without -c. `load` reads the configuration from its file."""

    environment: str | None = None
    config: Path | None = None
    json: bool = False
    include: tuple[str, ...] = ()
    require: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    load: Callable[[Path, str | None, SectionName], Settings] = load

    @property
    def file(self) -> Path:
        return default_file() if self.config is None else self.config

    def settings(self, reader: SectionName = "schedules", app: tuple[str, ...] = ()) -> Settings:
        """Return the configuration, changed by `app` and by the options -I, -r and --types.

        `reader`: the section that a file without sections configures. Raises ConfigError, also for a database in
        memory.
        """
        settings = self.load(self.file, self.environment, reader)
        for section in settings.sections:
            if is_in_memory(section.url):
                raise ConfigError(
                    f"{settings.path}:{settings.environment}: url: {section.url} is a database in memory: other "
                    "processes cannot see it, and it ends with its process; name a file, as in sqlite:///psched.db"
                )
        return settings.with_application(app, self.include, self.require, self.types)

    def absolute(self) -> Self:
        """Return the options with absolute paths, for a process that may change its working directory."""
        include, require = folders(self.include, Path.cwd()), required(self.require, Path.cwd())
        return replace(self, config=self.file.absolute(), include=include, require=require)


def _remember(context: click.Context, parameter: click.Parameter, value: Any) -> None:
    """Store an option.

    Folders, modules and types that follow the command are added to those that precede it. Any other option that
    follows the command replaces the same option before the command.
    """
    if not value:
        return
    chosen, name = context.ensure_object(Chosen), str(parameter.name)
    if isinstance(value, tuple):
        value = getattr(chosen, name) + value
    context.obj = replace(chosen, **{name: value})


def _type_globs(value: str) -> str:
    """Return the value of --types unchanged. Raises UsageError if it contains no glob."""
    if not value.replace(",", "").strip():
        raise click.UsageError("--types is empty; give a type, a glob such as video.*, or remove the option")
    return value


_option = partial(click.option, expose_value=False, callback=_remember)
ENVIRONMENT = _option(
    "-e",
    "--environment",
    metavar="ENV",
    help="Environment in the file (default: $PSCHED_ENV, $RAILS_ENV, or development).",
)
CONFIG = _option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    help="Configuration file (default: $PSCHED_CONFIG, or etc/psched.yml).",
)
INCLUDE = _option("-I", "--include", multiple=True, metavar="DIR", help="Folder to import from; may be repeated.")
REQUIRE = _option(
    "-r", "--require", multiple=True, metavar="MODULE|FILE.py", help="Module to load first; may be repeated."
)
TYPES = _option(
    "--types",
    type=_type_globs,
    multiple=True,
    metavar="GLOB,…",
    help="Use only types of the application that match; replaces `types:` of the configuration.",
)
JSON = _option("--json", is_flag=True, help="Print JSON.")


def _show_in_utc(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.with_resource(_shown_in(UTC))


@contextmanager
def _shown_in(zone: tzinfo) -> Iterator[None]:
    before = shown_zone.set(zone)
    try:
        yield
    finally:
        shown_zone.reset(before)


_UTC = click.option(
    "--utc",
    is_flag=True,
    expose_value=False,
    callback=_show_in_utc,
    help="Print times in UTC instead of this host's time zone.",
)
WIDE = click.option("--wide", is_flag=True, help="Print all columns without cutting them.")

pass_chosen = click.make_pass_decorator(Chosen, ensure=True)


def common_options(loading: bool = False) -> Callable[[Callable[Concatenate[Chosen, P], R]], Callable[P, R]]:
    """Add the common options to a command. The options' values become the command's first argument.

    `loading`: also add the options of an application. Without `loading`, the modules that -I and -r name are loaded
    before the command runs, which may raise ConfigError.
    """

    def decorate(function: Callable[Concatenate[Chosen, P], R]) -> Callable[P, R]:
        @wraps(function)
        def load_first(chosen: Chosen, *args: P.args, **kwargs: P.kwargs) -> R:
            load_modules(chosen.include, chosen.require)
            return function(chosen, *args, **kwargs)

        decorated: Callable[..., R] = pass_chosen(function if loading else load_first)
        for option in (ENVIRONMENT, CONFIG, JSON, _UTC, *((INCLUDE, REQUIRE, TYPES) if loading else ())):
            decorated = option(decorated)
        return decorated

    return decorate


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
    """Type of an option. `parse` converts the text, or raises ValueError. Only a default of text is converted."""

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
"""Unix seconds, a date (local without an offset), or 2d for two days ago. The value is a `When`."""


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
"""Where a page of schedules begins: `next_run_time` and key of the last schedule of the page before."""


class LimitedRows(Generic[T]):
    """The first `limit` of `rows` (None: all). `place` returns the value of --after that continues behind a row."""

    def __init__(self, rows: Iterable[T], limit: int | None, place: Callable[[T], str]) -> None:
        self._rows = rows
        self._limit = limit
        self._place = place
        self._more: str | None = None

    def __iter__(self) -> Iterator[T]:
        last: T | None = None
        for count, row in enumerate(self._rows):
            if count == self._limit and last is not None:
                self._more = self._place(last)
                return
            last = row
            yield row

    def note(self) -> None:
        """If there are more rows, print how to list them."""
        if self._more is not None:
            click.echo(f"there are more; list them with: --after {_shell_word(self._more)}", err=True)


def _shell_word(text: str) -> str:
    """Return a word for the shell. Control characters are escaped as bash, zsh and ksh read them."""
    if text.isprintable():
        return shlex.quote(text)
    escaped = (f"\\{c}" if c in "\\'" else c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
    return f"$'{''.join(escaped)}'"


LIMIT = click.option(
    "--limit", type=count(), help="List at most N rows, then print the --after option of the next page."
)
PREFIX = click.option("--prefix", metavar="TEXT", help="Only keys that start with TEXT.")


def read_data(source: str) -> dict[str, Any]:
    """Return the JSON object of an argument DATA: the text itself, `@FILE` for a file, or `-` for standard input.

    Raises ValueError that names the mistake and its position.
    """
    if source != "-" and not source.startswith("@"):
        return parse_data(source)
    name, content = read_source(source.removeprefix("@"))
    try:
        return parse_data(content)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


_LARGEST_SOURCE = 1 << 30
"""The maximum number of bytes that a command reads, so that a name such as /dev/zero does not fill the memory."""


def read_source(path: str) -> tuple[str, str]:
    """Return the name and the text of a file, or of standard input (`-`). Raises ValueError."""
    name = "stdin" if path == "-" else path.translate(ESCAPES) or "''"
    try:
        if not path:  # the path of this folder
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            content = bytearray()
            while chunk := file.read(1 << 20):
                content += chunk
                if len(content) > _LARGEST_SOURCE:
                    raise ValueError(f"{name}: has more than {_LARGEST_SOURCE:,} bytes; name a smaller file")
        return name, content.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror}; name a readable file, or - for standard input") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: data is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None


def check_cron_or_key(cron: str | None, key: str | None, timezone: str | None) -> None:
    """Check that there is either a cron expression or a key, and no time zone beside a key. Raises UsageError."""
    if (cron is None) == (key is None):
        raise click.UsageError("give either a cron expression or --key KEY")
    if cron is not None and len(cron.split()) == 1 and not cron.startswith("@"):
        raise click.UsageError(f"{shown(cron)} is not a cron expression; to name a schedule, give --key")
    if key is not None and timezone is not None:
        raise click.UsageError("--timezone cannot be combined with --key: a schedule has its own zone")


def dialect_and_zone(chosen: Chosen, timezone: str | None) -> tuple[CronDialect, str]:
    """Return the cron dialect and the time zone for an expression on the command line.

    Reads both from the configuration. Without a configuration, returns the default dialect and UTC. `timezone`: a
    zone that replaces the configured zone; None: keep the configured zone.
    """
    section = chosen.settings().schedules if chosen.config or chosen.file.exists() else None
    dialect = DIALECTS[0] if section is None else section.cron_dialect
    configured = "UTC" if section is None else section.timezone
    return dialect, configured if timezone is None else timezone


def parse_data(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`. Raises ValueError that names the mistake and its position."""
    data = parse_json(text)
    if not isinstance(data, dict):
        raise ValueError(f'data must be a JSON object like {{"key": "value"}}, got {shown(text)}')
    return data


def parse_json(text: str) -> Any:
    """Return the value in JSON text. Raises ValueError that names the mistake and its position."""
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 20] or "the end"
        raise ValueError(f"data is not valid JSON: {error.msg} at character {error.pos + 1} ({found})") from error
    except RecursionError:
        raise ValueError("data is nested too deeply") from None
    except ValueError as error:
        problem = long_number(text)
        raise ValueError(str(error) if problem is None else f"data is not usable: {problem}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"data is not valid JSON: {constant} is not a JSON number; give a finite number, or null")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"data has the key {twice!r} twice; remove one of them")
    return data
