"""Skips the occurrences that were due while no instance ran. Each instance does this once, when it starts.

An occurrence is missed if no living instance with a handler for its name has been running since it was due. An instance
with an expired heartbeat lease may be dead, or it may have lost the database just like this instance. Such an instance
counts as dead if it does not renew the lease within a few seconds.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from psched.clock import monotonic
from psched.errors import IdempotentError, OutcomeUnknownError, PreemptedError
from psched.execution.stop_event import StopEvent
from psched.model import ScheduleRow
from psched.scheduler.instance_registry import Instance, InstanceRegistry
from psched.schedules import rule_occurrences
from psched.schedules.collection import ScheduleCollection
from psched.time_text import local_time

log = logging.getLogger(__name__)

PATIENCE = 6.0
"""Seconds. An instance with an expired heartbeat lease counts as dead if it does not renew the lease in this time."""
_PAUSE = 0.5


@dataclass(slots=True)
class MissedOccurrences:
    schedules: ScheduleCollection
    instances: InstanceRegistry
    names: Collection[str]
    since: float
    """When this instance started, in unix seconds by the database's clock."""
    grace: float
    """Seconds. A schedule that is less overdue than this still runs, because a crash or a reload may have delayed it.
    """
    patience: float = PATIENCE

    def skip(self, stopping: StopEvent) -> None:
        """Skip the missed occurrences of all `names`. End early if `stopping` is set. May be called again.

        Raises the driver's errors.
        """
        undecided = [name for name in self.names if self._overdue_row(name) is not None]
        end = monotonic() + self.patience
        while undecided and not stopping.is_set():
            others = self.instances.others()
            if monotonic() >= end:
                self.instances.delete([other.key for other in others if not other.is_alive])
                others = [other for other in others if other.is_alive]
            undecided = [name for name in undecided if not self._is_decided(name, others)]
            if undecided:
                stopping.wait(_PAUSE)

    def _overdue_row(self, name: str) -> ScheduleRow | None:
        """Return the schedule if its occurrence was due more than the grace time before this instance started.

        Otherwise return None. Also return None for an extra run by `run_now`, and for a paused schedule, because
        `resume` decides about its occurrences.
        """
        row = self.schedules.store.get(name)
        if row is None or row.paused or row.is_extra or row.next_time >= self.since - self.grace:
            return None
        return row

    def _is_decided(self, name: str, others: Sequence[Instance]) -> bool:
        """Skip the schedule's occurrences if they were missed. Return False if the call must be repeated."""
        row = self._overdue_row(name)
        if row is None:
            return True
        with_handler = [other for other in others if name in other.names]
        if any(other.is_alive and other.since <= row.next_time for other in with_handler):
            return True
        if not all(other.is_alive for other in with_handler):
            return False
        return self._skip(row, min([self.since, *(other.since for other in with_handler)]))

    def _skip(self, row: ScheduleRow, start: float) -> bool:
        """Move the schedule to its first occurrence at or after `start`. Return False if the call must be repeated."""
        if row.problem is not None:
            return True
        if not row.settled:
            self._finish_abandoned(row.key, start)
            return False
        time = rule_occurrences.first_time(row.rule, start, self.schedules.cron_dialect)
        wanted = replace(row, next_time=time, next_run_time=row.run_time(time))
        if not self.schedules.store.modify(row, wanted):
            return False
        then = (
            "it has no further occurrence" if wanted.ended else f"skipped to its next occurrence at {local_time(time)}"
        )
        log.warning("%r was due at %s, when no instance ran; %s", row.key, local_time(row.next_time), then)
        return True

    def _finish_abandoned(self, name: str, start: float) -> None:
        """Acquire the occurrence of a dead instance, if the occurrence's lease has ended.

        If the occurrence was due more than the grace time before `start`, finish it without submitting a task.
        Otherwise release it.
        """
        task = self.schedules.poll([name])
        if task is not None:
            try:
                if task.scheduled_time < start - self.grace:
                    task.finish()
                else:
                    task.release()
            except (IdempotentError, OutcomeUnknownError, PreemptedError) as error:
                log.info("key=%s the occurrence that a dead instance ran was not settled: %s; retrying", name, error)
