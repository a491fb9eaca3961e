"""Where tasks come from and go back to: polling, renewing, retrying and releasing, once for schedules and queue alike.

Used in children and in clients that poll themselves. What differs between the two, how a run is finished and which
rows cannot be run, is their `Completion`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from psched.clock import Clock, boottime
from psched.errors import NotFoundError, PreemptedError
from psched.model import Claim, Row
from psched.store import LeaseStore
from psched.task import Task

log = logging.getLogger(__name__)


class Completion(Protocol):
    """How the runs of one kind of row are finished."""

    def finish(self, claim: Claim, until: float) -> None:
        """Settle the claimed run as done. Raises PreemptedError, NotFoundError, AlreadyFinishedError."""
        ...

    def problem(self, row: Row) -> str | None:
        """Say why this row cannot be run, and the remedy; None when it can."""
        ...


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long leases and waits are, in seconds.

    `alive_time` for what runs; `prefetch_time` for what was taken ahead and has not begun, so that little waits for
    long when its holder dies; `retry_wait` between a failure and the next attempt.
    """

    alive_time: float
    retry_wait: float
    prefetch_time: float

    def lease_time(self, started: bool) -> float:
        """Return how long a lease lasts from when it is written."""
        return self.alive_time if started else self.prefetch_time


class Source:
    """Polls one store and keeps what it took. Safe to use from several threads."""

    def __init__(self, store: LeaseStore, completion: Completion, times: LeaseTimes, clock: Clock = boottime) -> None:
        self.times = times
        self.shows_fence = store.shows_fence
        self.store = store
        self._completion = completion
        self._clock = clock
        self._lock = threading.Lock()
        self._held: WeakValueDictionary[str, Task] = WeakValueDictionary()
        self._reported: dict[str, str] = {}

    @property
    def held(self) -> list[Task]:
        """The tasks this source acquired that are neither settled, nor lost, nor dropped by whoever polled them."""
        with self._lock:
            return list(self._held.values())

    def poll(self, types: Collection[str] | None = None) -> Task | None:
        """Acquire the row that has been due longest, or None when nothing is due."""
        tasks = self.poll_multi(1, types)
        return tasks[0] if tasks else None

    def poll_multi(self, max_acquire: int, types: Collection[str] | None = None, ahead: bool = False) -> list[Task]:
        """Acquire up to `max_acquire` due rows, earliest first.

        `ahead`: the caller runs them one after another and renews the leases meanwhile, so they may start short.
        """
        asked = self._clock()
        started = not ahead or max_acquire == 1
        lease_time = self.times.lease_time(started)
        claims = self.store.acquire(max_acquire, lease_time, types)
        deadline = asked + lease_time
        tasks = [Task(claim, self, deadline, started, self._clock) for claim in claims if self._can_run(claim)]
        with self._lock:
            self._held.update((task.key, task) for task in tasks)
        return tasks

    def extend(self, tasks: Sequence[Task]) -> list[Task]:
        """Renew the leases of `tasks` and return the ones that are lost.

        The caller holds each task's lock.
        """
        lost = []
        for started in (True, False):
            group = [task for task in tasks if task.started is started]
            if group:
                lost += self._extend(group, self.times.lease_time(started))
        return lost

    def finish(self, claim: Claim, until: float) -> None:
        """Settle the claimed run as done."""
        self._completion.finish(claim, until)

    def retry(self, claim: Claim, wait: float | None, error: str | None, until: float) -> None:
        """Make the claimed row due `wait` seconds from now (None: `retry_wait`)."""
        self.store.retry(claim.lease, self.times.retry_wait if wait is None else wait, error, until)

    def release(self, claim: Claim, until: float) -> None:
        """Make the claimed row due now."""
        self.store.release(claim.lease, until)

    def forget(self, task: Task) -> None:
        """Count `task` no longer among the held."""
        with self._lock:
            if self._held.get(task.key) is task:
                del self._held[task.key]

    def give_back(self, holder: str, suspects: Collection[str]) -> int:
        """Give back what a dead holder leased; see `LeaseStore.give_back`."""
        return self.store.give_back(holder, suspects, self.times.retry_wait)

    def _extend(self, tasks: list[Task], lease_time: float) -> list[Task]:
        asked = self._clock()
        leases = self.store.extend([task.lease for task in tasks], lease_time)
        lost = []
        for task, lease in zip(tasks, leases, strict=True):
            if lease is None:
                lost.append(task)
                self.forget(task)
            else:
                task.renewed(lease, asked + lease_time)
        return lost

    def _can_run(self, claim: Claim) -> bool:
        row = claim.row
        problem = row.problem if row.problem is not None else self._completion.problem(row)
        if problem is None:
            return True
        if self._reported.get(row.key) != problem:
            self._reported[row.key] = problem
            log.error("key=%s cannot be run: %s; it is left alone until then", row.key, problem)
        self._put_off(claim, problem)
        return False

    def _put_off(self, claim: Claim, problem: str) -> None:
        try:
            self.retry(claim, None, problem, self._clock())
        except (PreemptedError, NotFoundError) as error:
            log.info("key=%s was not put off: %s", claim.row.key, error)
