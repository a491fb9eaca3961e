"""Options of a connection to a database or Redis: drivers, timeouts and TLS."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from psched.error_messages import one_line
from psched.errors import ConfigError
from psched.store import Finding

_READ = 2.5
"""Seconds that a read-only session waits for an answer. It is short, because a person is waiting."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Time limits of a connection, in seconds. A URL sets them by `?connect_timeout=…&read_timeout=…`.

    `read`: the limit for each answer. The server ends a statement before this limit.
    """

    connect: float
    read: float
    longest_lock: float | None = None
    """Seconds that a statement waits for a lock; None: a fixed part of `read`."""

    @classmethod
    def of(cls, query: Mapping[str, object]) -> Timeouts:
        """Return the timeouts that the query of a URL sets. Raises ConfigError."""
        return cls(_seconds(query, "connect_timeout", 5), _seconds(query, "read_timeout", 10))

    def for_readers(self) -> Timeouts:
        """Return the timeouts of a read-only session: its statements end after 2 s."""
        return Timeouts(min(self.connect, _READ), min(self.read, _READ))

    @property
    def statement(self) -> float:
        """Seconds after which the server ends a statement: less than `read`, so that the connection stays usable."""
        return self.read * 0.8

    @property
    def lock(self) -> float:
        """Seconds that a statement waits for a locked row."""
        return self.read * 0.4 if self.longest_lock is None else self.longest_lock


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
    """Files for TLS. `verify`: `full` checks certificate and host name, `ca` only the certificate, `none` neither."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None
    verify: str = "full"

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Tls | None:
        """Read the `tls:` mapping of the configuration. Returns None for an empty mapping.

        Raises:
            ConfigError: a key or a value is wrong, or a file cannot be read.
        """
        if not settings:
            return None
        unknown = sorted(set(settings) - {"ca", "cert", "key", "verify"})
        if unknown:
            raise ConfigError(f"tls: unknown key {unknown[0]!r}; the known keys are ca, cert, key and verify")
        tls = cls(**settings)
        if tls.verify not in ("full", "ca", "none"):
            raise ConfigError(f"tls: verify must be full, ca or none, got {tls.verify!r}")
        for name in ("ca", "cert", "key"):
            _check_file(name, getattr(tls, name))
        return tls


_UNVERIFIED = "the server's certificate is not verified, so another machine could pose as the server"
_ENCRYPTED = {
    "full": "encrypted; the server's certificate and host name are verified",
    "ca": "encrypted; the server's certificate is verified, but not its host name",
    "none": f"encrypted, but {_UNVERIFIED}",
}
_REMEDY = "set `tls:` with `ca`, the file of the authority that signed the certificate"


def encryption_finding(encrypted: bool, verify: str, host: str, tls: Tls | None, remedy: str = _REMEDY) -> Finding:
    """Return the finding of `psched doctor` about the encryption of one connection.

    `verify`: as in `Tls`. `host`: empty or a path for a local socket. `tls`: None if it is not configured. A connection
    to another host without TLS gives a warning, because others could read or change the traffic.
    """
    local = host.startswith(("/", "127.")) or host in ("", "localhost", "::1")
    what = _ENCRYPTED[verify] if encrypted else "not encrypted"
    risky = tls is None and not local and not (encrypted and verify != "none")
    return Finding("encryption", True, what, warning=risky, remedy=remedy if risky else None)


_EXTRAS = {"psycopg": "psched[postgresql]", "mysqldb": "psched[mysqlclient]", "redis": "psched[redis]"}
"""The extra of psched that installs each driver."""


def missing_driver(error: ImportError, driver: str, user: str) -> ConfigError:
    """Return the error for a driver that cannot be imported. `user`: what needs the driver, such as `postgresql://`."""
    remedy = f"pip install '{_EXTRAS.get(driver, error.name)}'"
    if isinstance(error, ModuleNotFoundError):
        return ConfigError(f"the driver of {user} is not installed: {remedy}")
    return ConfigError(
        f"the driver of {user} needs a system library that is missing: {one_line(error)}; install it, or {remedy}"
    )


def _check_file(name: str, path: str | None) -> None:
    """Raise ConfigError if the file cannot be read.

    Without this check, the error might appear only when a driver opens the file.
    """
    try:
        if path is not None:
            Path(path).open("rb").close()
    except OSError as error:
        raise ConfigError(f"tls: {name}: {path} cannot be read: {error.strerror}") from error
