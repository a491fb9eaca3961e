"""Finishing a run of a schedule: the schedule moves on. Used in children and in clients that poll themselves."""

from __future__ import annotations

import logging
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from psched import cron
from psched.clock import Clock, boottime
from psched.errors import ConfigError, NotSupportedError, ScheduleError
from psched.model import Claim, NewTask, Row, ScheduleRow
from psched.schedules.rules import NEVER, check_delay, passed_over, regular_of
from psched.store import Also, ScheduleStore, TaskStore
from psched.store.ledger import ENQUEUED, FAILED, FINISHED, RUN_NOW, Entry, Step

log = logging.getLogger(__name__)

_TRIES = 100
"""How often an occurrence is computed again when others keep changing its schedule."""


_BATCH = 500
"""Entries of the ledger that are deleted at a time."""

_TRIMMING = 60.0
"""Seconds between two looks at what can be deleted of the ledger."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long entries of the ledger are kept, in seconds, and how many of each schedule."""

    retention: float
    count: int


LONG = Keeping(retention=400 * 86400.0, count=100_000)
"""What is kept unless the configuration says otherwise: a little more than a year."""


class Advance:
    """Finishing a schedule: it moves on to the first match strictly after the occurrence that was run."""

    keeps_data = False
    maintenance = 60.0

    def __init__(
        self,
        store: ScheduleStore,
        dialect: str,
        keeping: Keeping = LONG,
        clock: Clock = boottime,
        max_attempts: int | None = None,
    ) -> None:
        """`keeping`: what of the ledger is kept. `max_attempts`: of schedules that say nothing, nor does their type."""
        self._store = store
        self._dialect = dialect
        self._keeping = keeping
        self._max_attempts = max_attempts
        self._clock = clock
        self._trim_at = clock() + _TRIMMING * random.random()
        self._settled: str | None = None
        self.queue: TaskStore | None = None
        """Where `finish_by` submits to."""

    def finish(self, claim: Claim, until: float) -> None:
        """Store the next occurrence; by the new definition when the schedule was changed during the run."""
        self._advance(claim, until, self._run(claim, FINISHED), None)

    def finish_many(self, claims: Sequence[Claim], until: float) -> list[ScheduleError | None]:
        """Store the next occurrences of several schedules, together; one by one where some were changed meanwhile."""
        try:
            steps = [self._step(claim, self._run(claim, FINISHED)) for claim in claims]
        except ConfigError:  # one of them comes to its end, which is no matter of the others
            return [self._refusal(claim, until) for claim in claims]
        answers = self._store.advance_many(steps, until)
        return [
            self._refusal(claim, until) if isinstance(answer, ScheduleRow) else answer
            for claim, answer in zip(claims, answers, strict=True)
        ]

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> None:
        """Submit `task` and store the next occurrence: at once where the tables are in one database, else in turn.

        A task that is there already was submitted for this very occurrence.
        """
        queue = self.queue
        if queue is None:
            raise NotSupportedError(f"{claim.row.key!r}: there is no queue to submit to; configure a section `queue:`")
        entry = self._run(claim, ENQUEUED, task.key)
        if self._store.shares_database(queue):
            self._advance(claim, until, entry, lambda connection: queue.submit([task], connection))
        else:
            queue.submit([task])
            self._advance(claim, until, entry, None)

    def fail(self, claim: Claim, error: str | None, until: float) -> Row | None:
        """Enter that the occurrence has failed for good, and store the next one; the row when it was changed."""
        row = cast("ScheduleRow", claim.row)
        if error is not None:
            claim = claim._replace(row=replace(row, last_error=error))
        entry = Entry(FAILED, started=claim.started, extra=row.is_extra)
        step = self._step(claim, entry)
        changed = self._store.advance(claim, step.next_time, step.next_run_time, until, entry=entry)
        if changed is None:
            attempts, time = row.attempts, datetime.fromtimestamp(row.next_time, UTC).isoformat(" ")
            log.error("key=%s the occurrence of %s failed for good after %d attempts", row.key, time, attempts)
        return changed

    def cancel(self, claim: Claim, until: float) -> None:
        """A schedule is deleted, not cancelled."""
        raise NotSupportedError(f"{claim.row.key!r} is a schedule, whose runs cannot be cancelled; delete it")

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """A schedule's data is its owner's."""
        raise NotSupportedError(f"{claim.row.key!r} is a schedule, whose runs cannot change its data")

    def pass_over(self, claim: Claim, now: float, until: float) -> bool:
        """Pass over what the policy, or a pause, says is not to be run; park what is paused.

        That was decided by the row as it was acquired. A schedule that was changed since is due at once instead, to be
        acquired again as it is now.
        """
        row = cast("ScheduleRow", claim.row)
        if self.is_paused(row):
            self._store.park(claim.lease, NEVER, until)
            return True
        entry = passed_over(row, now, self._dialect)
        if entry is None:
            return False
        step = self._step(claim, entry)
        changed = self._store.advance(claim, step.next_time, step.next_run_time, until, entry=entry)
        if changed is not None:
            self._store.release(claim.lease, until)
            return True
        number = "many" if entry.count is None else str(entry.count)
        log.info("key=%s skipped %s from %s on: %s", row.key, number, row.next_time, entry.detail)
        return True

    def is_paused(self, row: Row) -> bool:
        """Tell whether the row waits for the end of a pause, as all do but those that `run_now` asked for since."""
        schedule = cast("ScheduleRow", row)
        return schedule.paused and (schedule.extra_waits or not schedule.is_asked_for)

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """Return what the schedule says, else its type, else the configuration; None while it cannot be run at all.

        A table that counts no attempts (`rdb_compat`) has no bound for them.
        """
        schedule = cast("ScheduleRow", row)
        of_type = self._max_attempts if max_attempts is None else max_attempts
        allowed = of_type if schedule.policy.max_attempts is None else schedule.policy.max_attempts
        if allowed is None or not self._store.keeps_policies:
            return None
        return None if row.problem is not None or self.problem(row) is not None else allowed

    def maintain(self) -> bool:
        """Trim the ledger now and then."""
        ledger = self._store.ledger
        if ledger is None or self._clock() < self._trim_at:
            return False
        more = ledger.trim(self._keeping.retention, self._keeping.count, _BATCH, self._settled)
        self._trim_at = self._clock() + (0 if more else _TRIMMING)
        return more

    def _refusal(self, claim: Claim, until: float) -> ScheduleError | None:
        """Finish a claimed run, or return why not."""
        try:
            self.finish(claim, until)
        except ScheduleError as error:
            return error
        except ConfigError as error:
            return ScheduleError(f"{claim.row.key!r}: {error}")
        return None

    def _run(self, claim: Claim, outcome: str, detail: str | None = None) -> Entry:
        row = cast("ScheduleRow", claim.row)
        if detail is None and (row.is_extra or row.is_asked_for):
            detail = RUN_NOW
        return Entry(outcome, detail, claim.started, extra=row.is_extra)

    def _advance(self, claim: Claim, until: float, entry: Entry, also: Also | None) -> None:
        row = cast("ScheduleRow", claim.row)
        for _ in range(_TRIES):
            step = self._step(claim._replace(row=row), entry)
            changed = self._store.advance(step.claim, step.next_time, step.next_run_time, until, also, entry)
            if changed is None:
                return
            row = replace(changed, attempts=row.attempts)
        raise ScheduleError(f"{row.key!r}: it is changed faster than its run can be finished")

    def _step(self, claim: Claim, entry: Entry) -> Step:
        """Compute what comes after the claimed occurrence, by the definition it was claimed with.

        After an extra run that is the regular occurrence which was next before it.
        """
        row = cast("ScheduleRow", claim.row)
        self._settled = row.key
        if entry.extra:
            regular = regular_of(row)
            return Step(claim, regular.next_time, regular.next_run_time, entry)
        settled = row.next_time if entry.last is None else entry.last
        next_time = cron.next_time(row.rule.cron, settled, row.rule.timezone, self._dialect)
        return Step(claim, next_time, NEVER if row.paused else next_time + row.rule.delay, entry)

    def problem(self, row: Row) -> str | None:
        """Say what is wrong with the stored rule, or None."""
        return rule_problem(row, self._dialect)


def rule_problem(row: Row, dialect: str) -> str | None:
    """Say what is wrong with the rule of a schedule, or None."""
    rule = cast("ScheduleRow", row).rule
    try:
        cron.validate(rule.cron, rule.timezone, dialect)
        if rule.delay < 0:
            check_delay(rule.delay)
    except (ConfigError, ValueError) as error:
        return f"{error} (psched modify or delete {row.key!r})"
    return None
