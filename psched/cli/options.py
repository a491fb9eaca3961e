"""The options of every command, which may stand before or after it. Used by the command line."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

import click

from psched.application.loader import load_modules
from psched.config import Reader, Settings, load
from psched.config.urls import is_in_memory
from psched.errors import ConfigError

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
