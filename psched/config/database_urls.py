"""Database URLs: checks them, makes them absolute, and masks their secrets for messages."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

_PASSWORD = re.compile(r"(://[^:@/]*):.*@", re.DOTALL)
_TOKEN = re.compile(r"((?:rediss?|unix)://)(?![^:@/]*:\*\*\*@).*@", re.DOTALL)
"""Finds the user in a Redis URL without a password. Messages mask this user: it may be a password without its colon."""
_OPTION = re.compile(r"([?&]([^=&]*)=)[^&]*")
_SECRET = re.compile(r"pass|secret|token|^options$", re.IGNORECASE)
"""Names of options that contain a secret. PostgreSQL's `options` can set any variable of the session."""
EXPECTED_URL = (
    "expected a URL like sqlite:///psched.db, mysql://user:password@host:3306/database or redis://:password@host:6379/0"
)
_POSTGRESQL = ("postgresql", "postgres")
_POOLERS = (
    (_POSTGRESQL, ("auto", "transaction", "session")),
    (("mysql", "mysql2", "mariadb"), ("auto", "transaction")),
)
"""Schemes of URLs, and the allowed values of `pooler` for each."""
_REDIS = ("redis", "rediss", "unix")


def masked_url(url: str) -> str:
    """Return `url` with each secret replaced by `***`. `url` need not be valid."""
    masked = _TOKEN.sub(r"\1***@", _PASSWORD.sub(r"\1:***@", url))
    return _OPTION.sub(lambda option: f"{option[1]}***" if _SECRET.search(unquote(option[2])) else option[0], masked)


def check_url(url: str) -> None:
    """Raise ValueError for an invalid URL, with a hint for common mistakes. The error never shows a password."""
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[a-z][a-z0-9_+.]*", scheme):
        raise ValueError(EXPECTED_URL)
    if rest.partition("?")[0].count("@") > 1:
        raise ValueError("the password contains an '@'; write it as %40 (and % as %25, : as %3A, / as %2F)")
    if scheme.partition("+")[0] == "sqlite" and not rest.startswith("/") and rest:
        raise ValueError(
            "expected sqlite:///file.db (three slashes, relative) or sqlite:////folder/file.db (four, absolute)"
        )
    if scheme in _REDIS:  # check only the port; psched.backends.redis checks the rest
        try:
            _ = urlsplit(f"//{rest.rpartition('@')[2]}").port
        except ValueError:
            raise ValueError(EXPECTED_URL) from None
        return
    port = _parse(url).port
    if port is not None and not 1 <= port <= 65535:
        raise ValueError(f"the port {port} is not from 1 to 65535")
    if _sqlite_file(url).startswith("file:"):
        raise ValueError("expected a plain file path, as in sqlite:///psched.db, not a file: URI")


def url_faults(type_: str, url: str, pooler: str) -> Iterator[str]:
    """Yield why a store of this type cannot use `url` or `pooler`. Types from other packages are not checked."""
    scheme = url.partition("://")[0]
    if type_ == "redis" and scheme not in _REDIS:
        yield f"type redis needs a URL like redis://host:6379/0, not {scheme}://; or use type rdb"
    if type_ in ("rdb", "rdb_compat") and scheme in _REDIS:
        yield f"type {type_} needs a SQL database, not {scheme}://; use type redis"
    served = next((words for kinds, words in _POOLERS if scheme.partition("+")[0] in kinds), ("auto",))
    if pooler not in served:
        yield f"pooler: {pooler} is not for {scheme}://; expected {' or '.join(served)}, or leave the key out"


def is_in_memory(url: str) -> bool:
    """Return whether `url` names a SQLite database in memory. Such a database ends with its process."""
    return url.startswith("sqlite") and _sqlite_file(url) in ("", ":memory:")


def absolute_url(url: str, base: Path) -> str:
    """Return `url`, with the path of an SQLite file made absolute. A relative path starts at the folder `base`."""
    file = _sqlite_file(url) if url.startswith("sqlite") else ""
    if file in ("", ":memory:"):
        return url
    return _parse(url).set(database=str(absolute_path(file, base))).render_as_string(hide_password=False)


def absolute_path(path: str | Path, base: Path) -> Path:
    """Return `path` without `..`. Relative paths start at `base`; paths with ~ start at a home folder."""
    return Path(os.path.normpath(base / os.path.expanduser(path)))  # noqa: PTH111 - Path's fails for unknown users


def _sqlite_file(url: str) -> str:
    """Return the file of an SQLite URL, or "" for other URLs. Raises ValueError for an invalid URL.

    The file of a database in memory is "" or `:memory:`.
    """
    parts = _parse(url)
    return (parts.database or "") if parts.get_backend_name() == "sqlite" else ""


def _parse(url: str) -> URL:
    from sqlalchemy.engine import make_url  # noqa: PLC0415 – Redis needs no SQLAlchemy
    from sqlalchemy.exc import ArgumentError  # noqa: PLC0415

    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(EXPECTED_URL) from None
