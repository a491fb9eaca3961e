"""What pausing, resuming and running now make of a schedule's row. Pure; used in clients and children."""

from __future__ import annotations

from dataclasses import replace

from psched import cron
from psched.errors import ScheduleError
from psched.ledger import PAUSED, Entry
from psched.model import ScheduleRow
from psched.rules import NEVER, passed_over, regular_of, with_regular

_RUNNING = "running"


def paused(row: ScheduleRow, now: float) -> ScheduleRow:
    """Return `row` paused from `now` on (unix seconds). While it runs, the pause is seen when that has ended."""
    if row.paused:
        return row
    begin, regular = now, regular_of(row)
    if row.paused_from is not None and row.paused_until is not None:
        before_its_end = regular.next_time + row.rule.delay < row.paused_until
        begin = row.paused_from if before_its_end else now  # what came in the last pause is still to be skipped
    due = row.next_run_time if row.status == _RUNNING else NEVER
    row = replace(row, paused_from=begin, paused_until=None, extra=None, next_run_time=due)
    return with_regular(row, replace(regular, next_run_time=NEVER)) if row.is_extra else row


def resumed(row: ScheduleRow, now: float, dialect: str) -> tuple[ScheduleRow, Entry | None]:
    """Return `row` with its pause ended at `now`, and what was skipped by it.

    What was due before the pause is due now; what came in the pause after that is skipped when its turn comes.
    """
    if not row.paused:
        return row, None
    row = replace(row, paused_until=now)
    if row.is_extra:
        regular = regular_of(row)
        row = with_regular(row, replace(regular, next_run_time=regular.next_time + row.rule.delay))
    if row.status == _RUNNING:
        return row, None
    if row.is_extra or not row.settled:
        return replace(row, next_run_time=now), None
    entry = passed_over(row, now, dialect)
    if entry is None or entry.detail != PAUSED:
        return replace(row, next_run_time=row.next_time + row.rule.delay), None
    last = row.next_time if entry.last is None else entry.last
    time = cron.next_time(row.rule.cron, last, row.rule.timezone, dialect)
    return replace(row, next_time=time, next_run_time=time + row.rule.delay, previous=last), entry


def run_now(row: ScheduleRow, now: float) -> ScheduleRow:
    """Return `row` due at `now`: for its occurrence when that has come, else for an extra one, whose time is now.

    Of an extra run the regular occurrence is kept, and comes after it. Raises ScheduleError while a run is in progress.
    """
    if row.status == _RUNNING:
        raise ScheduleError(f"{row.key!r}: a run is in progress; wait for its end")
    if row.is_extra or _has_come(row, now):
        return replace(row, next_run_time=now, extra=row.next_time)
    time = int(now // 1)
    return replace(with_regular(row, row), next_time=time, next_run_time=now, extra=time)


def _has_come(row: ScheduleRow, now: float) -> bool:
    """Tell whether the time of its occurrence has come, be it before or after the delay, or it was begun already."""
    return not row.settled or min(row.next_time, row.next_time + row.rule.delay, row.next_run_time) <= now
