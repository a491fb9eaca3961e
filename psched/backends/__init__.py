"""Where the stores are found: a package for each `type`, and nothing to register. Children and clients."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

from sqlalchemy.exc import SQLAlchemyError

from psched.errors import ConfigError
from psched.store import Stores, StoreSettings

_DRIVERS_OWN = (
    ("sqlite3", "Error"),
    ("redis.exceptions", "RedisError"),
    ("redis.exceptions", "RedisClusterException"),
)
"""The errors that come to us as the driver raised them, by their modules."""


def open_stores(type_: str, settings: StoreSettings) -> Stores:
    """Return the stores of the backend `type_` for the tables that `settings` name; nothing is connected yet.

    Raises ConfigError.
    """
    stores: Stores = find_backend(type_)(settings)
    return stores


def find_backend(type_: str) -> Callable[[StoreSettings], Stores]:
    """Import the backend `type_` and return its `open_stores`. Raises ConfigError."""
    check_name(type_)
    try:
        opener: Callable[[StoreSettings], Stores] | None = getattr(import_module(_module(type_)), "open_stores", None)
    except ModuleNotFoundError as error:
        if not f"{_module(type_)}.".startswith(f"{error.name}."):  # the package is there, but not what it imports
            raise
        raise ConfigError(_unknown(type_)) from None
    if opener is None:
        raise ConfigError(f"type: no store {type_!r}; its package has no open_stores(settings)")
    return opener


def check_name(type_: str) -> None:
    """Raise ConfigError unless `type_` may name a backend. Imports nothing: root checks configurations, too.

    A name with a dot is somebody else's package with an `open_stores(settings)` of its own. Of such a name only the
    first part is looked for here, since Python imports a package to look inside it.
    """
    name = _module(type_)
    known = all(part.isidentifier() for part in name.split("."))
    if not known or find_spec(name.partition(".")[0] if "." in type_ else name) is None:
        raise ConfigError(_unknown(type_))


def is_driver_error(error: BaseException) -> bool:
    """Tell whether a database's driver raised it, so that its own words say more than a traceback."""
    # Errors of a driver can only be met once somebody has loaded it; without need that takes time and memory.
    loaded = [(sys.modules[module], name) for module, name in _DRIVERS_OWN if module in sys.modules]
    return isinstance(error, (SQLAlchemyError, *(getattr(module, name) for module, name in loaded)))


def _module(type_: str) -> str:
    return type_ if "." in type_ else f"{__name__}.{type_}"


def _unknown(type_: str) -> str:
    return f"type: no store {type_!r}; there are rdb, redis and rdb_compat, or a package of your own"
