"""The base class that settles runs: `ScheduleSettlement` for schedules, `TaskSettlement` for queue tasks."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from psched.clock import Clock, boottime
from psched.errors import NotSupportedError, ScheduleError
from psched.model import Claim, NewTask, Row, RunOutcome, ScheduleRow, version_of
from psched.store import LeaseStore
from psched.store.ledger import Output

_PURGE_STATS_INTERVAL = 3600.0
"""Seconds between two deletions of old statistics."""
_STATS_BATCH = 2000
"""Rows of statistics of each span that are deleted at a time."""


class Settlement(ABC):
    """Settles the runs of one store. Schedules and queue tasks differ only in this.

    `until` is the boottime up to which a write is retried. Methods that settle a claim raise PreemptedError,
    NotFoundError or AlreadyFinishedError if the lease is lost.
    """

    keeps_data = False
    """Whether a run can change its data."""
    maintenance_interval = 60.0
    """Seconds between two calls of `maintain` while no task runs."""

    def __init__(
        self,
        store: LeaseStore,
        max_attempts: int | None,
        stats_retention: float = 30 * 86400.0,
        clock: Clock = boottime,
    ) -> None:
        """`max_attempts`: the bound where neither the row nor its type has one.

        `stats_retention`: seconds for which statistics of runs are kept by hour.
        """
        self.store = store
        self._max_attempts = max_attempts
        self._stats_retention = stats_retention
        self._clock = clock
        self._purge_stats_at = clock() + _PURGE_STATS_INTERVAL * random.random()

    @abstractmethod
    def finish(self, claim: Claim, until: float) -> None:
        """Settle the claimed run as done."""

    @abstractmethod
    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        """Settle claimed runs as done, in few transactions. Return for each None, or the error of `finish`."""

    @abstractmethod
    def fail(self, claim: Claim, error: str | None, until: float) -> Row | None:
        """Settle the claimed run as failed for good, and return None.

        If the row was changed since its acquire, write nothing and return the stored row, which may allow more
        attempts.
        """

    def maintain(self) -> bool:
        """Delete a small batch of old rows and of old statistics. Return True if there may be more."""
        more = self.purge()
        stats = self.store.stats
        if stats is None or self._clock() < self._purge_stats_at:
            return more
        more_stats = stats.purge(self._stats_retention, _STATS_BATCH)
        self._purge_stats_at = self._clock() + (0 if more_stats else _PURGE_STATS_INTERVAL)
        return more or more_stats

    @abstractmethod
    def purge(self) -> bool:
        """Delete a small batch of old rows. Return True if there may be more."""

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> None:
        """Settle the claimed run as done by submitting `task`. Raises NotSupportedError."""
        raise NotSupportedError(
            f"{claim.row.key!r} is a queue task; only a schedule finishes by submitting another one"
        )

    def cancel(self, claim: Claim, until: float) -> None:
        """Settle the claimed run as cancelled. Raises NotSupportedError."""
        raise NotSupportedError(f"{claim.row.key!r} is a schedule, whose runs cannot be cancelled; delete it")

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Write the data of the claimed run. Raises NotSupportedError."""
        raise NotSupportedError(f"{claim.row.key!r} is a schedule, whose runs cannot change its data")

    @property
    def result_problem(self) -> str | None:
        """Why runs can store neither results nor progress, with the remedy, or None."""
        return "a schedule stores no result and no progress; submit a queue task"

    def save_progress(self, claim: Claim, progress: str, until: float) -> None:
        """Write the progress of the claimed run. Raises NotSupportedError where `result_problem` says why."""
        raise NotSupportedError(f"{claim.row.key!r}: {self.result_problem}")

    @property
    def output_problem(self) -> str | None:
        """Why the output of runs cannot be kept, with the remedy, or None."""
        return "the output of queue tasks is not kept; run them without keep_output, or as schedules"

    def keep_output(self, claim: Claim, output: Output) -> None:
        """Keep what the claimed run wrote. Raises NotSupportedError where `output_problem` says why."""
        raise NotSupportedError(f"{claim.row.key!r}: {self.output_problem}")

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """Return the number of attempts after which the row has failed, or None for no bound.

        The row's own bound comes first, then `max_attempts` (the bound of its type), then the configured bound.
        """
        own = row.policy.max_attempts if isinstance(row, ScheduleRow) else row.max_attempts
        if own is None:
            return self._max_attempts if max_attempts is None else max_attempts
        return own

    def problem(self, row: Row) -> str | None:
        """Return the error of a row that cannot be run, with the remedy, or None."""
        return None

    def is_paused(self, row: Row) -> bool:
        """Return whether the row waits for the end of a pause. Until then the row is neither run nor failed."""
        return False

    def pass_over(self, claim: Claim, now: float, until: float) -> bool:
        """Settle the run and return True if the run is not wanted any more at `now` (database's clock)."""
        return False

    def retry(self, claim: Claim, wait: float, error: str | None, max_attempts: int | None, until: float) -> RunOutcome:
        """Make the claimed row due `wait` seconds from now, unless a cancel was requested or its attempts are used up.

        `max_attempts`: as for `attempts_allowed`. Returns the outcome: `retried`, `cancelled` or `failed`.
        """
        if claim.lease.cancel_requested:
            self.cancel(claim, until)
            return "cancelled"
        row = claim.row
        while (allowed := self.attempts_allowed(row, max_attempts)) is not None and row.attempts >= allowed:
            exhausted = row.attempts > allowed  # and this attempt was not begun
            ended = claim._replace(row=row.attempted(row.attempts - 1) if exhausted else row)
            changed = self.fail(ended, error, until)
            if changed is None:
                return "failed"
            row = changed
        self.store.retry(claim.lease, wait, error, until)
        return "retried"

    def give_up(self, claim: Claim, error: str, until: float) -> RunOutcome:
        """Settle the claimed run as failed for good, unless a cancel was requested.

        Returns the outcome: `failed` or `cancelled`.
        """
        if claim.lease.cancel_requested:
            self.cancel(claim, until)
            return "cancelled"
        while (changed := self.fail(claim, error, until)) is not None:
            claim = claim._replace(row=changed)
        return "failed"

    def defer(self, claim: Claim, wait: float, error: str, until: float) -> RunOutcome:
        """Make the claimed row due `wait` seconds from now, without counting the attempt.

        Returns the outcome: `retried`, or `cancelled` if a cancel was requested.
        """
        if claim.lease.cancel_requested:
            self.cancel(claim, until)
            return "cancelled"
        self.store.retry(claim.lease, wait, error, until, counted=False, version=version_of(claim.row))
        return "retried"

    def release(self, claim: Claim, until: float) -> RunOutcome:
        """Make the claimed row due now, as if it had not been acquired.

        Returns the outcome: `released`, or `cancelled` if a cancel was requested.
        """
        if claim.lease.cancel_requested:
            self.cancel(claim, until)
            return "cancelled"
        self.store.release(claim.lease, until)
        return "released"
