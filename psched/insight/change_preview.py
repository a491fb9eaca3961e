"""What a change of a schedule would do: the definition before and after, and the runs that come and go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from psched.cron import CronDialect
from psched.errors import ConfigError
from psched.model import NEVER, ScheduleRow
from psched.schedules import rule_occurrences

SPAN = 7 * 86400
"""Seconds from now in which runs are compared."""
_MOST = 5000
"""Runs of either definition that are compared."""


@dataclass(frozen=True, slots=True)
class ChangePreview:
    """A change that was not made. `before`, `after`: the row. All times are unix seconds.

    `gained`, `lost`: when runs would begin that would not begin without the change, and the other way round, from now
    to `until`: that is in 7 days, or earlier if either definition has more than 5,000 runs in them. `kept`: the number
    of runs that stay. `runs_at_once`: the change would make it due. A paused schedule is treated as if it were resumed.
    """

    before: ScheduleRow
    after: ScheduleRow
    gained: Sequence[float]
    lost: Sequence[float]
    kept: int
    until: float
    runs_at_once: bool


def change_preview(before: ScheduleRow, after: ScheduleRow, now: float, dialect: CronDialect) -> ChangePreview:
    """Compare the runs of both rows."""
    old, new = (list(islice(_runs(row, now, now + SPAN, dialect), _MOST + 1)) for row in (before, after))
    until = min([now + SPAN, *(times[_MOST - 1] for times in (old, new) if len(times) > _MOST)])
    old_times, new_times = ({time for time in times if time <= until} for times in (old, new))
    return ChangePreview(
        before,
        after,
        sorted(new_times - old_times),
        sorted(old_times - new_times),
        len(new_times & old_times),
        until,
        after.settled and before.next_run_time > now >= after.next_run_time,
    )


def _runs(row: ScheduleRow, now: float, until: float, dialect: CronDialect) -> Iterator[float]:
    """Yield when the regular runs up to `until` begin; runs that are due already begin now.

    A run in progress, or one that waits for its retry, is left out: it stays as it is.
    """
    regular = row.regular()
    most = None if row.rule.max_runs is None else row.rule.max_runs - (row.runs or 0)
    times = _from_next_on(regular, dialect)
    for number, time in enumerate(times):
        due = row.run_time(time)
        if number == 0 and not regular.paused and regular.settled:
            due = regular.next_run_time
        if due > until or time >= NEVER or (most is not None and number >= most):
            return
        if number or regular.settled:
            yield max(due, now)


def _from_next_on(row: ScheduleRow, dialect: CronDialect) -> Iterator[int]:
    """Yield the next occurrence of a row, which need not be one of its rule, and those of its rule after it."""
    time = row.next_time
    while time < NEVER:
        yield time
        try:
            time = rule_occurrences.next_time(row.rule, time, dialect)
        except ConfigError:  # the rule was usable when it was written
            return
