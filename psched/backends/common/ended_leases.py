"""How the last leases of a row ended. The row itself stores this history.

The statement that ends a lease puts `<fence>:<number of the acquire>:<outcome>;` before the history, and cuts the
history off at `MOST_CHARACTERS`.
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
"""The maximum number of characters of a row's history: enough for about four leases."""

RELEASED = "released"
RETRIED = "retried"
FINISHED = "finished"
"""The outcome of a lease whose run is done. A task's lease can also end as `failed` or `cancelled`."""

_ENDED = re.compile(r"(-?\d+):(-?\d+):(\w+);")


class LostRow(NamedTuple):
    """The current state of a row whose lease is lost.

    `endings`: how the last leases of the row ended. `nonce`: the number of the call that created the row. `owner`: text
    that describes the current holder.
    """

    endings: str
    nonce: object
    owner: str


def refusal(lease: Lease, row: LostRow | None, outcome: str | None, uncertain: bool) -> ScheduleError | None:
    """Return the error for a write that changed no row, or None if an earlier attempt of the call succeeded.

    `outcome`: how the write was to end `lease`; None: the lease stays. `row`: the current row; None: the row is gone.
    `uncertain`: whether the answer to an earlier attempt was lost.
    """
    key = lease.key
    if row is None:
        return IdempotentNotFoundError(f"{key!r}: the row is gone")
    ended = (outcome for fence, claim, outcome in _parsed(row.endings) if (fence, claim) == (lease.fence, lease.claim))
    before = next(ended, None)
    if before is not None and before == outcome:
        return None if uncertain else IdempotentAlreadyFinishedError(f"{key!r}: this run was already {before}")
    if before is not None:
        return AlreadyFinishedError(f"{key!r}: this run was already {before}; nothing was changed")
    doubtful = uncertain or lease.unanswered
    if doubtful and (outcome is None or not _was_never_ended(lease, row)):
        return OutcomeUnknownError(
            f"{key!r}: the connection was lost while this run was being settled, and the row no longer shows whether "
            f"the run was settled; {row.owner}"
        )
    return PreemptedError(f"{key!r}: the lease of this run is lost; {row.owner}")


def finished_before(lease: Lease) -> ScheduleError:
    """Return the error for a lease that an earlier call has already finished."""
    return IdempotentAlreadyFinishedError(f"{lease.key!r}: this run was already {FINISHED}")


def _was_never_ended(lease: Lease, row: LostRow) -> bool:
    """Return whether the row proves that the holder of `lease` never ended this lease."""
    if row.nonce != lease.nonce:  # another row, created later with the same key
        return False
    fences = [fence for fence, _, _ in _parsed(row.endings)]
    return len(row.endings) < MOST_CHARACTERS or any(fence < lease.fence for fence in fences)


def _parsed(endings: str) -> Iterator[tuple[int, int, str]]:
    for fence, claim, outcome in _ENDED.findall(endings):
        yield int(fence), int(claim), outcome
