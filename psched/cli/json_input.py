"""Reads files and standard input, and parses JSON, for the arguments of commands."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from psched.error_messages import ESCAPES, shown
from psched.payload import long_number


def read_data(source: str) -> dict[str, Any]:
    """Return the JSON object of an argument DATA: the text itself, `@FILE` for a file, or `-` for standard input.

    Raises ValueError that names the mistake and its position.
    """
    if source != "-" and not source.startswith("@"):
        return parse_data(source)
    name, content = read_source(source.removeprefix("@"))
    try:
        return parse_data(content)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


_LARGEST_SOURCE = 1 << 30
"""The maximum number of bytes that a command reads, so that a name such as /dev/zero does not fill the memory."""


def read_source(path: str) -> tuple[str, str]:
    """Return the name and the text of a file, or of standard input (`-`). Raises ValueError."""
    name = "stdin" if path == "-" else path.translate(ESCAPES) or "''"
    try:
        if not path:  # the path of this folder
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        with nullcontext(sys.stdin.buffer) if path == "-" else Path(path).open("rb") as file:
            content = bytearray()
            while chunk := file.read(1 << 20):
                content += chunk
                if len(content) > _LARGEST_SOURCE:
                    raise ValueError(f"{name}: has more than {_LARGEST_SOURCE:,} bytes; name a smaller file")
        return name, content.decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{name}: {error.strerror}; name a readable file, or - for standard input") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{name}: data is not UTF-8 (byte {error.start + 1}); save it as UTF-8") from None


def parse_data(text: str) -> dict[str, Any]:
    """Return the JSON object in `text`. Raises ValueError that names the mistake and its position."""
    data = parse_json(text)
    if not isinstance(data, dict):
        raise ValueError(f'data must be a JSON object like {{"key": "value"}}, got {shown(text)}')
    return data


def parse_json(text: str) -> Any:
    """Return the value in JSON text. Raises ValueError that names the mistake and its position."""
    try:
        return json.loads(text, parse_constant=_refuse, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        found = text[error.pos : error.pos + 20] or "the end"
        raise ValueError(f"data is not valid JSON: {error.msg} at character {error.pos + 1} ({found})") from error
    except RecursionError:
        raise ValueError("data is nested too deeply") from None
    except ValueError as error:
        problem = long_number(text)
        raise ValueError(str(error) if problem is None else f"data is not usable: {problem}") from None


def _refuse(constant: str) -> None:
    raise ValueError(f"data is not valid JSON: {constant} is not a JSON number; give a finite number, or null")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
        raise ValueError(f"data has the key {twice!r} twice; remove one of them")
    return data
