"""Doing for many what a store does for one, where it cannot be done together. Used in children and clients."""

from __future__ import annotations

from psched.errors import IdempotentAlreadyFinishedError, ScheduleError
from psched.ledger import Step
from psched.model import ScheduleRow
from psched.store import ScheduleStore


def advanced(
    store: ScheduleStore, step: Step, until: float, uncertain: bool = False
) -> ScheduleRow | ScheduleError | None:
    """Advance one schedule and return what comes of it, or why it cannot be. Raises what the driver does.

    `uncertain`: it may have been advanced by an attempt whose answer was lost.
    """
    lease = step.claim.lease
    claim = step.claim._replace(lease=lease._replace(unanswered=lease.unanswered or uncertain))
    try:
        return store.advance(claim, step.next_time, step.next_run_time, until, entry=step.entry)
    except ScheduleError as error:
        return None if uncertain and isinstance(error, IdempotentAlreadyFinishedError) else error
