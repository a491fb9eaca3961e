"""The next occurrences, and what surprises there are at clock changes. Used by the command line (`psched next`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from psched.cron.expression import parse
from psched.cron.matching import DAY, Expression
from psched.cron.occurrences import EARLIEST, gap_at, next_time
from psched.cron.zones import load_zone, offset_at, offset_of_wall


@dataclass(frozen=True, slots=True)
class Occurrence:
    """A match in unix seconds, and a note on what a clock change does to it or has skipped before it, mostly empty."""

    time: int
    note: str


def occurrences(cron: str, at: int, timezone: str, n: int, dialect: str = "vixie") -> list[Occurrence]:
    """Return the first `n` matches at or after `at` (unix seconds). Raises as `next_time` does."""
    expression, zone = parse(cron, dialect), load_zone(timezone)
    found: list[Occurrence] = []
    before = at - 1
    for _ in range(n):
        time = next_time(cron, before, timezone, dialect)
        found.append(Occurrence(time, _note(expression, zone, before, time)))
        before = time
    return found


def _note(expression: Expression, zone: ZoneInfo, before: int, time: int) -> str:
    notes = (_missing(expression, zone, before, time), _repeated(expression, zone, time))
    return "; ".join(note for note in notes if note)


def _missing(expression: Expression, zone: ZoneInfo, before: int, time: int) -> str:
    """Describe matching wall times that do not exist: this run stands for them, or they were skipped before it."""
    here = time + offset_at(zone, time)
    before = max(before, EARLIEST - 1)
    wall = expression.next_wall(before + offset_at(zone, before) + 1)
    if wall is None or wall >= here or (gap := gap_at(zone, wall)) is None:
        return ""
    change, skipped = gap
    if expression.once and change == time:
        return f"runs late: {_clock(wall)} does not exist"
    end = change + offset_at(zone, change)
    further = expression.next_wall(wall + 1)
    more = " and later" if further is not None and further < end else ""
    target = _clock(end, day=end // DAY != wall // DAY)
    return f"skipped {_clock(wall, day=True)}{more}: the clock jumps from {_clock(end - skipped)} to {target}"


def _repeated(expression: Expression, zone: ZoneInfo, time: int) -> str:
    """Describe a wall time that comes twice."""
    wall = time + offset_at(zone, time)
    first, second = (wall - offset_of_wall(zone, wall, fold) for fold in (0, 1))
    if second <= first:
        return ""
    if expression.once:
        return f"runs once, though {_clock(wall)} comes twice"
    return f"second pass of the repeated {_span(second - first)}" if time == second else ""


def _span(seconds: int) -> str:
    return "hour" if seconds == 3600 else f"{seconds // 60} minutes"


def _clock(wall: int, day: bool = False) -> str:
    moment = datetime(1970, 1, 1) + timedelta(seconds=wall)
    clock = moment.strftime("%H:%M:%S" if moment.second else "%H:%M")
    return f"{moment:%Y-%m-%d} {clock}" if day else clock
