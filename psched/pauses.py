"""What pausing, resuming and running now make of a schedule's row. Pure; used in clients and children."""

from __future__ import annotations

from dataclasses import replace

from psched import cron
from psched.errors import ScheduleError
from psched.ledger import PAUSED, Entry
from psched.model import ScheduleRow
from psched.rules import NEVER, passed_over

_RUNNING = "running"


def paused(row: ScheduleRow, now: float) -> ScheduleRow:
    """Return `row` paused from `now` on (unix seconds). While it runs, the pause is seen when that has ended."""
    if row.paused:
        return row
    begin = now
    if row.paused_from is not None and row.paused_until is not None:
        before_its_end = row.next_time + row.rule.delay < row.paused_until
        begin = row.paused_from if before_its_end else now  # what came in the last pause is still to be skipped
    due = row.next_run_time if row.status == _RUNNING else NEVER
    return replace(row, paused_from=begin, paused_until=None, next_run_time=due)


def resumed(row: ScheduleRow, now: float, dialect: str) -> tuple[ScheduleRow, Entry | None]:
    """Return `row` with its pause ended at `now`, and what was skipped by it.

    What was due before the pause is due now; what came in the pause after that is skipped when its turn comes.
    """
    if not row.paused:
        return row, None
    row = replace(row, paused_until=now)
    if row.status == _RUNNING:
        return row, None
    if not row.settled:
        return replace(row, next_run_time=now), None
    entry = passed_over(row, now, dialect)
    if entry is None or entry.detail != PAUSED:
        return replace(row, next_run_time=row.next_time + row.rule.delay), None
    last = row.next_time if entry.last is None else entry.last
    time = cron.next_time(row.rule.cron, last, row.rule.timezone, dialect)
    return replace(row, next_time=time, next_run_time=time + row.rule.delay, previous=last), entry


def run_now(row: ScheduleRow, now: float) -> ScheduleRow:
    """Return `row` due at `now`: for its occurrence when that has come, else for an extra one, whose time is now.

    Raises ScheduleError while a run is in progress.
    """
    if row.status == _RUNNING:
        raise ScheduleError(f"{row.key!r}: a run is in progress; wait for its end")
    time = min(row.next_time, int(now // 1))
    return replace(row, next_time=time, next_run_time=now, extra=time)
