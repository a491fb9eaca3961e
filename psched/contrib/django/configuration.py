"""Makes psched's configuration from Django's settings: the dict PSCHED, and the database from DATABASES."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve
from django.conf import ENVIRONMENT_VARIABLE
from django.conf import settings as django_settings
from django.db import connections
from sqlalchemy import URL

from psched.config import SectionName, Settings, from_mapping
from psched.contrib.configuration_subprocess import printed_configuration
from psched.error_messages import did_you_mean
from psched.errors import ConfigError

if TYPE_CHECKING:
    from psched.cli.options import Chosen

CHILD_SETUP = "psched.contrib.django.child_setup"
_ADDED: dict[str, tuple[list[str], list[str]]] = {
    "require": ([CHILD_SETUP], []),
    "app": ([], ["psched.contrib.django.task_handler:tasks"]),
}
"""For each key, the names that psched adds before and after the user's own names. So a child sets up Django first, and
also runs Django's tasks.
"""
_SECTIONS = ("schedules", "queue")
_RETENTION = "1d"
"""The default `retention_time`. It is longer than psched's own five minutes, because programs may call `get_result`
late.
"""

_ABOUT_DJANGO = {
    "autocommit", "charset", "check_same_thread", "collation", "conv", "cursor_factory", "init_command",
    "isolation_level", "pool", "server_side_binding", "sql_mode", "timeout", "transaction_mode", "use_unicode",
}  # fmt: skip
"""OPTIONS of DATABASES that affect only Django's own connections."""
_SSL_MODES = {"VERIFY_IDENTITY": "full", "VERIFY_CA": "ca", "REQUIRED": "none"}


def settings() -> Settings:
    """Return the configuration of psched in this process. Raises ConfigError with a line for each fault."""
    return _structured(_content(), str(_base()))


def database_alias() -> str | None:
    """Return the alias in DATABASES of the database with psched's tables; None if PSCHED has a URL.

    Raises ConfigError.
    """
    given = _given()
    if "url" in given:
        if "database" in given:
            raise ConfigError("PSCHED: give either `database`, an alias of DATABASES, or `url`, but not both")
        return None
    alias = given.get("database", "default")
    if alias not in connections.settings:
        hint = did_you_mean(str(alias), connections.settings)
        raise ConfigError(f"PSCHED: database: {alias!r} is not an alias of DATABASES{hint}")
    return str(alias)


def alias_of(section: SectionName) -> str | None:
    """Return the alias in DATABASES of the database with this section's table; None if the table is elsewhere.

    Raises ConfigError.
    """
    own = _given().get(section)
    return None if isinstance(own, Mapping) and "url" in own else database_alias()


def chosen() -> Chosen:
    """Return the options for a command that takes its configuration from the settings of this process."""
    from psched.cli.options import Chosen  # noqa: PLC0415 – the process that prints the settings does not need it

    return Chosen(settings_module(), settings_file(), load=_load_here)


def chosen_of_daemon() -> Chosen:
    """Return the options for a daemon. Whenever the daemon loads its configuration, a new process imports the settings.

    So a reload sees changed settings, and the master imports none of the user's modules.
    """
    from psched.cli.options import Chosen  # noqa: PLC0415 – as above

    return Chosen(load=_load_in_new_process)


def settings_module() -> str:
    return os.environ[ENVIRONMENT_VARIABLE]


def settings_file() -> Path:
    """Return the file of the settings module. The module must already be imported."""
    _ = django_settings.DEBUG
    return Path(str(sys.modules[settings_module()].__file__))


def _load_here(file: Path, environment: str | None, reader: SectionName) -> Settings:
    return _located(settings(), settings_file(), file, environment)


def _load_in_new_process(file: Path, environment: str | None, reader: SectionName) -> Settings:
    content, base, found = printed_configuration(__name__, f"the settings {file}")
    return _located(_structured(content, base), Path(found), file, environment)


def _located(found: Settings, path: Path, file: Path, environment: str | None) -> Settings:
    if (file, environment) != (path, settings_module()):
        raise ConfigError("remove -c and -e: the configuration is PSCHED in Django's settings (see --settings)")
    return evolve(found, environment=settings_module(), path=path)


def _given() -> Mapping[str, Any]:
    given = getattr(django_settings, "PSCHED", None)
    if given is None:
        remedy = 'add PSCHED = {"database": "default"} to keep psched\'s tables in that database of DATABASES'
        raise ConfigError(f"PSCHED: missing in the settings; {remedy}")
    if not isinstance(given, Mapping):
        raise ConfigError(f"PSCHED: expected a dict, got {type(given).__name__}")
    return given


def _base() -> Path:
    """Return the folder to which relative paths refer."""
    return Path(getattr(django_settings, "BASE_DIR", Path.cwd()))


