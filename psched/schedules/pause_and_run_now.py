"""How pause, resume and run-now change the row of a schedule. Pure functions; times are unix seconds."""

from __future__ import annotations

import math

from psched.cron import CronDialect
from psched.errors import ConfigError, ScheduleError
from psched.model import NEVER, ScheduleRow
from psched.quick_replace import quick_replace
from psched.schedules import rule_occurrences
from psched.schedules.skip_policy import skip_entry
from psched.store.ledger import PAUSED, Entry

MOST_PAUSES = 100
"""The maximum number of earlier pauses that a row keeps, in addition to the last one."""
MOST_SECONDS_AHEAD = 2
"""The time of an extra run is at most this many seconds after its `run_now`."""


def paused(row: ScheduleRow, now: float, dialect: CronDialect) -> ScheduleRow:
    """Return `row` paused from `now` on. A run in progress continues; the pause takes effect when it is settled.

    A run that `run_now` requested waits for the end of the pause. The row keeps earlier pauses that have occurrences to
    skip. Raises ScheduleError if these are more than `MOST_PAUSES`.
    """
    if row.paused:
        return row
    regular = row.regular()
    earlier = tuple(pause for pause in row.ended_pauses if _is_to_come(regular, pause, dialect))
    if len(earlier) > MOST_PAUSES:
        raise ScheduleError(
            f"{row.key!r}: {len(earlier)} earlier pauses have occurrences that are not skipped yet; expected at most "
            f"{MOST_PAUSES}; start a worker, which skips them, or set a later next_time (modify --start); then pause "
            "the schedule again"
        )
    row = quick_replace(
        row,
        paused_from=now,
        paused_until=None,
        earlier_pauses=earlier,
        extra_waits=row.is_asked_for,
        next_run_time=row.next_run_time if row.status == "running" else NEVER,
    )
    return with_regular(row, quick_replace(regular, next_run_time=NEVER)) if row.is_extra else row


def _is_to_come(row: ScheduleRow, pause: tuple[float, float], dialect: CronDialect) -> bool:
    """Return whether the row's next occurrence or a later one is due within `pause`."""
    begin, end = pause
    delay, time = row.delay, row.next_time
    if end <= time + delay:
        return False
    if begin > time + delay:
        try:
            time = rule_occurrences.first_time(row.rule, max(time + 1, begin - delay), dialect)
        except ConfigError:  # the stored rule is invalid, so the pause is kept
            return True
    return time + delay < end


def resumed(row: ScheduleRow, now: float, dialect: CronDialect) -> tuple[ScheduleRow, Entry | None]:
    """Return `row` with its pause ended at `now`, and the ledger entry of the occurrences that the pause skipped.

    A run that was due before the pause, or that `run_now` requested, is due now. Occurrences within another pause are
    skipped when it is their turn. The failures for `pause_after` are counted again from 0.
    """
    if not row.paused:
        return row, None
    row = quick_replace(row, paused_until=now, extra_waits=False, failures=None)
    if row.is_extra:
        regular = row.regular()
        row = with_regular(row, quick_replace(regular, next_run_time=row.run_time(regular.next_time)))
    if row.status == "running":
        return row, None
    if row.is_extra:
        return quick_replace(row, next_run_time=max(now, row.next_time)), None
    if row.is_asked_for or not row.settled or (row.is_backfill and not row.ended):
        return quick_replace(row, next_run_time=now), None
    entry = skip_entry(row, now, dialect)
    if entry is None or entry.detail != PAUSED:
        return quick_replace(row, next_run_time=row.run_time(row.next_time)), None
    last = row.next_time if entry.last is None else entry.last
    time = rule_occurrences.next_time(row.rule, last, dialect)
    return quick_replace(row, next_time=time, next_run_time=row.run_time(time), previous=last), entry


def run_now(row: ScheduleRow, now: float) -> ScheduleRow:
    """Return `row` due at `now`.

    If the time of its occurrence has come, that occurrence runs. Otherwise an extra run is due, whose time is now. Two
    extra runs never have the same time: the second gets a time one second later, and is due then. After an extra run
    comes the regular occurrence. Raises ScheduleError while a run is in progress.
    """
    if row.status == "running":
        raise ScheduleError(f"{row.key!r}: a run is in progress; wait for its end")
    if row.is_extra:
        return quick_replace(row, next_run_time=max(now, row.next_time), extra_waits=False)
    if _has_come(row, now):
        return quick_replace(row, next_run_time=now, extra=row.next_time, extra_waits=False)
    time = math.floor(now)
    if row.extra is not None and time <= row.extra < time + MOST_SECONDS_AHEAD:
        time = row.extra + 1
    due = max(now, time)
    return quick_replace(with_regular(row, row), next_time=time, next_run_time=due, extra=time, extra_waits=False)


def _has_come(row: ScheduleRow, now: float) -> bool:
    """Return True if the occurrence or its run is due, or if the run has begun."""
    return not row.settled or min(row.next_time, row.next_time + row.delay, row.next_run_time) <= now


def with_regular(row: ScheduleRow, regular: ScheduleRow) -> ScheduleRow:
    """Return `row`, the row of an extra run, with the next occurrence of `regular` as its regular occurrence."""
    return quick_replace(row, regular_time=regular.next_time, regular_run_time=regular.next_run_time)
