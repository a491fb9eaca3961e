"""Database URLs: tested, made absolute, and shown without their password. Used in every process."""

from __future__ import annotations

import os
import re
from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

_SECRET = re.compile(r"([?&][^=&]*pass[^=&]*=)[^&]*", re.IGNORECASE)
_EXPECTED = (
    "expected a URL like sqlite:///psched.db, mysql://user:password@host:3306/database or redis://:password@host:6379/0"
)
_OF_POSTGRESQL = ("postgresql", "postgres")
_OF_REDIS = ("redis", "rediss", "unix")


def masked_url(url: str) -> str:
    """Return `url` with the password replaced by `***`, whether it is a valid URL or not."""
    return _SECRET.sub(r"\1***", re.sub(r"(://[^:@/]*):.*@", r"\1:***@", url, flags=re.DOTALL))


def check_url(url: str) -> None:
    """Raise ValueError unless `url` is one, with a hint for the usual slips. Never repeats a password."""
    scheme, separator, rest = url.partition("://")
    if not separator or not re.fullmatch(r"[a-z][a-z0-9_+.]*", scheme):
        raise ValueError(_EXPECTED)
    if rest.partition("?")[0].count("@") > 1:
        raise ValueError("the password holds an '@'; write it as %40 (and % as %25, : as %3A, / as %2F)")
    if scheme.partition("+")[0] == "sqlite" and not rest.startswith("/") and rest:
        raise ValueError(
            "expected sqlite:///file.db (three slashes, relative) or sqlite:////folder/file.db (four, absolute)"
        )
    parts = parse(url)
    if parts.get_backend_name() == "sqlite" and (parts.database or "").startswith("file:"):
        raise ValueError("expected the path of a file as it is, as in sqlite:///psched.db, not a file: URI")


def type_fault(type_: str, url: str) -> str | None:
    """Say why `url` is not one for psched's store `type_`; None when it is, or the store is somebody else's."""
    scheme = url.partition("://")[0]
    if type_ == "redis" and scheme not in _OF_REDIS:
        return f"type redis needs a URL like redis://host:6379/0, not {scheme}://; or use type rdb"
    if type_ in ("rdb", "rdb_compat") and scheme in _OF_REDIS:
        return f"type {type_} needs a SQL database, not {scheme}://; use type redis"
    return None


def pooler_fault(pooler: str | None, url: str) -> str | None:
    """Say why `pooler` cannot be used with `url`; None when it can."""
    scheme = url.partition("://")[0]
    if pooler is None or scheme.partition("+")[0] in _OF_POSTGRESQL:
        return None
    return f"pooler: {pooler} is for PostgreSQL, not {scheme}://; leave the key out"


def parse(url: str) -> URL:
    """Return the parts of `url`. Raises ValueError."""
    try:
        return make_url(url)
    except (ArgumentError, ValueError):
        raise ValueError(_EXPECTED) from None


def is_in_memory(url: str) -> bool:
    """Tell whether `url` is of a SQLite database that is gone with the process that opens it."""
    parts = parse(url)
    return parts.get_backend_name() == "sqlite" and parts.database in (None, "", ":memory:")


def absolute_url(url: str, base: Path) -> str:
    """Return `url`; the relative file of a SQLite URL is taken from the folder `base`."""
    parts = parse(url)
    file = parts.database
    if parts.get_backend_name() != "sqlite" or not file or file == ":memory:":
        return url
    return parts.set(database=str(absolute_path(file, base))).render_as_string(hide_password=False)


def absolute_path(path: str | Path, base: Path) -> Path:
    """Return `path` without `..`; a relative one is taken from `base`, one that begins with ~ from a home folder."""
    return Path(os.path.normpath(base / os.path.expanduser(path)))  # noqa: PTH111 - Path's fails for unknown users
