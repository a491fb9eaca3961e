"""Settles runs of schedules, and skips occurrences because of a policy or pause. Both advance the schedule."""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

from psched.clock import Clock, boottime
from psched.cron import CronDialect
from psched.error_messages import one_line
from psched.errors import ConfigError, NotSupportedError, ScheduleError
from psched.model import NEVER, NO_OCCURRENCE, Claim, NewTask, Row, ScheduleRow
from psched.schedules import rule_occurrences
from psched.schedules.backfill_spans import next_to_backfill
from psched.schedules.pause_and_run_now import paused
from psched.schedules.skip_policy import skip_entry
from psched.schedules.validation import check_delay
from psched.settlement_base import Settlement
from psched.store import ScheduleStore, TaskStore
from psched.store.ledger import (
    BACKFILL,
    ENQUEUED,
    FAILED,
    FINISHED,
    PAUSE_AFTER,
    RUN_NOW,
    Entry,
    OnCommit,
    Outcome,
    Output,
    Step,
    failures_after,
    runs_after,
)
from psched.submit_telemetry import SubmitCall

log = logging.getLogger(__name__)

_TRIES = 100
"""The maximum number of tries to compute the next occurrence while other processes change the schedule."""
_BATCH = 500
"""How many ledger entries are deleted at a time."""
PAUSE_RETRY = 10.0
"""Seconds until a schedule that has failed too often is acquired again, if its pause could not be written."""
_TRIM_INTERVAL = 60.0
"""Seconds between two deletions of old ledger entries."""


