"""How to reach a database or Redis: timeouts and TLS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psched.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Timeouts:
    """How long one step may take, in seconds. `read` bounds every answer; the server gives up somewhat earlier.

    A URL sets them by `?connect_timeout=…&read_timeout=…`.
    """

    connect: float
    read: float

    @classmethod
    def of(cls, query: Mapping[str, object]) -> Timeouts:
        """Return the timeouts that the query of a URL sets. Raises ConfigError."""
        return cls(_seconds(query, "connect_timeout", 5), _seconds(query, "read_timeout", 10))

    @property
    def statement(self) -> float:
        """Seconds after which the server ends a statement: before the client does, to keep the connection."""
        return self.read * 0.8

    @property
    def lock(self) -> float:
        """Seconds that a statement waits for a locked row."""
        return self.read * 0.4


def _seconds(query: Mapping[str, object], name: str, default: float) -> float:
    given = query.get(name, default)
    try:
        seconds = float(str(given))
    except ValueError:
        seconds = 0
    if not 0 < seconds < 1e6:
        raise ConfigError(f"url: {name} must be a number of seconds, got {given!r}")
    return seconds


@dataclass(frozen=True, slots=True)
class Tls:
    """Files of the transport encryption. `verify` is full (certificate and host), ca (certificate only) or none."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: str = "full"

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Tls | None:
        """Read the configuration's `tls` mapping; None if it is empty. Raises ConfigError."""
        if not settings:
            return None
        unknown = sorted(set(settings) - {"ca", "cert", "key", "verify"})
        if unknown:
            raise ConfigError(f"tls: unknown key {unknown[0]!r}; known are ca, cert, key and verify")
        tls = cls(**settings)
        if tls.verify not in ("full", "ca", "none"):
            raise ConfigError(f"tls: verify must be full, ca or none, got {tls.verify!r}")
        for name in ("ca", "cert", "key"):
            _check_file(name, getattr(tls, name))
        return tls


def _check_file(name: str, path: str | None) -> None:
    """Raise ConfigError unless the file can be read. A driver may report it only at the first task."""
    try:
        if path is not None:
            Path(path).open("rb").close()
    except OSError as error:
        raise ConfigError(f"tls: {name}: {path} cannot be read: {error.strerror}") from error
