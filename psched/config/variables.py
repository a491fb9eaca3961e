"""`${VAR}` and `${VAR:-default}` in configuration values, replaced once YAML is parsed. In master and clients."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_VARIABLE = re.compile(r"\$\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\}|(?P<broken>\$\{)")


class UnsetVariableError(ValueError):
    """A variable that a value needs is not set, or is written wrongly. `path` is the value's key path."""

    def __init__(self, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


def expand(value: Any, variables: Mapping[str, str], path: tuple[str, ...] = ()) -> Any:
    """Return `value` with the variables in all its strings replaced. Raises UnsetVariableError."""
    if isinstance(value, dict):
        return {key: expand(item, variables, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [expand(item, variables, (*path, str(index))) for index, item in enumerate(value)]
    if isinstance(value, str):
        return _VARIABLE.sub(lambda match: _replacement(match, variables, path), value)
    return value


def _replacement(match: re.Match[str], variables: Mapping[str, str], path: tuple[str, ...]) -> str:
    if match["broken"]:
        raise UnsetVariableError(path, "expected ${NAME} or ${NAME:-default} after '$'")
    found = variables.get(match["name"])
    if match["default"] is not None:
        return found or match["default"]
    if found is None:
        raise UnsetVariableError(path, f"the environment variable {match['name']} is not set")
    return found