class ScheduleSettlement(Settlement):
    """Advances a schedule to the first match of its rule after the occurrence that was run."""

    store: ScheduleStore

    def __init__(
        self,
        store: ScheduleStore,
        dialect: CronDialect,
        retention: float = 400 * 86400.0,
        count: int = 100_000,
        max_attempts: int | None = None,
        clock: Clock = boottime,
        stats_retention: float = 30 * 86400.0,
    ) -> None:
        """`retention`: for how many seconds ledger entries are kept.

        `count`: how many entries of each schedule are kept.
        """
        super().__init__(store, max_attempts, stats_retention, clock)
        self._dialect = dialect
        self._retention = retention
        self._count = count
        self._trim_at = clock() + _TRIM_INTERVAL * random.random()
        self._last_settled: str | None = None
        self.finishes_together = store.advances_together
        self.queue: TaskStore | None = None
        """The queue to which `finish_by` submits; None if there is none."""

    def finish(self, claim: Claim, until: float, entry: Entry | None = None, on_commit: OnCommit | None = None) -> None:
        """Store the next occurrence. If the schedule was changed during the run, its new definition is used.

        `entry`: the ledger entry (default: finished). `on_commit`: more work in the same transaction.
        """
        row = cast("ScheduleRow", claim.row)
        entry = _run_entry(claim, FINISHED) if entry is None else entry
        for _ in range(_TRIES):
            step = self._step(claim._replace(row=row), entry)
            changed = self.store.advance(step.claim, step.next_time, step.next_run_time, until, on_commit, entry)
            if changed is None:
                return
            row = replace(changed, attempts=row.attempts)
        raise ScheduleError(f"{row.key!r}: not finished: the schedule was changed during each of {_TRIES} tries")

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        """Store the next occurrences of several schedules together.

        Schedules that were changed during their runs are then settled one by one.
        """
        try:
            steps = [self._step(claim, _run_entry(claim, FINISHED)) for claim in claims]
        except ConfigError:  # one rule is not valid; the other runs are still finished
            return [self._refusal(claim, until) for claim in claims]
        answers = self.store.advance_many(steps, until)
        return [
            self._refusal(claim, until) if isinstance(answer, ScheduleRow) else answer
            for claim, answer in zip(claims, answers, strict=True)
        ]

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> None:
        """Submit `task`, then advance the schedule. If both tables are in one database, one transaction does both.

        A task that exists already is no error, because an earlier attempt has submitted it for this occurrence.
        """
        queue = self.queue
        if queue is None:
            raise NotSupportedError(f"{claim.row.key!r}: there is no queue to submit to; configure a section `queue:`")
        entry = _run_entry(claim, ENQUEUED, task.key)
        with SubmitCall([task], queue.keeps_headers) as call:
            if self.store.shares_database(queue):
                self.finish(claim, until, entry, lambda connection: queue.submit(call.tasks, connection))
            else:
                queue.submit(call.tasks)
                self.finish(claim, until, entry)

    def fail(self, claim: Claim, error: str | None, until: float) -> Row | None:
        row = cast("ScheduleRow", claim.row)
        if error is not None:
            claim = claim._replace(row=replace(row, last_error=error))
        entry = _run_entry(claim, FAILED)
        step = self._step(claim, entry)
        changed = self.store.advance(claim, step.next_time, step.next_run_time, until, entry=entry)
        if changed is None:
            words = "key=%s the occurrence of %s failed for good after %d attempts"
            log.error(words, row.key, _date(row.next_time), row.attempts)
            if replace(row, failures=failures_after(row, entry)).has_failed_enough:
                self._pause_failing(row.key)  # if this fails, `pass_over` tries it again
        return changed

    def pass_over(self, claim: Claim, now: float, until: float) -> bool:
        """If the claimed occurrence must not run now, settle the claim and return True. Otherwise return False.

        Skips occurrences because of a policy, lets a paused schedule wait for `resume`, and deletes a backfill whose
        schedule was deleted. The decision uses the row as it was acquired. If the schedule was changed since, the claim
        is released, and nothing is skipped.
        """
        row = cast("ScheduleRow", claim.row)
        backfill = row.rule.backfill
        if backfill is not None and self.store.get(backfill.schedule) is None:
            log.warning(
                "key=%s the backfill is deleted, because its schedule %r was deleted", row.key, backfill.schedule
            )
            self.store.delete(row.key)
            return True
        is_paused: bool | None = self.is_paused(row)
        if row.has_failed_enough and not row.is_asked_for and not row.paused:
            is_paused = self._pause_failing(row.key)
        if is_paused is None:
            self.store.retry(claim.lease, PAUSE_RETRY, None, until, counted=False)
            return True
        if is_paused:
            self.store.park(claim.lease, NEVER, until)
            return True
        entry = skip_entry(row, now, self._dialect)
        if entry is None:
            return False
        step = self._step(claim, entry)
        changed = self.store.advance(claim, step.next_time, step.next_run_time, until, entry=entry)
        if changed is not None:
            self.store.release(claim.lease, until, begun=False)
            return True
        first, number = _date(row.next_time), "many" if entry.count is None else str(entry.count)
        skipped = f"the occurrence of {first}" if entry.count == 1 else f"{number} occurrences from {first} on"
        log.info("key=%s skipped %s: %s", row.key, skipped, entry.detail)
        return True

    def _pause_failing(self, key: str) -> bool | None:
        """Pause a schedule after too many failures in a row.

        Return whether it is paused; None if the pause could not be written. Then the schedule must not run until
        another call has tried to pause it.
        """
        try:
            for _ in range(_TRIES):
                seen = self.store.get(key)
                if seen is None or seen.paused or not seen.has_failed_enough:
                    return seen is not None and seen.paused
                if self.store.modify(seen, paused(seen, self.store.now(), self._dialect), PAUSE_AFTER):
                    log.error(
                        "key=%s paused, as %d occurrences failed in a row; `psched resume` ends the pause",
                        key,
                        seen.failures,
                    )
                    return True
        except Exception as failure:  # noqa: BLE001 – the run is settled, whatever a driver raises
            log.warning(
                "key=%s could not be paused after its failures: %s; retrying before its next run",
                key,
                one_line(failure),
            )
        return None

    def is_paused(self, row: Row) -> bool:
        """Return whether the row is paused. A `run_now` after the start of the pause overrides the pause."""
        schedule = cast("ScheduleRow", row)
        return schedule.paused and (schedule.extra_waits or not schedule.is_asked_for)

    @property
    def output_problem(self) -> str | None:
        return None if self.store.ledger else "rdb_compat keeps output only with `ledger:` in the configuration"

    def keep_output(self, claim: Claim, output: Output) -> None:
        if self.store.ledger is None:
            raise NotSupportedError(f"{claim.row.key!r}: {self.output_problem}")
        self.store.ledger.keep_output(claim, output, self._retention)

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """Return the limit of attempts.

        Return None for a row that cannot be run. Also return None on `rdb_compat`, because it does not count attempts.
        """
        allowed = super().attempts_allowed(row, max_attempts)
        if allowed is None or not self.store.keeps_policies:
            return None
        return None if row.problem is not None or self.problem(row) is not None else allowed

    def purge(self) -> bool:
        ledger = self.store.ledger
        if ledger is None or self._clock() < self._trim_at:
            return False
        more = ledger.trim(self._retention, self._count, _BATCH, self._last_settled)
        self._trim_at = self._clock() + (0 if more else _TRIM_INTERVAL)
        return more

    def _refusal(self, claim: Claim, until: float) -> ScheduleError | None:
        try:
            self.finish(claim, until)
        except ScheduleError as error:
            return error
        except ConfigError as error:
            return ScheduleError(f"{claim.row.key!r}: {error}")
        return None

    def _step(self, claim: Claim, entry: Entry) -> Step:
        """Compute the next occurrence with the definition in the claimed row."""
        row = cast("ScheduleRow", claim.row)
        self._last_settled = row.key
        return Step(claim, *times_after(row, entry, self._dialect), entry)

    def problem(self, row: Row) -> str | None:
        return rule_problem(row, self._dialect)


