"""What a store promises of runs that have failed for good: each is kept until `on_failure` was told of it.

Used in children and clients. A run has failed for good when its last attempt that is allowed has failed: a queue task,
or an occurrence of a schedule.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Failure:
    """A run that has failed for good. Times are unix seconds on the database's clock.

    `scheduled_time` is the occurrence, of a queue task when it was to run first; `fence` tells two failures of one key
    apart. `error` is what the last attempt said, `failed_at` when that was recorded, by `node`.
    """

    key: str
    type: str
    scheduled_time: int
    fence: int
    attempts: int
    error: str | None
    node: str
    failed_at: float


class Failures(Protocol):
    """The failures of one table that are still to be told. Methods may be called from any thread."""

    def claim(self, seconds: float) -> Failure | None:
        """Return a failure that no other caller gets for so many seconds; None when there is none to be told now."""
        ...

    def told(self, failure: Failure) -> None:
        """Forget a failure: somebody was told of it. Harmless when done twice."""
        ...
