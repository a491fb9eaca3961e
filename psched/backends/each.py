"""Doing for many what a store does for one, where they cannot be done together. Used in children and clients."""

from __future__ import annotations

from collections.abc import Sequence

from psched.errors import AlreadyFinishedError, ScheduleError
from psched.ledger import Step
from psched.model import Retry, Rule
from psched.store import LeaseStore, ScheduleStore


def advanced(store: ScheduleStore, step: Step, until: float, uncertain: bool = False) -> Rule | ScheduleError | None:
    """Advance one schedule and return what comes of it, or why it cannot be. Raises what the driver does.

    `uncertain`: it may have been advanced by an attempt whose answer was lost.
    """
    try:
        return store.advance(step.claim, step.next_time, step.next_run_time, until, entry=step.entry)
    except ScheduleError as error:
        return None if uncertain and isinstance(error, AlreadyFinishedError) else error


def retried(store: LeaseStore, retries: Sequence[Retry], until: float) -> list[ScheduleError | None]:
    """Retry one row after the other, and return for each None, or why it cannot be. Raises what the driver does."""
    found: list[ScheduleError | None] = []
    for lease, wait, error in retries:
        try:
            store.retry(lease, wait, error, until)
        except ScheduleError as refusal:
            found.append(refusal)
        else:
            found.append(None)
    return found
