"""Time zones and their offsets, only from the tzdata package.

The host's /usr/share/zoneinfo is never read: it differs between hosts, but the nodes of a cluster must agree on due
times.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import lru_cache
from importlib import resources
from zoneinfo import ZoneInfo

import tzdata

from psched.error_messages import did_you_mean
from psched.errors import ConfigError

_FILES = resources.files(tzdata)
"""The files of tzdata. They are located at import, because the process may later run as a user without access to
Python's library."""

_EPOCH = datetime(1970, 1, 1)


def tz_database() -> str:
    """Return the version of the tz database that this process uses, such as 2026a."""
    return str(tzdata.IANA_VERSION)


def reckoning(dialect: str) -> str:
    """Return the cron dialect and the tz database of this process, in the form that the ledger records."""
    return f"{dialect} {tz_database()}"


def check_timezone(name: str) -> None:
    """Raise ConfigError if `name` is not a zone of the tz database. `localtime`, `posixrules` and paths are refused."""
    names = _names()
    if name in names:
        return
    if name.casefold() in ("localtime", "posixrules"):
        reason = "differs from host to host; name a zone, like 'Europe/Berlin' or 'UTC'"
    else:
        reason = "is not a zone of the tz database; expected a name like 'Europe/Berlin'" + _suggestion(name, names)
    raise ConfigError(f"timezone {name[:60]!r} {reason}")


@lru_cache(maxsize=1024)
def load_zone(name: str) -> ZoneInfo:
    check_timezone(name)
    with _FILES.joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


def offset_at(zone: ZoneInfo, instant: int) -> int:
    """Return the UTC offset in seconds at an instant."""
    return _seconds(datetime.fromtimestamp(instant, zone).utcoffset())


def offset_of_wall(zone: ZoneInfo, wall: int, fold: int = 0) -> int:
    """Return the UTC offset, in seconds, of a wall time (PEP 495).

    A wall time that occurs twice has the offset of its first pass, or with `fold=1` of its second pass. In a gap, the
    result is the offset before the gap.
    """
    return _seconds((_EPOCH + timedelta(seconds=wall)).replace(tzinfo=zone, fold=fold).utcoffset())


def change_between(zone: ZoneInfo, low: int, high: int) -> int:
    """Return the instant in (low, high] at which the offset changes. There must be exactly one change."""
    offset = offset_at(zone, low)
    while high - low > 1:
        middle = (low + high) // 2
        if offset_at(zone, middle) == offset:
            low = middle
        else:
            high = middle
    return high


def _seconds(offset: timedelta | None) -> int:
    assert offset is not None
    return offset.days * 86400 + offset.seconds


@lru_cache(maxsize=1)
def _names() -> frozenset[str]:
    return frozenset(_FILES.joinpath("zones").read_text(encoding="utf-8").split())


def _suggestion(name: str, names: frozenset[str]) -> str:
    """Suggest a zone of this city, such as 'Asia/Tokyo' for 'Tokyo', or else a zone with a similar name."""
    city = name.strip().replace(" ", "_").casefold()
    cities = sorted(known for known in names if known.rpartition("/")[2].casefold() == city)
    return f"; did you mean {cities[0]!r}?" if cities else did_you_mean(name, names)
