"""Finishing a run of a schedule: the schedule moves on. Used in children and in clients that poll themselves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from psched import cron
from psched.errors import ConfigError, NotSupportedError, ScheduleError
from psched.model import Claim, NewTask, Row, ScheduleRow
from psched.store import Also, ScheduleStore, TaskStore

_TRIES = 100
"""How often an occurrence is computed again when others keep changing the rule."""


class Advance:
    """Finishing a schedule: it moves on to the first match strictly after the occurrence that was run."""

    keeps_data = False
    tidying = 60.0

    def __init__(self, store: ScheduleStore, dialect: str) -> None:
        self._store = store
        self._dialect = dialect
        self.queue: TaskStore | None = None
        """Where `finish_by` submits to."""

    def finish(self, claim: Claim, until: float) -> None:
        """Store the next occurrence; by the new rule when the schedule was modified during the run."""
        self._advance(claim, until, None)

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> None:
        """Submit `task` and store the next occurrence: at once where the tables are in one database, else in turn.

        A task that is there already was submitted for this very occurrence.
        """
        queue = self.queue
        if queue is None:
            raise NotSupportedError(f"{claim.row.key!r}: there is no queue to submit to; configure a section `queue:`")
        if self._store.shares_database(queue):
            self._advance(claim, until, lambda connection: queue.submit([task], connection))
        else:
            queue.submit([task])
            self._advance(claim, until, None)

    def fail(self, claim: Claim, error: str | None, until: float) -> None:
        """A schedule comes again and never fails for good."""
        raise NotSupportedError(f"{claim.row.key!r} is a schedule, which cannot fail for good")

    def cancel(self, claim: Claim, until: float) -> None:
        """A schedule is deleted, not cancelled."""
        raise NotSupportedError(f"{claim.row.key!r} is a schedule, whose runs cannot be cancelled; delete it")

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """A schedule's data is its owner's."""
        raise NotSupportedError(f"{claim.row.key!r} is a schedule, whose runs cannot change its data")

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """No occurrence is given up."""
        return None

    def tidy(self) -> bool:
        """Schedules leave nothing behind."""
        return False

    def _advance(self, claim: Claim, until: float, also: Also | None) -> None:
        row = cast("ScheduleRow", claim.row)
        for _ in range(_TRIES):
            rule = row.rule
            next_time = cron.next_time(rule.cron, row.next_time, rule.timezone, self._dialect)
            changed = self._store.advance(Claim(row, claim.lease), next_time, next_time + rule.delay, until, also)
            if changed is None:
                return
            row = replace(row, rule=changed)
        raise ScheduleError(f"{row.key!r}: its rule changes faster than its run can be finished")

    def problem(self, row: Row) -> str | None:
        """Say what is wrong with the stored rule, or None."""
        rule = cast("ScheduleRow", row).rule
        try:
            cron.validate(rule.cron, rule.timezone, self._dialect)
        except ConfigError as error:
            return f"{error} (psched modify or delete {row.key!r})"
        return None
