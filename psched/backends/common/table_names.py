"""Checks of tables that all backends share: their names, and whether they can be written."""

from __future__ import annotations

from psched.errors import ConfigError
from psched.store import Finding

_LONGEST_NAME = 50
"""Of a table: its indexes' names must fit in PostgreSQL's 63 characters."""


def checked_name(name: str) -> str:
    """Return `name`, or raise ConfigError unless it is a plain identifier of at most 50 characters."""
    if not (name.isascii() and name.isidentifier() and len(name) <= _LONGEST_NAME):
        raise ConfigError(
            f"table: {name!r} cannot be a table's name; letters, digits and _ are possible, at most {_LONGEST_NAME}"
        )
    return name


def unwritable(table: str, error: object) -> Finding:
    """Return the finding on a table whose test write raised `error`."""
    return Finding(
        "writing",
        False,
        f"{table} cannot be written, and workers wait until it can: {error}; "
        "is this a standby, read-only, or does the user lack the right?",
    )
