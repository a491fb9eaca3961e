"""What the stores on SQL databases have in common."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError

from psched.backends.common.connection_options import Timeouts, Tls
from psched.backends.sql.base import Dialect
from psched.backends.sql.database import Database
from psched.errors import ConfigError

_OTHER_NAMES = {"mysql2": "mysql", "mariadb": "mysql", "postgres": "postgresql"}


def open_database(url: str, tls: Mapping[str, Any], connections: int = 1, pooler: str | None = None) -> Database:
    """Return the database at `url`; nothing is connected yet.

    `mysql://`, `mysql2://`, `mariadb://`, `postgresql://`, `postgres://` and `sqlite://` take psched's drivers; any
    SQLAlchemy URL with a driver of its own (`mysql+mysqldb://`) is taken as it is. `connections`: how many are kept
    open while they are not used. `pooler`: see `StoreSettings`. Raises ConfigError; no message
    shows the URL, since it holds a password.
    """
    given = _parse(url)
    timeouts, parsed = Timeouts.of(given.query), given.difference_update_query(["connect_timeout", "read_timeout"])
    name, _, driver = parsed.drivername.partition("+")
    name = _OTHER_NAMES.get(name, name)
    dialect = _dialect(name)
    full = parsed.set(drivername=f"{name}+{driver or dialect.driver}")
    return Database(dialect(full, Tls.of(tls), timeouts, connections, pooler))


def _parse(url: str) -> URL:
    try:
        return make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(
            "url: this is no database URL; expected such as mysql://user:password@host:3306/database, "
            "postgresql://… or sqlite:///psched.db"
        ) from error


def _dialect(name: str) -> type[Dialect]:
    found = name.isidentifier() and find_spec(f"{__name__}.{name}") is not None
    dialect: type[Dialect] | None = getattr(import_module(f"{__name__}.{name}"), "Dialect", None) if found else None
    if dialect is None or not hasattr(dialect, "driver"):
        raise ConfigError(f"url: no dialect for {name}://; there are sqlite://, mysql:// and postgresql://")
    return dialect
