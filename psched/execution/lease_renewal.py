"""Renews leases in two threads: one for running tasks, and one for all other tasks. Nothing delays the first thread."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from psched.acquisition.task_source import TaskSource
from psched.clock import Clock, boottime
from psched.error_messages import one_line
from psched.errors import PreemptedError
from psched.execution.handler_loop import HandlerLoop
from psched.execution.periodic_thread import PeriodicThread
from psched.task import Task, extend_many, locked
from psched.telemetry import emit

log = logging.getLogger(__name__)

_LONGEST_TICK = 1.0
_RETRY = 0.25
"""Seconds between two attempts while renewals fail. Pooled connections may fail one after the other."""
_BRIEF = 1.0
"""A prefetched run that has lasted this many seconds gets a full lease instead of its short lease. Shorter runs need no
renewal."""


class LeaseRenewer(PeriodicThread):
    """Renews each lease one interval after the lease was last written.

    `prefetched`: if False, the thread renews the leases of running tasks. If True, the thread first settles collected
    runs that have waited too long, and then renews all other leases.
    """

    def __init__(
        self,
        sources: Sequence[TaskSource],
        loops: Sequence[HandlerLoop],
        interval: float,
        prefetched: bool = False,
        clock: Clock = boottime,
    ) -> None:
        """`interval`: seconds between two renewals of one lease (`task_heartbeat_interval`)."""
        self._sources = sources
        self._loops = loops
        self._renewal_interval = interval
        self._prefetched = prefetched
        self._clock = clock
        self._failing: set[TaskSource] = set()
        name = "prefetched lease renewer" if prefetched else "running lease renewer"
        super().__init__(name, self.tick, min(interval, _LONGEST_TICK))

    def tick(self) -> bool:
        """Renew the leases that are due. Return True while any lease is held."""
        if self._prefetched:
            for loop in self._loops:
                loop.flush_overdue()
        for source in self._sources:
            self._renew(source)
        if not self._prefetched:
            self.interval = min(self._renewal_interval, _RETRY if self._failing else _LONGEST_TICK)
        return any(source.held for source in self._sources)

    def _renew(self, source: TaskSource) -> None:
        tasks: Sequence[Task] = ()
        try:
            with locked(self._due(source)) as tasks:
                extend_many(tasks)
        except Exception as error:  # noqa: BLE001 – whatever a driver raises, the next tick tries again
            if source not in self._failing:
                log.warning(
                    "leases cannot be renewed: %s; retrying; a run is stopped only if its lease is about to end",
                    one_line(error),
                )
            self._failing.add(source)
        else:
            if source in self._failing and tasks:
                log.warning("leases are renewed again")
                self._failing.remove(source)
            elif not source.held:  # the leases that could not be renewed have ended
                self._failing.discard(source)
        for task in tasks:
            if task.lease_lost and not task.in_flight:  # set by this renewal, even if it failed for other tasks
                self._stop_run(task)

    def _due(self, source: TaskSource) -> list[Task]:
        """Return the tasks of this thread whose leases must be renewed now.

        A lease is renewed one interval after its last renewal, or earlier if `_due_length` has grown since.
        """
        now = self._clock()
        return [
            task
            for task in source.held
            if (task.started and not task.concluded) is not self._prefetched
            and task.deadline - now <= self._due_length(source, task, now) - self._interval_of(task)
        ]

    def _due_length(self, source: TaskSource, task: Task, now: float) -> float:
        """Return how many seconds the lease of the task should last.

        A new run has the short prefetch lease, and so has a run that waits to be settled. All other runs have
        `lease_time`.
        """
        if task.started and (task.concluded or now < task.begun_at + min(self._renewal_interval, _BRIEF)):
            return min(task.lease_time, source.times.lease_time(started=False))
        return task.lease_time

    def _interval_of(self, task: Task) -> float:
        """Return the seconds between two renewals of the task's lease. They may be less than configured."""
        return self._renewal_interval if task.alive_time is None else min(self._renewal_interval, task.alive_time / 4)

    def _stop_run(self, task: Task) -> None:
        emit("lease_lost", task=task)
        for loop in self._loops:
            run = loop.current()
            if run is not None and run.task is task:
                reason = PreemptedError(
                    f"{task.key!r}: the lease of this run is lost; another worker may be running it"
                )
                run.stop(reason, self._clock())
