"""Makes leases last that are about to need it, some of a child's or all. In one thread each."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from psched.clock import Clock, boottime
from psched.daemon.runner import Runner
from psched.daemon.wording import one_line
from psched.errors import PreemptedError
from psched.source import Source
from psched.task import Task

log = logging.getLogger(__name__)

_BRIEF = 1.0
"""Seconds for which a run that was taken ahead keeps its short lease: one that is over by then costs no renewal."""


class Renewal:
    """Renews the leases of the tasks that `chosen` names, each when it was last written an interval ago."""

    def __init__(
        self,
        sources: Sequence[Source],
        runners: Sequence[Runner],
        interval: float,
        chosen: Callable[[Task], bool],
        clock: Clock = boottime,
    ) -> None:
        """`interval`: seconds between two renewals of one lease (`task_heartbeat_interval`)."""
        self._sources = sources
        self._runners = runners
        self._interval = interval
        self._chosen = chosen
        self._clock = clock
        self._failing: set[Source] = set()

    def renew(self) -> bool:
        """Renew what is due; True while anything is held."""
        for source in self._sources:
            self._renew(source)
        return any(source.held for source in self._sources)

    @property
    def failing(self) -> bool:
        """Whether the last attempt to renew something failed, of any source."""
        return bool(self._failing)

    def _renew(self, source: Source) -> None:
        try:
            with _locked(self._due(source)) as tasks:
                lost = source.extend(tasks) if tasks else []
        except Exception as error:  # noqa: BLE001 – whatever a driver raises, the next tick tries again
            self._failed(source, error)
            return
        if source in self._failing and tasks:
            log.warning("leases are renewed again")
            self._failing.remove(source)
        elif not source.held:  # whatever could not be renewed has ended
            self._failing.discard(source)
        for task in lost:
            self._tell_lost(task)

    def _due(self, source: Source) -> list[Task]:
        """Return the tasks whose lease was last written an interval ago, or for less than it should be by now."""
        now = self._clock()
        return [
            task
            for task in source.held
            if self._chosen(task)
            and task.deadline - now <= self._due_length(source, task, now) - self._interval_of(task)
        ]

    def _due_length(self, source: Source, task: Task, now: float) -> float:
        """Return for how long its lease should have been written; what is over at once need not have a longer one."""
        if task.started and (task.concluded or now < task.begun_at + min(self._interval, _BRIEF)):
            return min(source.lease_time(task), source.times.prefetch_time)
        return source.lease_time(task)

    def _interval_of(self, task: Task) -> float:
        """Return the seconds between two renewals: a lease of the task's own may be shorter than what is configured."""
        return self._interval if task.alive_time is None else min(self._interval, task.alive_time / 4)

    def _tell_lost(self, task: Task) -> None:
        log.info("key=%s preempted: its lease is no longer ours", task.key)
        for runner in self._runners:
            run = runner.current()
            if run is not None and run.task is task:
                reason = PreemptedError(
                    f"{task.key!r}: the lease of this run is lost; another worker may be running it"
                )
                run.tell(reason, self._clock())

    def _failed(self, source: Source, error: Exception) -> None:
        if source not in self._failing:
            log.warning("leases cannot be renewed: %s; runs are stopped before their leases end", one_line(error))
        self._failing.add(source)


@contextmanager
def _locked(tasks: Sequence[Task]) -> Iterator[list[Task]]:
    """Hold the locks of those tasks that are not being settled at this moment."""
    with ExitStack() as stack:
        free = []
        for task in tasks:
            if task.lock.acquire(blocking=False):
                stack.callback(task.lock.release)
                if not task.settled:
                    free.append(task)
        yield free
