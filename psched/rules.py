"""Rules of schedules: which values can be used, and which occurrence comes next. Pure; children and clients."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TypedDict

from psched import cron
from psched.ledger import PAUSED, SKIPPED, Entry
from psched.model import CATCH_UP, Policy, Rule, ScheduleRow
from psched.payload import MAX_KEY_LENGTH, check_key

ENQUEUED = re.compile(r"^enqueue(\.|\Z)")
"""The types of schedules that submit tasks (`psched.handlers.enqueue`)."""

NEVER = 253_370_764_800.0
"""When a paused schedule is due: the year 9999."""
SUPERSEDED = "superseded"
"""The reason of occurrences that gave way to a later one that is due."""
TOO_LATE = "late"
"""The reason of occurrences that could only begin later than they may."""

SOON_ENOUGH = 60.0
"""How late an occurrence may begin that is not to be caught up, in seconds, unless `max_lateness` says otherwise."""
_COUNTED = 1000
"""Occurrences passed over together that are counted: a year of seconds is not."""


class Terms(TypedDict, total=False):
    """What a policy may say; see `Policy`. None is no bound."""

    catch_up: str
    max_lateness: float | None
    alert_after: float | None
    max_attempts: int | None


def passed_over(row: ScheduleRow, now: float, dialect: str) -> Entry | None:
    """Return what of a schedule that is due at `now` (unix seconds) is not to be run, None when its occurrence is.

    The entry begins with `row.next_time` and stands for all occurrences up to its `last` one. What `run_now` asked for
    is run whatever the policy says, and what was begun in time is tried again however late.
    """
    if row.is_extra or row.is_asked_for:
        return None
    time = row.next_time + row.rule.delay
    for begin, end in row.ended_pauses:
        if begin <= time < end:
            return _until(row, end, PAUSED, dialect)
    policy = row.policy
    if policy.catch_up != "all":
        latest = _last(row, now, dialect)
        if latest is not None:
            return _until(row, latest + row.rule.delay, SUPERSEDED, dialect)
    bound = policy.max_lateness
    if bound is None and policy.catch_up == "none":
        bound = SOON_ENOUGH
    if bound is not None and row.attempts <= 1 and time < now - bound:
        return _until(row, now - bound, TOO_LATE, dialect)
    return None


def _last(row: ScheduleRow, at: float, dialect: str) -> int | None:
    """Return the last occurrence after the row's that is to run up to `at`, or None."""
    rule = row.rule
    return cron.last_time(rule.cron, row.next_time, int((at - rule.delay) // 1), rule.timezone, dialect)


def _until(row: ScheduleRow, end: float, reason: str, dialect: str) -> Entry:
    """Return the entry of the row's occurrence and those after it that are to run before `end`."""
    rule, time, count = row.rule, row.next_time, 1
    before = int(-(-(end - rule.delay) // 1)) - 1
    last = cron.last_time(rule.cron, time, before, rule.timezone, dialect)
    if last is None:
        return Entry(SKIPPED, reason)
    while time < last and count < _COUNTED:
        time, count = cron.next_time(rule.cron, time, rule.timezone, dialect), count + 1
    return Entry(SKIPPED, reason, last=last, count=count if time == last else None)


def checked_policy(policy: Policy, terms: Terms) -> Policy:
    """Return `policy` with `terms` laid over. Raises ValueError for what cannot be used."""
    wanted = replace(policy, **terms)
    if wanted.catch_up not in CATCH_UP:
        raise ValueError(f"catch_up must be {' or '.join(CATCH_UP)}, got {wanted.catch_up!r}")
    most: object = wanted.max_attempts
    if most is not None and (isinstance(most, bool) or not isinstance(most, int) or not 1 <= most < 2**31):
        raise ValueError(f"max_attempts must be a whole number from 1 on, or None, got {most!r}")
    for name in ("max_lateness", "alert_after"):
        value = getattr(wanted, name)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
            raise ValueError(f"{name} must be a number of seconds of at most 31 years, or None, got {value!r}")
    return wanted


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


def regular_of(row: ScheduleRow) -> ScheduleRow:
    """Return `row` with its next regular occurrence, which waits until an extra run, if there is one, is settled."""
    if row.regular_time is None:
        return row
    due = row.regular_time + row.rule.delay if row.regular_run_time is None else row.regular_run_time
    return replace(
        row,
        status="waiting",
        attempts=0,
        last_error=None,
        settled=True,
        next_time=row.regular_time,
        next_run_time=due,
        regular_time=None,
        regular_run_time=None,
    )


def with_regular(row: ScheduleRow, regular: ScheduleRow) -> ScheduleRow:
    """Return `row`, which is an extra run, with the next occurrence of `regular` to come after it."""
    return replace(row, regular_time=regular.next_time, regular_run_time=regular.next_run_time)


def first_match(rule: Rule, at: int, dialect: str) -> int:
    """Return the first occurrence of `rule` at or after `at`, in unix seconds."""
    return cron.first_time(rule.cron, at, rule.timezone, dialect)


def checked_rule(rule: Rule, dialect: str) -> Rule:
    """Return `rule`, or raise ConfigError for its cron or time zone, ValueError for its delay."""
    cron.validate(rule.cron, rule.timezone, dialect)
    check_delay(rule.delay)
    return rule


def check_enqueued_key(key: str, type: str) -> None:
    """Raise ValueError for a schedule that submits tasks when its key leaves no room for their keys, `<key>@<time>`."""
    longest = MAX_KEY_LENGTH - len(f"@{int(NEVER)}")
    if ENQUEUED.match(type) and len(key) > longest:
        raise ValueError(
            f"key has {len(key)} characters, but a schedule of the type {type[:40]!r} submits tasks whose keys are the "
            f"schedule's followed by @ and the time; at most {longest} leave room for that"
        )


def check_time(name: str, time: object) -> None:
    """Raise ValueError unless `time` is unix seconds that a calendar can show."""
    if isinstance(time, bool) or not isinstance(time, int | float) or not abs(time) < 253_402_300_800:
        raise ValueError(f"{name} must be unix seconds of a year up to 9999, got {time!r:.40}")


def check_delay(delay: object) -> None:
    """Raise ValueError unless `delay` is a number of seconds of at most some 300 years."""
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not abs(delay) < 1e10:
        raise ValueError(f"delay must be a number of seconds of at most 300 years, got {delay!r:.40}")


def checked_type(type: object) -> str:
    """Return `type`, or raise ValueError: it must be non-empty text of at most 255 characters."""
    try:
        return check_key(type)
    except ValueError as error:
        raise ValueError(f"type is not usable: {str(error).replace('key', 'it', 1)}") from error
