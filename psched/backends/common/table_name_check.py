"""The rule for the names of tables."""

from __future__ import annotations

from psched.errors import ConfigError

_LONGEST_NAME = 50
"""The maximum number of characters of a table's name. The names of its indexes are longer, and PostgreSQL allows 63
characters."""


def checked_name(name: str) -> str:
    """Return `name`. Raises ConfigError if it is not an ASCII identifier of at most 50 characters."""
    if not (name.isascii() and name.isidentifier() and len(name) <= _LONGEST_NAME):
        raise ConfigError(
            f"table: {name!r} cannot be a table's name; expected at most {_LONGEST_NAME} letters, digits and _"
        )
    return name
