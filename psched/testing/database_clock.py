"""Lets a test set the database's clock.

All times of psched come from one SQL expression (`now_ms`). While the clock is set, each statement is executed with a
number instead of that expression. So the clock works on every SQL database, on open connections, on a caller's
SQLAlchemy connections, and in forked processes, which share it.
"""

from __future__ import annotations

import math
import mmap
import struct
import time
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

from sqlalchemy import Connection, Engine, event

from psched.backends.sql.dialect import now_ms
from psched.cron.zones import load_zone
from psched.error_messages import shown
from psched.errors import NotSupportedError
from psched.time_check import check_time
from psched.time_text import parse_seconds

Moment = str | datetime | float
"""A point in time: ISO 8601 text, a datetime, or unix seconds."""

_TRUE = 0


class DatabaseClock:
    """The database's clock for psched. It decides what is due, when leases end, and when attempts are retried.

    It shows the true time until a test sets it. Then it stands still until it is set again. The clock of the
    application's own code (`datetime.now()`) is not affected; set that one by time-machine or freezegun.
    """

    def __init__(self) -> None:
        self.refusal: str | None = None
        """Why the clock cannot be set; None if it can."""
        self._shared = mmap.mmap(-1, 8)  # shared with forked processes
        self._texts: dict[str, str] = {}
        self._set(_TRUE)

    def start(self) -> None:
        """Make psched's statements read this clock."""
        event.listen(Engine, "before_cursor_execute", self._on_execute, retval=True)

    def stop(self) -> None:
        """Make statements read the database's own clock again."""
        event.remove(Engine, "before_cursor_execute", self._on_execute)

    def time(self) -> float:
        """Return the time of this clock, in unix seconds."""
        shown = self._milliseconds()
        return time.time() if shown == _TRUE else shown / 1000

    def now(self, tz: str | tzinfo = "UTC") -> datetime:
        """Return the time of this clock, as a datetime in the zone `tz`."""
        return datetime.fromtimestamp(self.time(), _zone(tz))

    def travel_to(self, when: Moment, tz: str | tzinfo | None = None) -> None:
        """Set the clock forwards or backwards. It then stands still.

        `when`: ISO 8601 text (`2027-03-28 01:59`), a datetime, or unix seconds. `tz`: the zone of a time without a
        zone, by name or as a tzinfo. A local time that occurs twice means its first occurrence; for the second, give an
        offset (`+01:00`).

        Raises:
            ValueError: not a time, a time without a zone, or a local time that a change to daylight saving time skips.
            NotSupportedError: the clock of this type of store cannot be set.
        """
        if self.refusal is not None:
            raise NotSupportedError(self.refusal)
        self._set(round(unix_seconds(when, tz) * 1000))

    def shift(self, by: str | float | timedelta) -> None:
        """Move the clock by seconds, a timedelta, or text such as `90s`, `5m`, `2h`, `1d`.

        Raises the errors of `travel_to`.
        """
        self.travel_to(math.ceil((self.time() + _duration(by)) * 1000) / 1000)

    def _milliseconds(self) -> int:
        shown: int = struct.unpack("q", self._shared[:8])[0]
        return shown

    def _set(self, milliseconds: int) -> None:
        self._shared[:8] = struct.pack("q", milliseconds)

    def _on_execute(
        self, connection: Connection, cursor: Any, statement: str, parameters: Any, context: Any, many: bool
    ) -> tuple[str, Any]:
        shown = self._milliseconds()
        if shown == _TRUE:
            return statement, parameters
        dialect = connection.dialect
        text = self._texts.get(dialect.name)
        if text is None:
            text = self._texts[dialect.name] = str(now_ms().compile(dialect=dialect))
        return statement.replace(text, str(shown)), parameters


def unix_seconds(when: Moment, tz: str | tzinfo | None = None) -> float:
    """Return `when` in unix seconds. Raises the errors of `DatabaseClock.travel_to`."""
    if isinstance(when, int | float) and not isinstance(when, bool):
        check_time("when", when)
        return when
    moment = _datetime(when)
    if moment.tzinfo is not None:
        if tz is not None:
            raise ValueError(f"{when!s} already has a time zone; remove tz={tz!r}, or the zone in the time")
        found = moment.timestamp()
    elif tz is None:
        raise ValueError(f"{when!s} has no time zone; name it, as in: travel_to({str(when)!r}, 'Europe/Berlin')")
    else:
        found = _local(moment, _zone(tz))
    check_time("when", found)
    return found


def _datetime(when: object) -> datetime:
    if isinstance(when, datetime):
        return when
    if not isinstance(when, str):
        raise ValueError(f"a time must be text like '2027-03-28 01:59', a datetime or unix seconds, got {when!r}")
    try:
        return datetime.fromisoformat(when)
    except ValueError:
        raise ValueError(
            f"{when!r} is not a time; expected for example '2027-03-28 01:59' or '2027-03-28T01:59Z'"
        ) from None


def _local(moment: datetime, zone: tzinfo) -> float:
    instant = moment.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None, fold=0) != moment.replace(fold=0):
        there = instant.astimezone(zone)
        raise ValueError(f"{moment} does not exist in {zone}, because clocks are put forward; did you mean {there}?")
    return instant.timestamp()


def _zone(tz: str | tzinfo) -> tzinfo:
    return load_zone(tz) if isinstance(tz, str) else tz


def _duration(by: object) -> float:
    if isinstance(by, timedelta):
        return by.total_seconds()
    if isinstance(by, str):
        try:
            return parse_seconds(by)
        except ValueError:
            raise ValueError(
                f"{by!r} is not a duration; expected seconds, or text like '90s', '5m', '2h', '1d'"
            ) from None
    if isinstance(by, bool) or not isinstance(by, int | float) or not math.isfinite(by):
        raise ValueError(f"a duration must be seconds, a timedelta or text like '5m', got {shown(by)}")
    return by
