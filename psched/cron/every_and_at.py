"""The expressions `@every 5m phase 30s` (instants at equal intervals) and `@at 2027-03-01T09:00` (one wall time).

Unlike a cron expression, `@every` does not depend on the time zone. Its instants are the multiples of the interval
since the beginning of 1970 in UTC, plus the phase. So they are the same on every host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from psched.cron.zones import change_between, offset_at, offset_of_wall
from psched.time_text import parse_seconds

LONGEST_INTERVAL = 3660 * 86400
"""The longest interval, in seconds: about ten years."""
_EPOCH = datetime(1970, 1, 1)
_EVERY = re.compile(r"@every\s+(?P<interval>\S+)(?:\s+phase\s+(?P<phase>\S+))?")
_AT = re.compile(r"@at\s+(?P<moment>\d{4}-\d{2}-\d{2}[t ]\d{2}:\d{2}(?::\d{2})?)")


class TimetableSyntaxError(Exception):
    """The text of an expression is not valid. The message is meant to be appended to the expression."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Instants that are `phase` (0 to `seconds` - 1) after a multiple of `seconds`, in unix seconds."""

    seconds: int
    phase: int = 0

    def following(self, zone: ZoneInfo, after: int) -> int:
        """Return the first instant after `after`."""
        return after + self.seconds - (after - self.phase) % self.seconds

    def count(self, zone: ZoneInfo, first: int, last: int) -> int:
        """Return how many instants there are from `first` to `last`, both included."""
        return max(0, (last - self.phase) // self.seconds - (first - 1 - self.phase) // self.seconds)


@dataclass(frozen=True, slots=True)
class Moment:
    """One wall time, in seconds since 1970-01-01 00:00 in local time."""

    wall: int

    def following(self, zone: ZoneInfo, after: int) -> int | None:
        """Return the instant of the wall time in `zone`; None if this instant is not after `after`."""
        instant = self.instant(zone)
        return instant if instant > after else None

    def count(self, zone: ZoneInfo, first: int, last: int) -> int:
        """Return 1 if the instant is between `first` and `last`, both included, else 0."""
        return int(first <= self.instant(zone) <= last)

    def instant(self, zone: ZoneInfo) -> int:
        """Return the instant of the wall time. If there are two, return the first.

        If clocks skip the wall time, return the end of the gap.
        """
        before = offset_of_wall(zone, self.wall)
        instant = self.wall - before
        skipped = offset_at(zone, instant) - before
        return change_between(zone, instant - skipped, instant) if skipped > 0 else instant

    def __str__(self) -> str:
        return (_EPOCH + timedelta(seconds=self.wall)).isoformat(" ").removesuffix(":00")


def read(text: str) -> Interval | Moment | None:
    """Parse `@every …` or `@at …`, in lower case. Return None for any other text. Raises TimetableSyntaxError."""
    word = text.split(maxsplit=1)[:1]
    if word == ["@every"]:
        return _interval(text)
    return _moment(text) if word == ["@at"] else None


def _interval(text: str) -> Interval:
    match = _EVERY.fullmatch(text)
    if match is None:
        raise TimetableSyntaxError(
            ": expected '@every DURATION' or '@every DURATION phase DURATION', such as '@every 5m'"
        )
    seconds = _whole_seconds("interval", match["interval"], 1, LONGEST_INTERVAL)
    phase = 0 if match["phase"] is None else _whole_seconds("phase", match["phase"], 0, seconds - 1)
    return Interval(seconds, phase)


def _whole_seconds(name: str, text: str, lowest: int, highest: int) -> int:
    try:
        seconds = parse_seconds(text)
        if seconds != int(seconds) or not lowest <= seconds <= highest:
            raise ValueError
    except (ValueError, OverflowError):
        raise TimetableSyntaxError(
            f": {name} {text!r}; expected whole seconds or a duration (90s, 5m, 2h, 1d) from {lowest} to {highest} s"
        ) from None
    return int(seconds)


def _moment(text: str) -> Moment:
    match = _AT.fullmatch(text)
    if match is None:
        raise TimetableSyntaxError(
            ": expected '@at' and a local date and time without an offset, such as '@at 2027-03-01T09:00'; the "
            "schedule's time zone is a separate option"
        )
    try:
        moment = datetime.fromisoformat(match["moment"].upper())
    except ValueError:
        raise TimetableSyntaxError(
            ": there is no such date or time; expected a date of the calendar, and a time from 00:00 to 23:59:59"
        ) from None
    return Moment(int((moment - _EPOCH).total_seconds()))
