"""Backend packages, one for each value of `type`. A package is imported when a configuration names it."""

from __future__ import annotations

import re
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
"""Module and class name of each base class of driver errors."""


def open_stores(type_: str, settings: StoreSettings) -> Stores:
    """Return the stores of the backend `type_` for the tables that `settings` name. Opens no connection.

    Raises:
        ConfigError: the backend does not exist, has no `open_stores`, or refuses the settings.
    """
    check_name(type_)
    module = _module(type_)
    try:
        opener: Callable[[StoreSettings], Stores] | None = getattr(import_module(module), "open_stores", None)
    except ModuleNotFoundError as error:
        if error.name == type_:  # the driver, named like the type, is missing
            raise missing_driver(error, type_, f"type {type_}") from error
        if not f"{module}.".startswith(f"{error.name}."):  # an import inside the backend failed
            raise
        raise ConfigError(_unknown(type_)) from None
    if opener is None:
        raise ConfigError(f"type: package {type_!r} is not a store: it has no function open_stores(settings)")
    return opener(settings)


def check_name(type_: str) -> None:
    """Raise ConfigError if `type_` cannot name a backend.

    Imports nothing, because a configuration may be checked as root. For a module of a third-party package, only the
    existence of the package is checked, because Python would import the package to find the module.
    """
    name = _module(type_)
    known = all(part.isidentifier() for part in name.split("."))
    if not known or find_spec(name.partition(".")[0] if "." in type_ else name) is None:
        raise ConfigError(_unknown(type_))


def is_driver_error(error: BaseException) -> bool:
    """Return whether a database driver raised `error`.

    The text of such an error says more than its traceback. Imports no driver.
    """
    loaded = [(sys.modules[module], name) for module, name in _DRIVER_ERRORS if module in sys.modules]
    return isinstance(error, tuple(getattr(module, name) for module, name in loaded))


_NO_ACCESS = ("unable to open database file", "attempt to write a readonly database")
"""Messages of SQLite if the user lacks a right to the file or its folder."""
_NO_DATABASE = re.compile(r'database ".*" does not exist|Unknown database|DB index is out of range')
"""Matches messages of PostgreSQL, MariaDB and Redis about a database that does not exist."""


def database_problem(
    url: str, error: Exception, is_away: bool, is_refused: bool = False, *, in_doctor: bool = False
) -> str:
    """Return one sentence for people about a driver's error.

    `url`: the URL without its password. `is_away`, `is_refused`: the results of the store's `is_unavailable` and
    `is_refused`. `in_doctor`: whether `psched doctor` reports the error.
    """
    problem = one_line(error)
    if is_away:
        check = "is the server running, and is `url:` right?"
        if url.startswith("sqlite"):
            check = "is its disk full, or does another program lock the file?"
        details = "" if in_doctor else " For details run `psched doctor`"
        return f"the database {url} is not available: {problem} ({check}{details})"
    if is_refused:
        remedy = "correct `url:`, or the user's password or rights on the server"
        return f"the database {url} refuses this user: {problem} ({remedy})"
    known = known_remedy(problem)
    return f"the database {url} refused the request: {problem}{f'; {known}' if known else ''}"


def known_remedy(problem: str) -> str | None:
    """Return the remedy for a driver's message, or None for a message that psched does not know."""
    if problem in _NO_ACCESS:
        return "let this user write the file and its folder"
    return "create this database, or correct `url:`" if _NO_DATABASE.search(problem) else None


def _module(type_: str) -> str:
    return type_ if "." in type_ else f"{__name__}.{type_}"


def _unknown(type_: str) -> str:
    return f"type: no store {type_!r}; choose rdb, redis or rdb_compat, or name a package of your own"
