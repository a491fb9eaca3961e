"""Parses the URL and `tls` of a configuration into the options of a Redis connection."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from redis import connection

from psched.backends.common.connection_options import Timeouts, Tls
from psched.errors import ConfigError

_DEFAULTS = {"connect_timeout": "5", "read_timeout": "10", "cluster": "auto", "db": ""}
_EXPECTED = "expected such as redis://:password@host:6379/0, rediss://… or unix:///run/redis.sock?db=0"
_ENCODED = "a password's / ? # @ are written as %2F %3F %23 %40 (and % as %25)"
_parse_url: Callable[[str], dict[str, Any]] = connection.parse_url
_IDLE = 30
"""Seconds after which an idle connection is checked before use."""


@dataclass(frozen=True, slots=True)
class Location:
    """One database of one server, or a cluster.

    `options`: of a redis-py connection, with the password. `cluster`: None means that the server is asked.
    """

    options: Mapping[str, Any] = field(repr=False)
    timeouts: Timeouts
    cluster: bool | None


def located(url: str, tls: Mapping[str, Any]) -> Location:
    """Return the location that `url` names. Raises ConfigError; no message shows the URL, since it holds a password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ConfigError(f"url: this is no URL of a Redis; {_EXPECTED}; {_ENCODED}") from None
    if parts.scheme not in ("redis", "rediss", "unix"):
        raise ConfigError(f"url: {parts.scheme}:// is none of Redis; {_EXPECTED}")
    if "@" in parts.path + parts.query + parts.fragment:
        raise ConfigError(f"url: {_ENCODED}; {_EXPECTED}")  # after the host, an @ is part of a password
    given = _given(parts.query)
    timeouts = Timeouts(_seconds(given, "connect_timeout"), _seconds(given, "read_timeout"))
    try:
        plain: dict[str, Any] = _parse_url(urlunsplit(parts._replace(query="")))
    except ValueError:
        raise ConfigError(f"url: this is no URL of a Redis; {_EXPECTED}") from None
    options = {
        **plain,
        "db": _database(given["db"] if plain.get("path") or given["db"] else parts.path.removeprefix("/")),
        "socket_timeout": timeouts.read,
        "socket_connect_timeout": timeouts.connect,
        "health_check_interval": _IDLE,
        "protocol": 2,
        **_encryption(parts.scheme, tls),
    }
    return Location(options, timeouts, _cluster(given["cluster"]))


def _given(query: str) -> dict[str, str]:
    given = dict(_DEFAULTS)
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _DEFAULTS:
            raise ConfigError(f"url: unknown option {name!r}; known are {', '.join(_DEFAULTS)}")
        given[name] = value
    return given


def _seconds(given: Mapping[str, str], name: str) -> float:
    try:
        seconds = float(given[name])
    except ValueError:
        seconds = 0
    if not 0 < seconds < 1e6:
        raise ConfigError(f"url: {name} must be a number of seconds, got {given[name]!r}")
    return seconds


def _database(text: str) -> int:
    if text and not (text.isascii() and text.isdigit() and len(text) < 9):
        raise ConfigError(f"url: a database of Redis is a number, as in redis://host:6379/0; got {text!r}")
    return int(text or 0)


def _cluster(text: str) -> bool | None:
    try:
        return {"auto": None, "true": True, "false": False}[text]
    except KeyError:
        raise ConfigError(f"url: cluster must be auto, true or false, got {text!r}") from None


def _encryption(scheme: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    tls = Tls.of(settings)
    if scheme != "rediss":
        if tls is not None:
            raise ConfigError(f"tls: {scheme}:// is not encrypted; write rediss:// in `url:`, or leave `tls:` out")
        return {}
    tls = Tls() if tls is None else tls
    return {
        "ssl_ca_certs": tls.ca,
        "ssl_certfile": tls.cert,
        "ssl_keyfile": tls.key,
        "ssl_cert_reqs": "none" if tls.verify == "none" else "required",
        "ssl_check_hostname": tls.verify == "full",
    }
