"""The key `web`: where `psched web` listens, what its pages show, and who may see and change what."""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

from attrs import Factory, field, frozen

from psched import cron
from psched.errors import ConfigError

_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]\s]+)):(\d{1,5})")
_HEADER = re.compile(r"[A-Za-z0-9-]+")
_KEYS = ("listen", "actions", "show_data", "user_header", "trusted_proxies", "hosts", "timezone")

Networks = tuple[IPv4Network | IPv6Network, ...]


@frozen
class Web:
    """The settings of the pages of `psched.web`.

    - `listen`: host and port.
    - `actions`: whether visitors can change anything.
    - `show_data`: whether the data, headers and results of tasks are shown.
    - `user_header`: the header in which one of `trusted_proxies` sends the user's name.
    - `hosts`: names, besides those of the loopback address, that visitors on this host may use in URLs.
    - `timezone`: the time zone in which times are displayed; None: the zone of this host.
    """

    listen: tuple[str, int] = ("127.0.0.1", 9808)
    actions: bool = False
    show_data: bool = False
    user_header: str | None = None
    trusted_proxies: Networks = field(default=())
    hosts: tuple[str, ...] = Factory(tuple)
    timezone: str | None = None


def web(value: Any) -> Web:
    """Accept a mapping with some of the fields of `Web`. Raises ValueError."""
    if isinstance(value, Web):
        return value
    if not isinstance(value, Mapping):
        raise ValueError("expected a mapping, such as {listen: 127.0.0.1:9808, actions: true}")
    for key in value.keys() - set(_KEYS):
        raise ValueError(f"unknown key {key!r}; expected {', '.join(_KEYS)}")
    found = Web(
        listen=address(value.get("listen", "127.0.0.1:9808")),
        actions=_flag("actions", value.get("actions", False)),
        show_data=_flag("show_data", value.get("show_data", False)),
        user_header=_header(value.get("user_header")),
        trusted_proxies=_networks(value.get("trusted_proxies", ())),
        hosts=_hosts(value.get("hosts", ())),
        timezone=_timezone(value.get("timezone")),
    )
    if bool(found.user_header) != bool(found.trusted_proxies):
        raise ValueError(
            "user_header and trusted_proxies: expected both or neither; only a trusted proxy may set the user"
        )
    return found


def address(value: Any) -> tuple[str, int]:
    """Return the host and port of `HOST:PORT`. Raises ValueError."""
    found = _ADDRESS.fullmatch(value) if isinstance(value, str) else None
    if found is None or int(found[3]) > 65535:
        raise ValueError(f"listen: expected HOST:PORT such as 127.0.0.1:9808 or [::1]:9808, got {value!r}")
    return found[1] or found[2], int(found[3])


def is_loopback(host: str) -> bool:
    """Return whether the address or name `host` can only be reached by programs on this host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _flag(name: str, value: Any) -> bool:
    if value in ("true", "false"):  # a value from a variable is text
        return bool(value == "true")
    if not isinstance(value, bool):
        raise ValueError(f"{name}: expected true or false, got {value!r}")
    return value


def _header(value: Any) -> str | None:
    if value is not None and (not isinstance(value, str) or not _HEADER.fullmatch(value)):
        raise ValueError("user_header: expected the name of a header, such as X-Forwarded-User")
    return value


def _networks(value: Any) -> Networks:
    items = value if isinstance(value, list | tuple) else [value]
    try:
        return tuple(ip_network(item, strict=False) for item in items)
    except ValueError:
        raise ValueError("trusted_proxies: expected an address or network such as 10.0.0.0/8, or a list") from None


def _hosts(value: Any) -> tuple[str, ...]:
    items = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(item, str) and item and ":" not in item and "/" not in item for item in items):
        raise ValueError("hosts: expected a host name without a port, such as cron.example.com, or a list of them")
    return tuple(item.lower() for item in items)


def _timezone(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError("timezone: expected a name like 'Europe/Berlin'")
    try:
        cron.check_timezone(value)
    except ConfigError as error:
        raise ValueError(str(error)) from error
    return value
