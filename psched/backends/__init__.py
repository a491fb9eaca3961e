"""The backends: one package for each `type`, imported when a configuration names it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from psched.backends.common.connection_options import missing_driver
from psched.error_messages import one_line
from psched.errors import ConfigError
from psched.store import Stores, StoreSettings

_DRIVER_ERRORS = (
    ("sqlalchemy.exc", "SQLAlchemyError"),
    ("sqlite3", "Error"),
    ("redis.exceptions", "RedisError"),
    ("redis.exceptions", "RedisClusterException"),
)
"""Modules and classes of the errors that drivers raise."""


def open_stores(type_: str, settings: StoreSettings) -> Stores:
    """Return the stores of the backend `type_` for the tables that `settings` name. Connects to nothing.

    Raises:
        ConfigError: there is no such backend, it has no `open_stores`, or it refuses the settings.
    """
    check_name(type_)
    module = _module(type_)
    try:
        opener: Callable[[StoreSettings], Stores] | None = getattr(import_module(module), "open_stores", None)
    except ModuleNotFoundError as error:
        if error.name == type_:  # the driver of the same name
            raise missing_driver(error, type_, f"type {type_}") from error
        if not f"{module}.".startswith(f"{error.name}."):  # a module that the backend imports is missing
            raise
        raise ConfigError(_unknown(type_)) from None
    if opener is None:
        raise ConfigError(f"type: no store {type_!r}; its package has no open_stores(settings)")
    return opener(settings)


def check_name(type_: str) -> None:
    """Raise ConfigError unless `type_` can name a backend. Imports nothing, since root checks configurations too.

    A name with a dot is a third-party package with its own `open_stores(settings)`. Only its first part is looked
    up, because Python imports a package in order to look inside it.
    """
    name = _module(type_)
    known = all(part.isidentifier() for part in name.split("."))
    if not known or find_spec(name.partition(".")[0] if "." in type_ else name) is None:
        raise ConfigError(_unknown(type_))


def is_driver_error(error: BaseException) -> bool:
    """Return whether a database driver raised `error`, so that its text says more than a traceback. Imports nothing."""
    loaded = [(sys.modules[module], name) for module, name in _DRIVER_ERRORS if module in sys.modules]
    return isinstance(error, tuple(getattr(module, name) for module, name in loaded))


def database_problem(url: str, error: Exception, is_away: bool) -> str:
    """Return a sentence about a driver's error. `url`: without its password. `is_away`: as `is_unavailable` says."""
    if is_away:
        hint = "does it run, and is `url:` right? `psched doctor` looks closer"
        return f"the database {url} is not available: {one_line(error)} ({hint})"
    return f"the database {url} refuses: {one_line(error)}"


def _module(type_: str) -> str:
    return type_ if "." in type_ else f"{__name__}.{type_}"


def _unknown(type_: str) -> str:
    return f"type: no store {type_!r}; there are rdb, redis and rdb_compat, or a package of your own"
