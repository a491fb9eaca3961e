"""How a new rule or definition changes the next times of a schedule's row. Pure functions; times are unix seconds."""

from __future__ import annotations

from psched.cron import CronDialect
from psched.model import NEVER, NO_OCCURRENCE, Rule, ScheduleRow
from psched.quick_replace import quick_replace
from psched.schedules import rule_occurrences
from psched.schedules.pause_and_run_now import with_regular


def moved(row: ScheduleRow, old: Rule, now: float, dialect: CronDialect) -> ScheduleRow:
    """Compute the next times of `row` at `now`, after a new rule has replaced the rule `old`. Return the row.

    The first of these cases that applies decides about the next occurrence:

    - The schedule has run as often as the new rule allows: it has ended.
    - The occurrence is due: it stays as it is.
    - The time of the occurrence has come, or both rules have the same occurrences: it keeps its time, and gets the new
      delay.
    - Otherwise the first match of the new rule replaces the occurrence.
    """
    if row.has_run_enough:
        return quick_replace(row, next_time=NO_OCCURRENCE, next_run_time=NO_OCCURRENCE)
    if row.next_run_time <= now:
        return row
    same_times = rule_occurrences.plain(row.rule) == rule_occurrences.plain(old) and not row.ended
    if same_times or row.next_time <= now:
        return quick_replace(row, next_run_time=row.run_time(row.next_time))
    time = rule_occurrences.first_time(row.rule, now, dialect)
    return quick_replace(row, next_time=time, next_run_time=row.run_time(time))


def with_rule(seen: ScheduleRow, row: ScheduleRow, now: float, dialect: CronDialect) -> ScheduleRow:
    """Return `row` with times computed from its rule. `seen`: the row before the change.

    Return `row` unchanged if `seen` has the same rule, or if the run of `seen` is not settled.
    """
    if row.rule == seen.rule or not seen.settled:
        return row
    timed = moved(row, seen.rule, now, dialect)
    return quick_replace(timed, next_run_time=seen.next_run_time) if seen.paused else timed


def redefined(seen: ScheduleRow, now: float, wanted: ScheduleRow, dialect: CronDialect) -> ScheduleRow:
    """Return `seen` with the type, data, rule and policy of `wanted`, and with times computed from these."""
    row = quick_replace(
        seen,
        type=wanted.type,
        data=wanted.data,
        rule=wanted.rule,
        policy=wanted.policy,
        runs=None if wanted.rule.max_runs is None else seen.runs,
        failures=None if wanted.policy.pause_after is None else seen.failures,
    )
    timed = with_rule(seen.regular(), row.regular(), now, dialect)
    return with_regular(row, timed) if seen.is_extra else timed


def with_calendars(row: ScheduleRow, rule: Rule, now: float, dialect: CronDialect) -> ScheduleRow:
    """Return `row` with `rule`, which has other calendars, and with the next occurrence of this rule.

    An occurrence stays if its time has come, or if it is leased or retried. If `modify` had set a later next
    occurrence, the result is the first match from that time on.
    """
    changed = quick_replace(row, rule=rule)
    if not row.settled or row.has_run_enough or min(row.next_time, row.next_run_time) <= now:
        return changed
    is_natural = row.next_time == rule_occurrences.first_time(row.rule, now, dialect)
    time = rule_occurrences.first_time(rule, now if is_natural else row.next_time, dialect)
    if time == row.next_time:
        return changed
    return quick_replace(changed, next_time=time, next_run_time=NEVER if row.paused else changed.run_time(time))
