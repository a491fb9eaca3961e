"""What came due while nobody was there: skipped once, by an instance that starts. In the host's process.

An occurrence is skipped only when no living instance that has bound its name was there when it came: others' signs say
since when they live. One whose sign has run out may be dead, or may have lost the database for as long as we have: it
is given time to give a new one.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from psched.clock import Clock, monotonic
from psched.errors import IdempotentError, OutcomeUnknownError, PreemptedError
from psched.execution.stop_event import StopEvent
from psched.model import ScheduleRow
from psched.scheduler.instances import Instance, InstanceRegistry
from psched.schedules.collection import ScheduleCollection, first_match

log = logging.getLogger(__name__)

GRACE = 5.0
"""What is overdue by no more seconds is run all the same: a crash may have delayed it."""
PATIENCE = 6.0
"""Seconds for which an instance that may have lost the database, as we have, can give a new sign of life."""
_PAUSE = 0.5


@dataclass(slots=True)
class MissedOccurrences:
    """Decides, for one instance that starts, what is skipped."""

    schedules: ScheduleCollection
    presence: InstanceRegistry
    names: Collection[str]
    since: float
    """When this instance came, by the database's clock."""
    dialect: str = "vixie"
    clock: Clock = monotonic
    patience: float = PATIENCE
    grace: float = GRACE

    def settle(self, stopping: StopEvent) -> None:
        """Skip what came while nobody was there; returns when all is decided, or `stopping` is set.

        Raises the driver's errors; it may be called again.
        """
        undecided = [name for name in self.names if self._overdue(name) is not None]
        end = self.clock() + self.patience
        while undecided and not stopping.is_set():
            signs = self.presence.signs()
            if self.clock() >= end:
                self.presence.sweep([sign.key for sign in signs if not sign.lives])
                signs = [sign for sign in signs if sign.lives]
            undecided = [name for name in undecided if not self._is_settled(name, signs)]
            if undecided:
                stopping.wait(_PAUSE)

    def _overdue(self, name: str) -> ScheduleRow | None:
        """Return the registration if it was due before this instance came, and not just so."""
        row = self.schedules.store.get(name)
        return None if row is None or row.next_time >= self.since - self.grace else row

    def _is_settled(self, name: str, signs: Sequence[Instance]) -> bool:
        """Skip what is to be skipped of one registration; False when that is not known, or not done, yet."""
        row = self._overdue(name)
        if row is None:
            return True
        concerned = [sign for sign in signs if name in sign.names]
        if any(sign.lives and sign.since <= row.next_time for sign in concerned):
            return True
        if not all(sign.lives for sign in concerned):
            return False
        return self._skip(row, min([self.since, *(sign.since for sign in concerned)]))

    def _skip(self, row: ScheduleRow, start: float) -> bool:
        """Let the registration go on with its first occurrence since `start`; False when it must be tried again."""
        if row.problem is not None:
            return True
        if not row.settled:
            return self._skip_by_finishing(row.key, start)
        time = first_match(row.rule, int(-(-start // 1)), self.dialect)
        wanted = replace(row, next_time=time, next_run_time=time + row.rule.delay)
        if not self.schedules.store.modify(row, wanted):
            return False
        log.warning(
            "%r was due at %d, when no instance was there to run it: what came since is skipped, and it goes on at %d",
            row.key, row.next_time, time,
        )  # fmt: skip
        return True

    def _skip_by_finishing(self, name: str, start: float) -> bool:
        """Take an occurrence that somebody died with, once his lease is over, and finish it without a task."""
        task = self.schedules.poll([name])
        if task is not None:
            try:
                if task.scheduled_time < start - self.grace:
                    task.finish()
                else:
                    task.release()
            except (IdempotentError, OutcomeUnknownError, PreemptedError) as error:
                log.info("key=%s another instance changed the registration first: %s", name, error)
        return False
