"""Finds the names of time zones: of this host, and of time zone objects."""

from __future__ import annotations

import os
from datetime import tzinfo
from pathlib import Path

from psched.cron.zones import check_timezone
from psched.errors import ConfigError

_LOCALTIME = Path("/etc/localtime")
_TIMEZONE = Path("/etc/timezone")


def host_timezone() -> str:
    """Return the name of the host's time zone. Raises ConfigError if it has no name in the tz database."""
    for name in _names():
        try:
            check_timezone(name)
        except ConfigError:
            continue
        return name
    raise ConfigError("the name of this host's time zone is unknown; give --timezone, such as Europe/Berlin")


def _names() -> list[str]:
    names = [os.environ.get("TZ", "").removeprefix(":")]
    if _LOCALTIME.is_symlink():
        names.append(str(_LOCALTIME.resolve()).rpartition("zoneinfo/")[2])
    if _TIMEZONE.is_file():
        names.append(_TIMEZONE.read_text(encoding="utf-8").strip())
    return ["UTC" if name in ("Etc/UTC", "Etc/UCT", "UCT", "Zulu") else name for name in names]


def zone_name(zone: tzinfo | None) -> str:
    """Return the name of a time zone object. A fixed offset gets a name that is not in the tz database."""
    name = getattr(zone, "key", None) or getattr(zone, "zone", None) or str(zone)
    return "UTC" if name in ("UTC", "Etc/UTC") else str(name)
