"""The state of a schedule as a word for lists, such as "overdue"; and how late its occurrence is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from psched.model import ScheduleRow
from psched.retry_wait import Backoff

StateWord = Literal[
    "broken", "paused", "running", "leased", "failing", "retrying", "overdue", "due", "waiting", "ended"
]
BROKEN: Final = "broken"
PAUSED: Final = "paused"
RUNNING: Final = "running"
LEASED: Final = "leased"
FAILING: Final = "failing"
RETRYING: Final = "retrying"
OVERDUE: Final = "overdue"
DUE: Final = "due"
WAITING: Final = "waiting"
ENDED: Final = "ended"


@dataclass(frozen=True, slots=True)
class ScheduleState:
    """The state of a schedule as a `word`.

    - `broken`: the row cannot be run.
    - `failing`: an attempt has failed and is retried.
    - `retrying`: like `failing`, but no error is known.
    - `leased`: running or waiting for a retry. Only `rdb_compat` uses this word, as its table cannot tell the two
      apart.
    - `due`: no worker has begun the due occurrence.
    - `overdue`: like `due`, but late by more than `overdue_after`.
    - `ended`: the rule has no further occurrence.

    `lateness`: seconds since the time of the unfinished occurrence. `is_overdue`: whether the lateness is more than
    `overdue_after` and the occurrence has failed or is not leased.
    """

    word: StateWord
    lateness: float
    is_overdue: bool


def overdue_after(retry_wait: float | Backoff) -> float:
    """Return the number of seconds after which a late occurrence is overdue.

    This is twice the longest `retry_wait`, and at least a minute.
    """
    return max(60.0, 2 * Backoff.of(retry_wait).limit)


def failed_attempts(row: ScheduleRow) -> int:
    """Return how many attempts failed, or ended with the death of their worker."""
    return row.attempts - (row.status == RUNNING)


def state_of(row: ScheduleRow, now: float, bound: float) -> ScheduleState:
    """Return the state of a row at `now` (unix seconds). `bound`: the result of `overdue_after`."""
    is_held = row.status in (RUNNING, LEASED) and row.next_run_time > now
    failed = failed_attempts(row)
    if row.paused and not is_held:
        return ScheduleState(PAUSED, 0.0, False)
    time = row.next_time + (0 if row.is_extra else row.delay)
    if row.status == WAITING and not row.attempts:
        time = max(time, row.next_run_time)  # the first run may be due later
    lateness = 0.0 if row.is_backfill else max(0.0, now - time)  # the occurrences of a backfill are always old
    is_overdue = lateness > bound and (failed > 0 or not is_held)
    word: StateWord
    if row.problem is not None:
        word = BROKEN
    elif is_held:
        word = row.status
    elif failed > 0 or row.status == RUNNING:
        word = RETRYING if row.last_error is None else FAILING
    elif is_overdue:
        word = OVERDUE
    else:
        word = DUE if row.next_run_time <= now else ENDED if row.ended else WAITING
    return ScheduleState(word, lateness, is_overdue)
