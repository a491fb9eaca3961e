"""Rules of schedules: which values can be used, and which occurrence a change leads to. Pure; children and clients."""

from __future__ import annotations

from dataclasses import replace

from psched import cron
from psched.model import Rule, ScheduleRow
from psched.payload import check_key


def moved(row: ScheduleRow, old: Rule, now: float, dialect: str) -> ScheduleRow:
    """Return `row`, which has a new rule, with the next occurrence that rule gives at `now` (unix seconds).

    An occurrence that is due stays as it is; one that has come but waits for its delay is kept and waits by the new
    delay; one still to come gives way to the first match of the new rule.
    """
    if row.next_run_time <= now:
        return row
    same_times = (row.rule.cron, row.rule.timezone) == (old.cron, old.timezone)
    if same_times or row.next_time <= now:
        return replace(row, next_run_time=row.next_time + row.rule.delay)
    time = first_match(row.rule, int(-(-now // 1)), dialect)
    return replace(row, next_time=time, next_run_time=time + row.rule.delay)


def first_match(rule: Rule, at: int, dialect: str) -> int:
    """Return the first occurrence of `rule` at or after `at`, in unix seconds."""
    return cron.first_time(rule.cron, at, rule.timezone, dialect)


def checked_rule(rule: Rule, dialect: str) -> Rule:
    """Return `rule`, or raise ConfigError for its cron or time zone, ValueError for its delay."""
    cron.validate(rule.cron, rule.timezone, dialect)
    check_delay(rule.delay)
    return rule


def check_delay(delay: object) -> None:
    """Raise ValueError unless `delay` is a number of seconds of at most some 300 years."""
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not abs(delay) < 1e10:
        raise ValueError(f"delay must be a number of seconds, got {delay!r}")


def checked_type(type: object) -> str:
    """Return `type`, or raise ValueError: it must be non-empty text of at most 255 characters."""
    try:
        return check_key(type)
    except ValueError as error:
        raise ValueError(f"type is not usable: {str(error).replace('key', 'it', 1)}") from error
