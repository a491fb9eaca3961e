"""Opens SQL databases by URL. This package holds what all stores on SQL databases share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pkgutil import resolve_name
from typing import Any

from sqlalchemy import make_url
from sqlalchemy.exc import ArgumentError

from psched.backends.common.connection_options import Timeouts, Tls
from psched.backends.sql.database import Database
from psched.backends.sql.dialect import Dialect
from psched.errors import ConfigError

_DIALECTS = {
    "sqlite": "sqlite:SQLiteDialect",
    **dict.fromkeys(("mysql", "mysql2", "mariadb"), "mysql:MySQLDialect"),
    **dict.fromkeys(("postgresql", "postgres"), "postgresql:PostgreSQLDialect"),
}
"""Scheme of a URL → module and class, imported when a URL needs them."""


def open_database(
    url: str,
    tls: Mapping[str, Any],
    connections: int = 1,
    pooler: str = "auto",
    made: Callable[[Dialect], Database] | None = None,
    read_only: bool = False,
    long_reads: bool = False,
) -> Database:
    """Return the database at `url`; nothing is connected yet.

    A URL without a driver takes psched's driver; `mysql+mysqldb://` and the like are taken as they are. `connections`:
    how many stay open while they are idle. `pooler`, `read_only`, `long_reads`, and for `made` `database`: see
    `StoreSettings`. Raises ConfigError; no message shows the URL, which holds a password.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(
            "url: this is no database URL; expected such as mysql://user:password@host:3306/database, "
            "postgresql://… or sqlite:///psched.db"
        ) from error
    timeouts = Timeouts.of(parsed.query)
    if read_only and not long_reads:
        timeouts = timeouts.for_readers()
    parsed = parsed.difference_update_query(["connect_timeout", "read_timeout"])
    name, _, driver = parsed.drivername.partition("+")
    if name not in _DIALECTS:
        raise ConfigError(f"url: no dialect for {name}://; there are sqlite://, mysql://, mariadb:// and postgresql://")
    dialect: type[Dialect] = resolve_name(f"{__name__}.{_DIALECTS[name]}")
    full = parsed.set(drivername=f"{dialect.name}+{driver or dialect.driver}")
    return (made or Database)(dialect(full, Tls.of(tls), timeouts, connections, pooler, read_only))