def times_after(row: ScheduleRow, entry: Entry, dialect: CronDialect) -> tuple[int, float]:
    """Return the occurrence after the one of `row`, and when it is due.

    `entry`: how the occurrence of `row` is settled. After an extra run, the result is the regular occurrence that was
    pending before. The row of a backfill is due at the second in which its last run began. So schedules that were due
    before that second run first.
    """
    if row.is_backfill:
        time = next_to_backfill(row.rule, row.next_time, dialect)
        begun = row.next_run_time if entry.started is None else math.floor(entry.started)
        return time, NO_OCCURRENCE if time == NO_OCCURRENCE else NEVER if row.paused else begun
    if entry.extra:
        regular = row.regular()
        return regular.next_time, regular.next_run_time
    time = rule_occurrences.next_time(row.rule, row.next_time if entry.last is None else entry.last, dialect)
    if row.rule.max_runs is not None and replace(row, runs=runs_after(row, entry)).has_run_enough:
        time = NO_OCCURRENCE
    return time, NEVER if row.paused else row.run_time(time)


def _run_entry(claim: Claim, outcome: Outcome, detail: str | None = None) -> Entry:
    row = cast("ScheduleRow", claim.row)
    if detail is None and row.is_backfill:
        detail = BACKFILL
    elif detail is None and (row.is_extra or row.is_asked_for):
        detail = RUN_NOW
    return Entry(outcome, detail, claim.started, extra=row.is_extra)


def _date(time: int) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat(" ")


def rule_problem(row: Row, dialect: CronDialect) -> str | None:
    """Return what is wrong with a schedule's rule, and the remedy; None if the rule is valid."""
    rule = cast("ScheduleRow", row).rule
    try:
        rule_occurrences.validate(rule, dialect)
        if rule.delay < 0:
            check_delay(rule.delay)
    except (ConfigError, ValueError) as error:
        return f"{error}; correct or delete the schedule (psched modify {row.key!r}, or psched delete)"
    return None


def with_rule_problem(row: ScheduleRow, dialect: CronDialect) -> ScheduleRow:
    """Return the row. If its rule is not valid, its `problem` says so."""
    problem = rule_problem(row, dialect) if row.problem is None else None
    return row if problem is None else replace(row, problem=problem)
