"""Replaces `${NAME}` and `${file:PATH}` in the values of a configuration, and reads the file that `env_file:` names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from dotenv.parser import parse_stream

from psched.config.database_urls import absolute_path
from psched.config.yaml_file import NOT_PERMITTED

_REFERENCE = re.compile(
    r"\$\{(?:"
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?"
    r"|file:(?P<file>(?:[^${}]|\$\{[^${}]*\})+)"
    r")\}|(?P<broken>\$\{)"
)


class ExpansionError(ValueError):
    """A reference that cannot be replaced. `path`: the path of keys that leads to the value."""

    def __init__(self, path: tuple[str, ...], message: str) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class Expansion:
    """Replaces references such as `${NAME}`. `base`: the folder of relative paths in `${file:PATH}`."""

    variables: Mapping[str, str]
    base: Path

    def of(self, value: Any, path: tuple[str, ...] = ()) -> Any:
        """Return `value` with the references in all its strings replaced. Raises ExpansionError.

        `path`: the keys that lead to `value`, for the error.
        """
        if isinstance(value, dict):
            return {key: self.of(item, (*path, str(key))) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.of(item, (*path, str(index))) for index, item in enumerate(value)]
        if isinstance(value, str):
            return _REFERENCE.sub(lambda match: self._replacement(match, path), value)
        return value

    def _replacement(self, match: re.Match[str], path: tuple[str, ...]) -> str:
        if match["broken"]:
            raise ExpansionError(path, "expected ${NAME}, ${NAME:-default} or ${file:PATH} after '$'")
        if match["file"] is not None:
            return self._line(absolute_path(self.of(match["file"], path), self.base), path)
        found = self.variables.get(match["name"])
        if match["default"] is not None:
            return found or match["default"]
        if found is None:
            problem = f"the environment variable {match['name']} is not set"
            raise ExpansionError(path, f"{problem}; export it, or write it into the file that env_file: names")
        return found

    def _line(self, file: Path, path: tuple[str, ...]) -> str:
        try:
            lines = read_text(file).splitlines()
        except ValueError as error:
            raise ExpansionError(path, str(error)) from error
        if len(lines) != 1:
            raise ExpansionError(path, f"{file}: expected one line of text, got {len(lines)} lines")
        return lines[0]


def read_env_file(file: Path) -> dict[str, str]:
    """Return the variables in a file with lines `NAME=value`.

    Raises ValueError; its text quotes no line of the file.
    """
    variables = {}
    for binding in parse_stream(StringIO(read_text(file))):
        if binding.error or (binding.key is not None and binding.value is None):
            text = binding.original.string
            line = binding.original.line + text[: len(text) - len(text.lstrip())].count("\n")
            raise ValueError(f"{file}:{line}: expected NAME=value; write quotes around a value that contains quotes")
        if binding.key is not None and binding.value is not None:
            variables[binding.key] = binding.value
    return variables


def read_text(file: Path) -> str:
    """Return the text of a file. Raises ValueError if it cannot be read."""
    try:
        if file.is_fifo() or file.is_char_device():
            raise ValueError(f"{file}: cannot be read: not a file, but a pipe or device")  # reading it may never end
        return file.read_text(encoding="utf-8")
    except PermissionError:
        raise ValueError(f"{file}: cannot be read: {NOT_PERMITTED}") from None
    except OSError as error:
        raise ValueError(f"{file}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ValueError(f"{file}: not UTF-8 text") from None
