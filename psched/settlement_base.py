"""The base class of the two classes that settle runs: `ScheduleSettlement` and `TaskSettlement`."""

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
_STATS_BATCH = 2000
"""The maximum number of old rows that one deletion removes from each statistics table."""


class Settlement(ABC):
    """Settles the runs of one store. There is one subclass for schedules, and one for queue tasks.

    `until` is the time in boottime seconds until which a failed write is repeated. If the lease is lost, methods that
    settle a claim raise PreemptedError, NotFoundError or AlreadyFinishedError.
    """

    keeps_data = False
    """Whether a run can change the data of its row."""
    finishes_together = True
    """Whether `finish_many` finishes many runs by one statement."""
    maintenance_interval = 60.0
    """Seconds between two calls of `maintain` while no task runs."""

    def __init__(
        self,
        store: LeaseStore,
        max_attempts: int | None,
        stats_retention: float = 30 * 86400.0,
        clock: Clock = boottime,
    ) -> None:
        """`max_attempts`: the configured limit of attempts. A limit of the row or of its type takes precedence.

        `stats_retention`: how many seconds hourly statistics of runs are kept.
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
        """Settle claimed runs as done, in few transactions.

        Return a list with one item for each run: None if it was settled, or the error that `finish` would raise.
        """

    @abstractmethod
    def fail(self, claim: Claim, error: str | None, until: float) -> Row | None:
        """Settle the claimed run as failed for good, and return None.

        If the row was changed after it was acquired, write nothing and return the row as it is stored now, because it
        may allow more attempts.
        """

    def maintain(self) -> bool:
        """Delete a small batch of old rows and of old statistics. Return True if more old rows may be left."""
        more = self.purge()
        stats = self.store.stats
        if stats is None or self._clock() < self._purge_stats_at:
            return more
        more_stats = stats.purge(self._stats_retention, _STATS_BATCH)
        self._purge_stats_at = self._clock() + (0 if more_stats else _PURGE_STATS_INTERVAL)
        return more or more_stats

    @abstractmethod
    def purge(self) -> bool:
        """Delete a small batch of old rows. Return True if more old rows may be left."""

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> None:
        """Settle the claimed run as done and submit `task` to the queue.

        Raises NotSupportedError if the claimed row is a queue task.
        """
        raise NotSupportedError(
            f"{claim.row.key!r} is a queue task; only a schedule's run can finish by submitting a task"
        )

    def cancel(self, claim: Claim, until: float) -> None:
        """Settle the claimed run as cancelled. Raises NotSupportedError for the run of a schedule."""
        raise NotSupportedError(f"{claim.row.key!r} is a schedule; its runs cannot be cancelled; delete it instead")

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Write the data of the claimed run. Raises NotSupportedError for the run of a schedule."""
        raise NotSupportedError(f"{claim.row.key!r} is a schedule; its runs cannot change its data")

    @property
    def result_problem(self) -> str | None:
        """Return why runs cannot store a result or progress, and the remedy; None if runs can store both."""
        return "a schedule stores no result and no progress; submit a queue task"

    def save_progress(self, claim: Claim, progress: str, until: float) -> None:
        """Write the progress of the claimed run. Raises NotSupportedError if `result_problem` is not None."""
        raise NotSupportedError(f"{claim.row.key!r}: {self.result_problem}")

    @property
    def output_problem(self) -> str | None:
        """Return why the output of runs cannot be kept, and the remedy; None if it can be kept."""
        return "the output of queue tasks cannot be kept; remove keep_output from the type, or use a schedule instead"

    def keep_output(self, claim: Claim, output: Output) -> None:
        """Keep the output of the claimed run. Raises NotSupportedError if `output_problem` is not None."""
        raise NotSupportedError(f"{claim.row.key!r}: {self.output_problem}")

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """Return the number of attempts after which the row fails for good; None if it never does.

        The limit of the row itself takes precedence, then the limit of its type (`max_attempts`), then the configured
        limit.
        """
        own = row.policy.max_attempts if isinstance(row, ScheduleRow) else row.max_attempts
        if own is None:
            return self._max_attempts if max_attempts is None else max_attempts
        return own

    def problem(self, row: Row) -> str | None:
        """Return why the row cannot be run, and the remedy; None if the row can be run."""
        return None

    def is_paused(self, row: Row) -> bool:
        """Return whether the row waits for the end of a pause. Such a row does not run and does not fail."""
        return False

    def pass_over(self, claim: Claim, now: float, until: float) -> bool:
        """If the run must not start at `now`, settle it and return True. Otherwise return False.

        `now`: unix seconds on the database's clock.
        """
        return False

    def retry(self, claim: Claim, wait: float, error: str | None, max_attempts: int | None, until: float) -> RunOutcome:
        """Make the claimed row due `wait` seconds from now, and return the outcome `retried`.

        If a cancel was requested, settle the run as `cancelled` instead. If no attempts are left, settle it as
        `failed`. `max_attempts`: the limit of the row's type, or None.
        """
        if claim.lease.cancel_requested:
            self.cancel(claim, until)
            return "cancelled"
        row = claim.row
        while (allowed := self.attempts_allowed(row, max_attempts)) is not None and row.attempts >= allowed:
            exhausted = row.attempts > allowed  # all attempts were used up before this attempt, which did not begin
            ended = claim._replace(row=row.attempted(row.attempts - 1) if exhausted else row)
            changed = self.fail(ended, error, until)
            if changed is None:
                return "failed"
            row = changed
        self.store.retry(claim.lease, wait, error, until)
        return "retried"

    def give_up(self, claim: Claim, error: str, until: float) -> RunOutcome:
        """Settle the claimed run as `failed`, or as `cancelled` if a cancel was requested. Return the outcome."""
        if claim.lease.cancel_requested:
            self.cancel(claim, until)
            return "cancelled"
        while (changed := self.fail(claim, error, until)) is not None:
            claim = claim._replace(row=changed)
        return "failed"

    def defer(self, claim: Claim, wait: float, error: str, until: float) -> RunOutcome:
        """Make the claimed row due `wait` seconds from now, without counting the attempt. Return the outcome `retried`.

        If a cancel was requested, settle the run as `cancelled` instead.
        """
        if claim.lease.cancel_requested:
            self.cancel(claim, until)
            return "cancelled"
        self.store.retry(claim.lease, wait, error, until, counted=False, version=version_of(claim.row))
        return "retried"

    def release(self, claim: Claim, begun: bool, until: float) -> RunOutcome:
        """Make the claimed row due now. If its run has not begun, restore its due time from before the acquire.

        Returns the outcome `released`. If a cancel was requested, settles the run as `cancelled` instead.
        """
        if claim.lease.cancel_requested:
            self.cancel(claim, until)
            return "cancelled"
        self.store.release(claim.lease, until, begun)
        return "released"
