"""Keeps the leases of what a child runs alive: a thread that does nothing else, so that nothing else delays it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from psched.clock import Clock, boottime
from psched.errors import PreemptedError
from psched.execution.periodic_thread import PeriodicThread
from psched.execution.runner import Runner, give_back
from psched.process.logs import one_line
from psched.source.source import Source
from psched.task import Task, extend_many
from psched.telemetry import emit

_LONGEST_TICK = 1.0
_AGAIN = 0.25
"""Seconds between two attempts while leases cannot be renewed: connections may be lost one after the other."""


class RunningLeaseRenewer:
    """Renews the leases of what runs."""

    def __init__(
        self, sources: Sequence[Source], runners: Sequence[Runner], interval: float, clock: Clock = boottime
    ) -> None:
        """`interval`: seconds between two renewals of one lease (`task_heartbeat_interval`)."""
        self._renewal = LeaseRenewal(sources, runners, interval, is_at_work, clock)
        self._interval = min(interval, _LONGEST_TICK)
        self.ticker = PeriodicThread("keeper", self.tick, self._interval)

    def tick(self) -> bool:
        """Renew what is due; returns True while anything is held."""
        holds = self._renewal.renew()
        self.ticker.interval = min(self._interval, _AGAIN) if self._renewal.failing else self._interval
        return holds


def is_at_work(task: Task) -> bool:
    """Tell whether a task was begun and has not come to its end."""
    return task.started and not task.concluded


log = logging.getLogger(__name__)

_BRIEF = 1.0
"""Seconds for which a run that was taken ahead keeps its short lease: one that is over by then costs no renewal."""


class LeaseRenewal:
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
                lost = extend_many(tasks) if tasks else []
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
            return min(task.lease_time, source.times.prefetch_time)
        return task.lease_time

    def _interval_of(self, task: Task) -> float:
        """Return the seconds between two renewals: a lease of the task's own may be shorter than what is configured."""
        return self._interval if task.alive_time is None else min(self._interval, task.alive_time / 4)

    def _tell_lost(self, task: Task) -> None:
        emit("lease_lost", task=task)
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


_PATIENCE = 1.0
"""What waits behind a handler that has been running for so many seconds is given back, for others to run."""


class PrefetchedLeaseRenewer:
    """Gives back what cannot begin soon, settles what has waited for others for too long, renews the rest."""

    def __init__(
        self, sources: Sequence[Source], runners: Sequence[Runner], interval: float, clock: Clock = boottime
    ) -> None:
        """`interval`: seconds between two renewals of one lease (`task_heartbeat_interval`)."""
        self.ticker = PeriodicThread("steward", self.tick, min(interval, _PATIENCE))
        self.stopping = False
        self._runners = runners
        self._renewal = LeaseRenewal(sources, runners, interval, lambda task: not is_at_work(task), clock)
        self._clock = clock

    def tick(self) -> bool:
        """Do what is due now; True while anything is held."""
        self._give_back()
        for runner in self._runners:
            runner.flush_overdue()
        return self._renewal.renew()

    def stop(self) -> None:
        """Give back at once whatever has not begun."""
        self.stopping = True
        self.ticker.poke(urgent=True)

    def _give_back(self) -> None:
        """Give back what need not wait here. Where one fails the others would, too: they are tried again next time."""
        for runner in self._runners:
            if self.stopping or runner.busy_for() > _PATIENCE:
                all(self._not_begun_is_given_back(task) for task in runner.waiting())

    def _not_begun_is_given_back(self, task: Task) -> bool:
        """Give back a task unless it has begun, or its lease is over; False when that failed."""
        with task.lock:
            return task.started or self._clock() >= task.deadline or give_back(task)
