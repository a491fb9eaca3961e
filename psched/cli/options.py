"""The options that all commands share. They may be given before or after the command."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, tzinfo
from functools import partial, wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import click

from psched.application.loader import load_modules
from psched.cli.option_types import count
from psched.config import SectionName, Settings, default_file, load
from psched.config.database_urls import is_in_memory
from psched.config.validators import folders, required
from psched.cron import DIALECTS, CronDialect
from psched.error_messages import shown
from psched.errors import ConfigError
from psched.time_text import shown_zone

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


@dataclass(frozen=True)
class Chosen:
    """The values of the common options.

    `config`: the file that -c names, or None. `load`: reads the configuration from a file.
    """

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

        `reader`: the section that a file without sections describes. Raises ConfigError, also for a database in memory.
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
    """Store the value of a common option.

    Values of -I, -r and --types after the command are added to those before it. Any other option after the command
    replaces the same option before it.
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
    help="Use only the application's types that match a GLOB; replaces `types:` of the configuration.",
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
    """Return a decorator that adds the common options to a command.

    The command gets their values as its first argument. With `loading`, the command also has -I, -r and --types, and
    itself loads the modules. Without `loading`, modules named before the command are loaded first, which may
    raise ConfigError.
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


class LimitedRows(Generic[T]):
    """Iterates over the first `limit` of `rows`, or over all rows if `limit` is None.

    `place`: returns the value of --after that continues the list after a given row.
    """

    def __init__(self, rows: Iterable[T], limit: int | None, place: Callable[[T], str]) -> None:
        self._rows = rows
        self._limit = limit
        self._place = place
        self._more: str | None = None

    def __iter__(self) -> Iterator[T]:
        last: T | None = None
        for number, row in enumerate(self._rows):
            if number == self._limit and last is not None:
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
