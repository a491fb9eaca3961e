"""The contract of alert stores: query overdue occurrences and runs that failed for good, and record what was reported.

An occurrence is overdue if it is not finished `alert_after` seconds after it was due, that is, after its time plus the
delay.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from psched.model import ScheduleStatus
from psched.stored_error_summary import error_summary


@dataclass(frozen=True, slots=True)
class Overdue:
    """An occurrence that did not finish in time. Times are unix seconds by the database's clock.

    `seconds`: how long ago the occurrence was due, including the delay. `status`, `attempts`, `node` and `last_error`
    are those of the schedule's row.
    """

    key: str
    type: str
    scheduled_time: int
    seconds: float
    status: ScheduleStatus
    attempts: int
    node: str | None
    last_error: str | None

    def __str__(self) -> str:
        by = f" by {self.node}" if self.node is not None and self.attempts else ""
        what = f"{self.status}{by}, attempt {self.attempts}" if self.attempts else "never begun"
        error = "" if self.last_error is None else f"; the last error: {error_summary(self.last_error)}"
        return (
            f"{self.key!r}: the occurrence of {_date(self.scheduled_time)} is not finished {self.seconds:.0f} s after"
            f" its time ({what}){error}; {self._advice}"
        )

    @property
    def _advice(self) -> str:
        if not self.attempts:
            return f"is a node running that routes the type {self.type!r}? (pschedd status, psched doctor)"
        if self.last_error is None:
            return "is the worker still busy with it? (pschedd status)"
        return f"psched show {self.key!r} shows the whole error"


def _date(seconds: int) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"unix time {seconds}"  # the date is after the year 9999


class OverdueAlerts(Protocol):
    """The overdue alerts of one table of schedules.

    Methods are safe to call from any thread and raise the driver's errors.
    """

    def overdue(self, limit: int) -> list[Overdue]:
        """Return up to `limit` overdue occurrences, whether reported or not.

        The occurrences that have been overdue longest come first.
        """

    def unreported(self, limit: int) -> list[Overdue]:
        """Return up to `limit` overdue occurrences that are neither reported nor claimed."""

    def claim(self, overdue: Overdue, seconds: float) -> bool:
        """Claim for `seconds` the right to report an occurrence. Only one caller at a time gets True."""

    def mark_reported(self, overdue: Overdue) -> None:
        """Record that the occurrence was reported."""


@dataclass(frozen=True, slots=True)
class UnreportedFailure:
    """A run that has failed for good. Times are unix seconds by the database's clock.

    - `scheduled_time`: the occurrence, or the time when a queue task was first due.
    - `fence`: distinguishes failures of the same key.
    - `error`: the error of the last attempt, recorded at `failed_at` by `node`.
    """

    key: str
    type: str
    scheduled_time: int
    fence: int
    attempts: int
    error: str | None
    node: str
    failed_at: float


class UnreportedFailures(Protocol):
    """The failures of one table that still have to be reported. Methods may be called from any thread."""

    def claim(self, seconds: float) -> UnreportedFailure | None:
        """Return a failure to report, or None. For `seconds`, no other caller gets this failure."""

    def mark_reported(self, failure: UnreportedFailure) -> None:
        """Delete a reported failure. Idempotent."""