def _content() -> dict[str, Any]:
    """Return PSCHED as the content of a configuration file.

    Adds a URL, the router of Django's tasks and, if PSCHED has no section, both sections.
    """
    alias = database_alias()
    defaults = {"timezone": django_settings.TIME_ZONE, "retention_time": _RETENTION}
    content = {**defaults, **({} if alias is None else _connection(alias)), **_given()}
    content.pop("database", None)
    if not any(name in content for name in _SECTIONS):
        content |= {name: {} for name in _SECTIONS}
    for name in _SECTIONS:
        if isinstance(content.get(name), Mapping):
            content[name] = content[name] | _with_django(content[name], content[name].keys() & _ADDED.keys())
    return content | _with_django(content, _ADDED)


def _with_django(content: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return the values of `keys` in `content`, with the names that psched adds."""
    values = {}
    for key in keys:
        first, last = _ADDED[key]
        own = content.get(key, [])
        values[key] = [*first, *(own if isinstance(own, list | tuple) else [own]), *last]
    return values


def _structured(content: Mapping[str, Any], base: str) -> Settings:
    try:
        return from_mapping(content, Path(base))
    except ConfigError as error:
        raise ConfigError(
            "\n".join(f"PSCHED: {line.removeprefix('config: ')}" for line in str(error).splitlines())
        ) from None


def _connection(alias: str) -> dict[str, Any]:
    """Return the keys of psched's configuration for a connection to a database of DATABASES.

    Raises ConfigError.
    """
    connection = connections[alias]
    given = connection.settings_dict  # during tests this names the test database
    if connection.vendor == "sqlite":
        return {"type": "rdb", "url": _sqlite_url(str(given["NAME"]))}
    if connection.vendor == "postgresql":
        return _server(alias, given, _postgresql_driver(), "host")
    if connection.vendor == "mysql":
        module: Any = connection
        driver = "mysql+mysqldb" if module.Database.__name__ == "MySQLdb" else "mysql"
        return _server(alias, given, driver, "unix_socket")
    raise ConfigError(
        f"PSCHED: database: {alias!r} is {connection.display_name}, which psched does not support; name a database of "
        "SQLite, MariaDB, MySQL or PostgreSQL, or a `url`"
    )


def _sqlite_url(name: str) -> str:
    in_memory = name in ("", ":memory:") or (name.startswith("file:") and "mode=memory" in name)
    if name.startswith("file:") and not in_memory:
        raise ConfigError(f"PSCHED: the NAME {name!r} of DATABASES is a URI; write the path of the file instead")
    return URL.create("sqlite", database=None if in_memory else name).render_as_string(hide_password=False)


def _postgresql_driver() -> str:
    from django.db.backends.postgresql.psycopg_any import is_psycopg3  # noqa: PLC0415 – only where it is used

    if not is_psycopg3:
        raise ConfigError(
            "PSCHED: Django uses psycopg2, but psched needs psycopg 3; once this is installed, Django uses it, too: "
            "pip install 'psched[postgresql]'"
        )
    return "postgresql"


def _server(alias: str, given: Mapping[str, Any], scheme: str, socket: str) -> dict[str, Any]:
    """Return the URL and the TLS options of a database on a server.

    `socket`: the URL option for the path of a local socket.
    """
    options = {name: value for name, value in given.get("OPTIONS", {}).items() if name not in _ABOUT_DJANGO}
    host = given["HOST"] or None
    if host is not None and host.startswith("/"):
        options[socket], host = host, None
    found: dict[str, Any] = {"type": "rdb"}
    tls = {name: options["ssl"][name] for name in ("ca", "cert", "key") if name in options.get("ssl", {})}
    if tls:
        found["tls"] = {**tls, "verify": _SSL_MODES.get(options.get("ssl_mode", ""), "ca")}
    query = {name: str(value) for name, value in options.items() if name not in ("ssl", "ssl_mode")}
    unusable = [name for name in query if not isinstance(options[name], str | int | float)] + ["assume_role"] * (
        "assume_role" in query
    )
    if unusable:
        raise ConfigError(
            f"PSCHED: psched does not know the option {unusable[0]!r} of DATABASES[{alias!r}]; write `url` instead of "
            "`database`"
        )
    port = int(given["PORT"]) if given["PORT"] else None
    name, user, password = (given[key] or None for key in ("NAME", "USER", "PASSWORD"))
    url = URL.create(scheme, user, password, host, port, name, query)
    return found | {"url": url.render_as_string(hide_password=False)}


def main() -> int:
    """Print the content of the configuration, the folder for its relative paths, and the file of the settings."""
    try:
        content = json.dumps([_content(), str(_base()), str(settings_file())], default=str)
    except Exception as error:  # noqa: BLE001 – the process that waits for it reports it
        where = "" if isinstance(error, ConfigError) else f"{settings_module()}: {type(error).__name__}: "
        print(f"{where}{error}", file=sys.stderr)  # noqa: T201
        return 1
    print(content)  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
