"""What a schedule's row says about its next run: waiting, running, failing, overdue, and how late. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from psched.backoff import Backoff
from psched.model import ScheduleRow

BROKEN = "broken"
PAUSED = "paused"
RUNNING = "running"
LEASED = "leased"
FAILING = "failing"
RETRYING = "retrying"
OVERDUE = "overdue"
DUE = "due"
WAITING = "waiting"

_SOON = 60.0
"""Seconds that an occurrence may be late before it is overdue, at the least."""


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """`word` is one of those above; `lateness` how many seconds after its time the occurrence is not finished.

    `broken`: the row cannot be run. `failing`: an attempt has failed and the next one is to come; `retrying`: the same,
    but no error is known. `leased`: it is running or waits for a retry (`rdb_compat`, whose table does not tell which).
    `overdue` as a word: no worker has begun it for longer than `overdue_after`; `due`: for less long. `is_overdue`: it
    is so late and has failed, or no worker holds it.
    """

    word: str
    lateness: float
    is_overdue: bool


def overdue_after(retry_wait: float | Backoff) -> float:
    """Return how many seconds late an occurrence is overdue: time for two attempts, and at least a minute."""
    return max(_SOON, 2 * Backoff.of(retry_wait).limit)


def failed_attempts(row: ScheduleRow) -> int:
    """Return how many attempts of the row's occurrence have failed, or were lost with their worker."""
    return row.attempts - (row.status == RUNNING)


def state_of(row: ScheduleRow, now: float, bound: float) -> ScheduleState:
    """Return the state of a row at `now`; it is overdue when it is more than `bound` seconds late."""
    is_held = row.status in (RUNNING, LEASED) and row.next_run_time > now
    failed = failed_attempts(row)
    if row.paused and not is_held:
        return ScheduleState(PAUSED, 0.0, False)
    time = row.next_time + (0 if row.is_extra else row.rule.delay)
    if row.status == WAITING and not row.attempts:
        time = max(time, row.next_run_time)  # its first run may be later
    lateness = max(0.0, now - time)
    is_overdue = lateness > bound and (failed > 0 or not is_held)
    if row.problem is not None:
        word = BROKEN
    elif is_held:
        word = row.status
    elif failed > 0 or row.status == RUNNING:
        word = RETRYING if row.last_error is None else FAILING
    elif is_overdue:
        word = OVERDUE
    else:
        word = DUE if row.next_run_time <= now else WAITING
    return ScheduleState(word, lateness, is_overdue)
