"""Opens SQL databases by URL. This package holds the code that all stores on SQL databases share."""

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
"""The module and class of the dialect for each scheme of a URL. A module is imported when a URL needs it."""


def open_database(
    url: str,
    tls: Mapping[str, Any],
    connections: int = 1,
    pooler: str = "auto",
    database: Callable[[Dialect], Database] | None = None,
    read_only: bool = False,
    long_reads: bool = False,
) -> Database:
    """Return the database at `url`. Opens no connection.

    A URL without a driver gets psched's own driver. A driver in the URL, as in `mysql+mysqldb://`, is kept.
    `connections`: how many connections stay open while they are idle. For `pooler`, `database`, `read_only` and
    `long_reads` see `StoreSettings`.

    Raises:
        ConfigError: the URL or an option is wrong. The message never shows the URL, because the URL may hold a
            password.
    """
    try:
        parsed = make_url(url)
    except (ArgumentError, ValueError) as error:
        raise ConfigError(
            "url: not a database URL; expected for example mysql://user:password@host:3306/database, "
            "postgresql://… or sqlite:///psched.db"
        ) from error
    timeouts = Timeouts.of(parsed.query)
    if read_only and not long_reads:
        timeouts = timeouts.for_readers()
    parsed = parsed.difference_update_query(["connect_timeout", "read_timeout"])
    name, _, driver = parsed.drivername.partition("+")
    if name not in _DIALECTS:
        raise ConfigError(f"url: no dialect for {name}://; use sqlite://, mysql://, mariadb:// or postgresql://")
    dialect: type[Dialect] = resolve_name(f"{__name__}.{_DIALECTS[name]}")
    unusable = next((option for option in parsed.query if option in dialect.object_options), None)
    if unusable is not None:
        raise ConfigError(f"url: the option {unusable} needs a Python object, which a URL cannot contain; remove it")
    full = parsed.set(drivername=f"{dialect.name}+{driver or dialect.driver}")
    return (database or Database)(dialect(full, Tls.of(tls), timeouts, connections, pooler, read_only, long_reads))
