"""The rule for the names of tables, and the message for tables that a user may not write."""

from __future__ import annotations

from psched.errors import ConfigError
from psched.store import Finding

_LONGEST_NAME = 50
"""The maximum number of characters of a table's name. The names of its indexes are longer, and PostgreSQL allows 63
characters."""


def checked_name(name: str) -> str:
    """Return `name`. Raises ConfigError unless it is an ASCII identifier of at most 50 characters."""
    if not (name.isascii() and name.isidentifier() and len(name) <= _LONGEST_NAME):
        raise ConfigError(
            f"table: {name!r} cannot be a table's name; expected at most {_LONGEST_NAME} letters, digits and _"
        )
    return name


def unwritable(table: str, error: object) -> Finding:
    """Return the finding about a table whose test write raised `error`."""
    return Finding(
        "writing",
        False,
        f"{table} cannot be written, so workers wait: {error}; check that the server is not a read-only standby, and "
        "that the user may write",
    )
