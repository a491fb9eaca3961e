"""Validators of single configuration values. Each returns the converted value, or raises ValueError.

If a message begins with "expected", `loader` appends `, got …` with the text in the file. This text may be `${VAR}`. If
a message quotes an expanded value by `repr`, `loader` replaces this value by the text in the file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from attrs import field, frozen

from psched import cron
from psched.backends import check_name
from psched.config.database_urls import absolute_path, absolute_url, check_url
from psched.errors import ConfigError
from psched.retry_wait import MAX_COUNT, MAX_SECONDS, Backoff
from psched.time_text import parse_seconds

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")
_APPLICATION = re.compile(r"(?:[^\W\d]\w*(?:\.[^\W\d]\w*)*:)?[^\W\d]\w*(?:\.[^\W\d]\w*)*")


def seconds(minimum: float, above: bool = False, never: bool = False) -> Callable[[Any], Any]:
    """Return a validator for seconds or a duration ≥ `minimum`; with `above`, > `minimum`.

    With `never`, the validator also accepts the words never and none, and returns None for them.
    """
    bound = f"{'>' if above else '≥'} {minimum:g}{' or never' if never else ''}"
    expected = f"expected seconds or a duration (90s, 5m, 2h) {bound}"
    return _number(_seconds, expected, minimum, MAX_SECONDS, {"never": None, "none": None} if never else {}, above)


def _seconds(value: Any) -> float:
    return parse_seconds(value) if isinstance(value, str) else float(value)


def count(minimum: int, word: str | None = None, meaning: Any = None, maximum: int = MAX_COUNT) -> Callable[[Any], Any]:
    """Return a validator for a whole number from `minimum` to `maximum`.

    The validator also accepts `word`, and returns `meaning` for it.
    """
    expected = f"expected a whole number ≥ {minimum}" + (f" or {word}" if word else "")
    return _number(int, expected, minimum, maximum, {} if word is None else {word: meaning})


def _number(
    kind: Callable[[Any], float],
    expected: str,
    minimum: float,
    maximum: float,
    words: Mapping[str, Any],
    above: bool = False,
) -> Callable[[Any], Any]:
    """Return a validator for a number or one of the `words`. A number may be text, because variables are text."""
    kinds: tuple[type, ...] = (int, str) if kind is int else (int, float, str)

    def check(value: Any) -> Any:
        for word, meaning in words.items():
            if value in (word, meaning):
                return meaning
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ValueError(expected)
        try:
            number = kind(value)
        except (ValueError, OverflowError):
            raise ValueError(expected) from None
        if not minimum <= number <= maximum or (above and number == minimum):
            raise ValueError(expected + (f" and ≤ {maximum:.0f}" if number > maximum else ""))
        return number

    return check


_WAITS = ("first", "limit")
"""The keys of a Backoff that are durations."""


def wait(value: Any) -> float | Backoff:
    if isinstance(value, Backoff):
        return value
    if not isinstance(value, Mapping):
        return float(seconds(0)(value))
    try:
        return Backoff.of({name: seconds(0)(each) if name in _WAITS else each for name, each in value.items()})
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{error}; expected seconds, a duration, or a mapping like {{first: 1, factor: 2, limit: 5m}}"
        ) from error


def flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    if value not in ("true", "false"):  # a value from a variable is text
        raise ValueError("expected true or false")
    return bool(value == "true")


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("expected text")
    if not value.strip():
        raise ValueError("expected text that is not empty")
    return value


@frozen
class NameWithOptions:
    """An entry of `app:` such as `module:NAME: {option: value}`. Its options may contain secrets."""

    name: str
    options: Mapping[str, Any] = field(repr=False, hash=False)

    def __str__(self) -> str:
        return self.name


def names(value: Any) -> tuple[str | NameWithOptions, ...]:
    found: list[Any] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        found += (_with_options(*entry) for entry in item.items()) if isinstance(item, Mapping) else [item]
    for name in found:
        text = name.name if isinstance(name, NameWithOptions) else name
        if not isinstance(text, str) or not _APPLICATION.fullmatch(text):
            raise ValueError("expected module:NAME, NAME, or a list of them")
    return tuple(found)


def _with_options(name: Any, options: Any) -> NameWithOptions:
    if not isinstance(options, Mapping) or not all(isinstance(option, str) for option in options):
        raise ValueError(f"expected a mapping of options after {name}:")
    return NameWithOptions(name, options)


def listeners(value: Any) -> tuple[NameWithOptions, ...]:
    """Accept `otel`, a module, `name: {option: value}`, or a list of these."""
    found: list[Any] = []
    for item in value if isinstance(value, list | tuple) else [value]:
        if isinstance(item, Mapping):
            found += (_with_options(*entry) for entry in item.items())
        else:
            found.append(item if isinstance(item, NameWithOptions) else NameWithOptions(item, {}))
    for name in (each.name for each in found):
        if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")):
            raise ValueError("expected otel, a module, or a list of them; options as in otel: {parent: true}")
    return tuple(found)


def globs(value: Any) -> tuple[str, ...]:
    """Accept globs. An empty list is refused, because it would not restrict anything.

    An empty tuple is accepted, because it is the default of the key.
    """
    if value == [] or _is_blank(value):
        raise ValueError("is empty; give a type, a glob such as video.*, or leave the key out")
    for number, item in enumerate(value if isinstance(value, list | tuple) else (), 1):
        if _is_blank(item):
            raise ValueError(f"item {number} is empty; give a type, a glob such as video.*, or remove the item")
    return _listed(value, "a type, a glob like video.*, or a list of them")


def path(value: Any, base: Path) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("expected a path")
    return absolute_path(value, base)


def log_path(value: Any, base: Path) -> Path | None:
    return None if value in (None, "stderr") else path(value, base)


def metrics_path(value: Any, base: Path) -> Path | Literal["none"]:
    return "none" if value == "none" else path(value, base)


def folders(value: Any, base: Path) -> tuple[str, ...]:
    return tuple(str(path(folder, base)) for folder in _listed(value, "a folder or a list of them"))


def required(value: Any, base: Path) -> tuple[str, ...]:
    """Accept a module, a Python file, or a list of them. Relative files start at the folder of the configuration."""
    return tuple(
        str(path(name, base)) if is_file(name) else name
        for name in _listed(value, "a module, a file, or a list of them")
    )


def is_file(name: str) -> bool:
    return name.endswith(".py") or os.sep in name


def one_of(*words: str) -> Callable[[Any], str]:
    *first, last = words

    def check(value: Any) -> str:
        if value not in words:
            raise ValueError(f"expected {', '.join(first)} or {last}")
        return str(value)

    return check


def url(value: Any, base: Path) -> str:
    """Accept a database URL. A relative SQLite file starts at the folder of the configuration."""
    check_url(text(value))
    return absolute_url(value, base)


def table(value: Any) -> str:
    if not isinstance(value, str) or not _IDENTIFIER.fullmatch(value):
        raise ValueError("expected a table name of letters, digits and _, at most 63 characters")
    return value


def table_or_none(value: Any) -> str | None:
    return None if value in (None, "none") else table(value)


def store(value: Any) -> str:
    """Accept the name of a store that psched or another package provides. Does not import the other package."""
    return _accepted(check_name, value, "type: ")


def timezone(value: Any) -> str:
    return _accepted(cron.check_timezone, value, "timezone ")


def _accepted(check: Callable[[str], object], value: Any, subject: str) -> str:
    """Return `value` if it is text that `check` accepts.

    If `check` raises ConfigError, raises ValueError with the same message, but without `subject` at its beginning.
    """
    try:
        check(text(value))
    except ConfigError as error:
        raise ValueError(str(error).removeprefix(subject)) from error
    return str(value)


def tls(value: Any, base: Path) -> dict[str, str]:
    """Accept a mapping of TLS options. An empty mapping is refused, because it would request no encryption."""
    if value == {}:
        raise ValueError("is empty; write {verify: full} for the system's certificates, or leave the key out")
    if not isinstance(value, dict) or not value.keys() <= {"ca", "cert", "key", "verify"}:
        raise ValueError("expected a mapping with one or more of ca, cert, key and verify")
    if value.get("verify", "full") not in ("full", "ca", "none"):
        raise ValueError("expected verify to be full, ca or none")
    if "key" in value and "cert" not in value:
        raise ValueError("expected `cert`, the file of the certificate, because `key` is given")
    return {name: item if name == "verify" else str(path(item, base)) for name, item in value.items()}


def _is_blank(value: Any) -> bool:
    return isinstance(value, str) and not value.strip()


def _listed(value: Any, expected: str) -> tuple[str, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str) and item for item in items):
        raise ValueError(f"expected {expected}")
    return tuple(items)
