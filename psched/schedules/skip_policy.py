"""Which occurrences of a schedule are skipped: because of pauses, `overlap`, `catch_up` or `max_lateness`.

Pure functions. The audit checks recorded skips by the same rules.
"""

from __future__ import annotations

import math
from typing import TypeGuard

from psched.cron import CronDialect
from psched.model import Policy, ScheduleRow
from psched.schedules import rule_occurrences
from psched.store.ledger import PAUSED, SKIPPED, Entry

SUPERSEDED = "superseded"
"""The reason for skipping occurrences if a later occurrence is due, too."""
TOO_LATE = "late"
"""The reason for skipping occurrences that would begin too late."""
OVERLAPPING = "overlap"
"""The reason for skipping occurrences that were due before the previous run was settled."""
_SOON_ENOUGH = 60.0
"""How many seconds an occurrence may begin late with `catch_up: none` and without `max_lateness`."""
_COUNTED = 1000
"""The maximum number of skipped occurrences that are counted for one ledger entry. A larger number is recorded as
unknown."""


def skip_entry(row: ScheduleRow, now: float, dialect: CronDialect) -> Entry | None:
    """Return the entry of the occurrences to skip at `now`; None if the next occurrence should run.

    The entry covers the occurrences from `row.next_time` to the `last` of the entry. A run that `run_now` requested is
    never skipped. A retry is never skipped as too late.
    """
    if row.is_extra or row.is_asked_for:
        return None
    policy = row.policy
    has_pauses = row.paused_from is not None or row.earlier_pauses
    if not has_pauses and row.previous_ended is None and policy.catch_up == "all" and policy.max_lateness is None:
        return None
    delay = row.delay
    time = row.next_time + delay
    for begin, end in row.ended_pauses:
        if begin <= time < end:
            return _until(row, end, PAUSED, dialect)
    if policy.overlap == "skip" and came_due_during(row.previous_ended, time):
        return _entry(row, math.floor(row.previous_ended - delay), OVERLAPPING, dialect)
    if policy.catch_up != "all":
        latest = rule_occurrences.last_time(row.rule, row.next_time, math.floor(now - delay), dialect)
        if latest is not None:
            return _until(row, latest + delay, SUPERSEDED, dialect)
    bound = lateness_bound(policy)
    if bound is not None and row.attempts <= 1 and time < now - bound:
        return _until(row, now - bound, TOO_LATE, dialect)
    return None


def lateness_bound(policy: Policy) -> float | None:
    """Return how many seconds an occurrence may begin late; None for no limit."""
    return _SOON_ENOUGH if policy.max_lateness is None and policy.catch_up == "none" else policy.max_lateness


def came_due_during(ended: float | None, run_time: float) -> TypeGuard[float]:
    """Return whether an occurrence that was due at `run_time` was due before the previous run was settled.

    `ended`: when the previous run was settled; None if unknown.
    """
    return ended is not None and run_time <= ended


def overlap_note(policy: Policy) -> str | None:
    """Return the effect of `overlap` on an occurrence, as the end of a sentence; None without an effect."""
    return "skipped if it comes due during the previous run" if policy.overlap == "skip" else None


def _until(row: ScheduleRow, end: float, reason: str, dialect: CronDialect) -> Entry:
    """Return the entry for the row's occurrence and the later ones whose run time is before `end`."""
    return _entry(row, math.ceil(end - row.delay) - 1, reason, dialect)


def _entry(row: ScheduleRow, until: int, reason: str, dialect: CronDialect) -> Entry:
    """Return the entry for the row's occurrence and the later ones up to `until`."""
    rule, time, count = row.rule, row.next_time, 1
    last = rule_occurrences.last_time(rule, time, until, dialect)
    if last is None:
        return Entry(SKIPPED, reason)
    while time < last and count < _COUNTED:
        time, count = rule_occurrences.next_time(rule, time, dialect), count + 1
    return Entry(SKIPPED, reason, last=last, count=count if time == last else None)
