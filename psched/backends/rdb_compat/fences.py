"""What a lease in the originals' table is known by, and how settling it may end. Used in children and clients."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import RowMapping

from psched.backends.sql.fields import Fields
from psched.errors import IdempotentNotFoundError, OutcomeUnknownError, PreemptedError, ScheduleError
from psched.model import Lease

_SHIFT = 2**40


class Fence(NamedTuple):
    """What the row must hold for a write under a lease; packed into the integer of `Lease.fence`."""

    occurrence: int
    timeout: int

    @classmethod
    def of(cls, lease: Lease) -> Fence:
        """Return the fence of a lease."""
        return cls(*divmod(lease.fence, _SHIFT))

    @classmethod
    def in_row(cls, row: RowMapping) -> Fence:
        """Return what a row holds; 0 for what is no integer."""
        fields = Fields(row)
        return cls(fields.number("occurrence"), fields.number("timeout"))

    def holds(self, row: RowMapping) -> bool:
        """Tell whether the row is under this fence."""
        return self == Fence.in_row(row)

    def lasts(self, row: RowMapping) -> bool:
        """Tell whether the lease has not ended by the clock in `row`: till then nobody but its holder writes that."""
        return bool(row["now"] < self.timeout)

    def until(self, timeout: int) -> Fence:
        """Return the fence of the same occurrence with another timeout."""
        return Fence(self.occurrence, timeout)

    @property
    def packed(self) -> int:
        """One integer for both."""
        return self.occurrence * _SHIFT + self.timeout

    def lease(self, key: str, cancel_requested: bool) -> Lease:
        """Return the lease on `key` with this fence."""
        return Lease(key, self.packed, float(self.timeout), cancel_requested)


class Settled(NamedTuple):
    """How a settling ended: it was done, or this is the row as it is instead.

    `uncertain`: an attempt of the call had no answer.
    """

    done: bool
    row: RowMapping | None
    uncertain: bool


def rounded_up(wait: float) -> int:
    """Return the milliseconds of a wait in seconds, with which whole seconds are rounded up."""
    return math.ceil(wait * 1000) + (999 if wait > 0 else 0)


def refusal(lease: Lease, row: RowMapping | None, uncertain: bool) -> ScheduleError:
    """Return why the run of `lease` cannot be settled, `row` being what is there instead.

    `uncertain`: an attempt, of this call or of one before, had no answer, and the row does not show what it did.
    """
    if row is None:
        return IdempotentNotFoundError(f"{lease.key!r}: the row is gone")
    if uncertain:
        return OutcomeUnknownError(
            f"{lease.key!r}: the connection was lost while this run was being settled, and another worker has "
            "acquired the row since; whether it was settled cannot be found out"
        )
    return PreemptedError(f"{lease.key!r}: the lease of this run is lost; another worker has acquired the row since")


def shows(row: RowMapping, outcome: Mapping[str, Any] | None) -> bool:
    """Tell whether a row holds what a settled run has left there."""
    return outcome is not None and all(row[name] == value for name, value in outcome.items())
