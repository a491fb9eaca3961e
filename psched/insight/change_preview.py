"""Shows the effect of a change of a schedule: the definition before and after, and the runs gained and lost."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from psched.cron import CronDialect
from psched.errors import ConfigError
from psched.model import NEVER, ScheduleRow
from psched.schedules import rule_occurrences

SPAN = 7 * 86400
"""How far ahead runs are compared, in seconds."""
_MOST = 5000
"""The maximum number of runs of each definition that are compared."""


@dataclass(frozen=True, slots=True)
class ChangePreview:
    """The effect that a change of a schedule would have. All times are unix seconds.

    - `before`, `after`: the row before and after the change.
    - `gained`: the times of runs that only the changed schedule has.
    - `lost`: the times of runs that only the unchanged schedule has.
    - `kept`: the number of runs that both have.
    - `until`: runs from now to this time are compared. It is in 7 days, or earlier if `before` or `after` has more than
      5,000 runs.
    - `runs_at_once`: whether the change makes the schedule due.

    A paused schedule is treated as resumed.
    """

    before: ScheduleRow
    after: ScheduleRow
    gained: Sequence[float]
    lost: Sequence[float]
    kept: int
    until: float
    runs_at_once: bool


def change_preview(before: ScheduleRow, after: ScheduleRow, now: float, dialect: CronDialect) -> ChangePreview:
    """Return how the runs of `after` differ from the runs of `before`, from `now` on."""
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
    """Yield the start times of the regular runs up to `until`. A run that is already due starts at `now`.

    A run in progress, or a run that waits for a retry, is left out, because the change does not affect it.
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
    """Yield a row's next occurrence, even if the rule does not contain it, and then the rule's later occurrences."""
    time = row.next_time
    while time < NEVER:
        yield time
        try:
            time = rule_occurrences.next_time(row.rule, time, dialect)
        except ConfigError:  # the rule was valid when it was written
            return
