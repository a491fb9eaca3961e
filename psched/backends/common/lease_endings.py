"""How the last leases of a row have ended, as the row itself keeps it.

The statement that ends a lease puts the text `<fence>:<number of the acquire>:<outcome>;` before those of the leases
that ended earlier. What is too long is cut off.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from psched.errors import (
    AlreadyFinishedError,
    IdempotentAlreadyFinishedError,
    IdempotentNotFoundError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
)
from psched.model import Lease

MOST_CHARACTERS = 160
"""Of the leases that are kept: the last four, as a rule."""

RELEASED = "released"
RETRIED = "retried"
FINISHED = "finished"
"""Outcomes; a task may also be `failed` or `cancelled`."""

_ENDED = re.compile(r"(-?\d+):(-?\d+):(\w+);")


class LostRow(NamedTuple):
    """What became of a row that is not under a lease any more.

    `endings`: how its last leases ended. `nonce`: the number of the call that created it. `owner`: words about its
    present holder.
    """

    endings: str
    nonce: object
    owner: str


def outcome_of(lease: Lease, endings: str) -> str | None:
    """Return how `lease` was ended by its holder; None when `endings` does not tell."""
    found = (outcome for fence, claim, outcome in _parsed(endings) if (fence, claim) == (lease.fence, lease.claim))
    return next(found, None)


def refusal(lease: Lease, row: LostRow | None, outcome: str | None, uncertain: bool) -> ScheduleError | None:
    """Return why a write that was to end `lease` with `outcome` was not done; None when it had been done before.

    `row`: as it is now; None when it is gone. `outcome` is None for a write that ends no lease. `uncertain`: an
    attempt of this very call had no answer.
    """
    key = lease.key
    if row is None:
        return IdempotentNotFoundError(f"{key!r}: the row is gone")
    before = outcome_of(lease, row.endings)
    if before is not None and before == outcome:
        return None if uncertain else IdempotentAlreadyFinishedError(f"{key!r}: this run was {before} before")
    if before is not None:
        return AlreadyFinishedError(f"{key!r}: this run was {before} before; nothing was changed")
    doubtful = uncertain or lease.unanswered
    if doubtful and (outcome is None or not _was_never_ended(lease, row)):
        return OutcomeUnknownError(
            f"{key!r}: the connection was lost while this run was being settled, and whether that was done cannot be "
            f"found out any more; {row.owner}"
        )
    return PreemptedError(f"{key!r}: the lease of this run is lost; {row.owner}")


def finished_before(lease: Lease) -> ScheduleError:
    """Return what is raised when `lease` was ended as it is to be ended now."""
    return IdempotentAlreadyFinishedError(f"{lease.key!r}: this run was {FINISHED} before")


def _was_never_ended(lease: Lease, row: LostRow) -> bool:
    """Return whether the row would say so if the holder of `lease` had ended it."""
    if row.nonce != lease.nonce:  # another row, created since
        return False
    fences = [fence for fence, _, _ in _parsed(row.endings)]
    return len(row.endings) < MOST_CHARACTERS or any(fence < lease.fence for fence in fences)


def _parsed(endings: str) -> Iterator[tuple[int, int, str]]:
    for fence, claim, outcome in _ENDED.findall(endings):
        yield int(fence), int(claim), outcome
