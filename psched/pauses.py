"""What pausing, resuming and running now make of a schedule's row. Pure; used in clients and children."""

from __future__ import annotations

import math
from dataclasses import replace

from psched import cron
from psched.errors import ConfigError, ScheduleError
from psched.ledger import PAUSED, Entry
from psched.model import ScheduleRow
from psched.rules import NEVER, first_match, passed_over, regular_of, with_regular

MOST_PAUSES = 100
"""Pauses before the last one that a row keeps: so often a schedule can be paused while no worker takes it."""
_RUNNING = "running"
_AHEAD = 30
"""Seconds by which the time of an extra run may come after the moment that it was asked for; the audit permits more."""


def paused(row: ScheduleRow, now: float, dialect: str) -> ScheduleRow:
    """Return `row` paused from `now` on (unix seconds). While it runs, the pause is seen when that has ended.

    A run that `run_now` asked for waits for the end of the pause. Of the pauses before this one those are kept that
    still have occurrences to skip. Raises ScheduleError when these are more than a row keeps.
    """
    if row.paused:
        return row
    regular = regular_of(row)
    earlier = tuple(pause for pause in row.ended_pauses if _is_to_come(regular, pause, dialect))
    if len(earlier) > MOST_PAUSES:
        raise ScheduleError(
            f"{row.key!r}: it was paused {len(earlier)} times since its next occurrence came, and {MOST_PAUSES} such "
            f"pauses can be kept; let a worker catch up, or leave the occurrences out with modify, before it is paused "
            f"again"
        )
    row = replace(
        row,
        paused_from=now,
        paused_until=None,
        earlier_pauses=earlier,
        extra_waits=row.is_asked_for,
        next_run_time=row.next_run_time if row.status == _RUNNING else NEVER,
    )
    return with_regular(row, replace(regular, next_run_time=NEVER)) if row.is_extra else row


def _is_to_come(row: ScheduleRow, pause: tuple[float, float], dialect: str) -> bool:
    """Tell whether an occurrence in `pause` is the row's next one, or comes after that by its rule."""
    begin, end = pause
    rule, time = row.rule, row.next_time
    if end <= time + rule.delay:
        return False
    if begin > time + rule.delay:
        try:
            time = first_match(rule, max(time + 1, math.ceil(begin - rule.delay)), dialect)
        except ConfigError:  # of a rule that cannot be used, as it is stored, nothing is known
            return True
    return time + rule.delay < end


def resumed(row: ScheduleRow, now: float, dialect: str) -> tuple[ScheduleRow, Entry | None]:
    """Return `row` with its pause ended at `now`, and what was skipped by it.

    What was due before the pause, or asked for by `run_now`, is due now; what came in a pause after that is skipped
    when its turn comes.
    """
    if not row.paused:
        return row, None
    row = replace(row, paused_until=now, extra_waits=False)
    if row.is_extra:
        regular = regular_of(row)
        row = with_regular(row, replace(regular, next_run_time=regular.next_time + row.rule.delay))
    if row.status == _RUNNING:
        return row, None
    if row.is_extra or row.is_asked_for or not row.settled:
        return replace(row, next_run_time=now), None
    entry = passed_over(row, now, dialect)
    if entry is None or entry.detail != PAUSED:
        return replace(row, next_run_time=row.next_time + row.rule.delay), None
    last = row.next_time if entry.last is None else entry.last
    time = cron.next_time(row.rule.cron, last, row.rule.timezone, dialect)
    return replace(row, next_time=time, next_run_time=time + row.rule.delay, previous=last), entry


def run_now(row: ScheduleRow, now: float) -> ScheduleRow:
    """Return `row` due at `now`: for its occurrence when that has come, else for an extra one, whose time is now.

    Its time is a second later than that of the last extra run when both would have the same.
    Of an extra run the regular occurrence is kept, and comes after it. Raises ScheduleError while a run is in progress.
    """
    if row.status == _RUNNING:
        raise ScheduleError(f"{row.key!r}: a run is in progress; wait for its end")
    if row.is_extra or _has_come(row, now):
        return replace(row, next_run_time=now, extra=row.next_time, extra_waits=False)
    time = int(now // 1)
    if row.extra is not None and time <= row.extra < time + _AHEAD:
        time = row.extra + 1
    return replace(with_regular(row, row), next_time=time, next_run_time=now, extra=time, extra_waits=False)


def _has_come(row: ScheduleRow, now: float) -> bool:
    """Tell whether the time of its occurrence has come, be it before or after the delay, or it was begun already."""
    return not row.settled or min(row.next_time, row.next_time + row.rule.delay, row.next_run_time) <= now
