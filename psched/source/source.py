"""The tasks that a source took and that are not settled: for as long as somebody else holds on to them. Any process."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ref

from psched import fork_safety as forks
from psched.backoff import Backoff
from psched.clock import Clock, boottime
from psched.errors import RUN_IS_OVER, ScheduleError
from psched.model import WORKER_DIED, Claim, NewTask, Row, version_of
from psched.source.completion import Completion
from psched.source.unrunnable import RunnableFilter
from psched.store import Accepts, LeaseStore
from psched.suggest import shown
from psched.task import Task

_FEW = 1000


class InFlightTasks:
    """Tasks that nobody has dropped; whoever dropped his is not kept from it. Safe to use from several threads.

    Two may have one key, when the row was deleted and came again during a run: each is held, and told what became of
    its lease. Plain references in a plain dictionary, by what an object is known by while it lives, since tasks come
    and go by the hundred; dropped ones are swept out when there are more than twice as many as were alive before.
    """

    def __init__(self) -> None:
        self.begin_anew()
        forks.register_for_fork(self)

    def begin_anew(self) -> None:
        """Hold nothing, as at first; in a process that was forked off, whose parent holds its own tasks."""
        self._lock = threading.Lock()
        self._tasks: dict[int, ref[Task]] = {}
        self._swept_at = _FEW

    def all(self) -> list[Task]:
        """Return those that are alive."""
        with self._lock:
            return self._alive()

    def add(self, tasks: Iterable[Task]) -> None:
        """Hold these."""
        with self._lock:
            for task in tasks:
                self._tasks[id(task)] = ref(task)
            if len(self._tasks) > self._swept_at:
                self._tasks = {id(task): ref(task) for task in self._alive()}
                self._swept_at = max(2 * len(self._tasks), _FEW)

    def remove(self, tasks: Iterable[Task]) -> None:
        """Hold these no longer; another task of the same key stays."""
        with self._lock:
            for task in tasks:
                self._tasks.pop(id(task), None)

    def _alive(self) -> list[Task]:
        return [task for kept in self._tasks.values() if (task := kept()) is not None]


log = logging.getLogger(__name__)

_TIDYING = 1.0
"""Seconds between two looks at what can be tidied up."""
_TIDYING_SPAN = 0.05
"""Seconds that tidying up may keep a poll waiting, give or take a statement."""


class Maintenance:
    """Calls what removes old rows, now and then, for a moment."""

    def __init__(self, store: LeaseStore, completion: Completion, clock: Clock = boottime) -> None:
        self._store = store
        self._completion = completion
        self._clock = clock
        self._tidied = -math.inf
        self._fails = False

    def maintain(self, idle: bool = False) -> bool:
        """Tidy up now and then, for a moment, more rarely while nothing is run. Whether it works matters to nobody.

        Returns whether there was more to be removed than that moment allowed.
        """
        now = self._clock()
        if now < self._tidied + (self._completion.maintenance if idle else _TIDYING):
            return False
        self._tidied = now
        try:
            while self._completion.maintain():
                if self._clock() >= now + _TIDYING_SPAN:
                    self._tidied = -math.inf
                    return True
            self._fails = False
        except Exception as error:  # noqa: BLE001 – a poll must not fail for what it does besides
            if not self._fails and not self._store.is_unavailable(error):
                log.warning("deleting old rows failed: %s; retrying", error)
            self._fails = True
        return False


_MOST = 100_000
"""Rows that one poll may be asked for."""

_ROUNDS = 50
"""How often one poll acquires anew when nothing of what it got can be run; what is due behind that must not wait."""


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """How long leases and waits are, in seconds.

    `alive_time` for what runs; `prefetch_time` for what was taken ahead and has not begun, so that little waits for
    long when its holder dies; `retry_wait` between a failure and the next attempt.
    """

    alive_time: float
    retry_wait: float | Backoff
    prefetch_time: float

    @property
    def backoff(self) -> Backoff:
        """How long to wait after each failure."""
        return Backoff.of(self.retry_wait)

    def lease_time(self, started: bool) -> float:
        """Return how long a lease lasts from when it is written."""
        return self.alive_time if started else self.prefetch_time


class Source:
    """Polls one store and keeps what it took. Safe to use from several threads."""

    def __init__(self, store: LeaseStore, completion: Completion, times: LeaseTimes, clock: Clock = boottime) -> None:
        self.times = times
        self.shows_fence = store.shows_fence
        self.max_data_size = store.max_data_size
        self.keeps_data = completion.keeps_data
        self.store = store
        self.open_wakeup = store.open_wakeup
        self._completion = completion
        self._clock = clock
        self._held = InFlightTasks()
        self._sieve = RunnableFilter(store, completion, self.retry, times.backoff.seconds, clock)
        self._tidying = Maintenance(store, completion, clock)
        self.maintain = self._tidying.maintain
        """Tidy up now and then. `poll_multi` does so unless it takes `ahead`."""

    @property
    def held(self) -> list[Task]:
        """The tasks this source acquired that are neither settled, nor lost, nor dropped by whoever polled them."""
        return self._held.all()

    def poll(self, types: Collection[str] | None = None) -> Task | None:
        """Acquire the row that has been due longest, or None when nothing is due."""
        tasks = self.poll_multi(1, types)
        return tasks[0] if tasks else None

    def poll_multi(
        self,
        max_acquire: int,
        types: Collection[str] | None = None,
        ahead: bool = False,
        accepts: Accepts | None = None,
    ) -> list[Task]:
        """Acquire up to `max_acquire` due rows, earliest first; `types` and `accepts` as for `LeaseStore.acquire`.

        `ahead`: the caller runs them one after another and renews the leases meanwhile, so they may start short. He
        also calls `tidy` when nobody waits for an answer.
        """
        given: object = max_acquire
        if not isinstance(given, int) or given > _MOST:
            raise ValueError(f"max_acquire must be a whole number of at most {_MOST}, got {shown(max_acquire)}")
        if not ahead:
            self.maintain()
        started = not ahead or max_acquire == 1
        lease_time = self.times.lease_time(started)
        seen: set[str] = set()
        for _ in range(_ROUNDS):
            asked = self._clock()
            claims = self.store.acquire(max_acquire, lease_time, types, accepts, ahead=not started)
            able = self._sieve.able(claims)
            left = [claim for claim in able if not self._is_passed_over(claim, claim.lease.expires_at - lease_time)]
            tasks = self._adopt(left, asked + lease_time, started)
            keys = {claim.row.key for claim in claims}
            # Nothing was due, or what cannot be run came back at once; but what is passed over goes on.
            is_over = keys <= seen and len(left) == len(able)
            if tasks or is_over:
                return tasks
            seen |= keys
        return []

    def adopt(self, claim: Claim, asked: float) -> Task:
        """Return the task of a row that was acquired otherwise, asked for at `asked`, for `alive_time`."""
        return self._adopt([claim], asked + self.times.alive_time, True)[0]

    def extend(self, tasks: Sequence[Task]) -> list[Task]:
        """Renew the leases of `tasks` and return the ones that are lost.

        The caller holds each task's lock.
        """
        lost = []
        for lease_time, begun in {(self.lease_time(task), task.started) for task in tasks}:
            group = [task for task in tasks if (self.lease_time(task), task.started) == (lease_time, begun)]
            lost += self._extend(group, lease_time, begun)
        return lost

    def lease_time(self, task: Task) -> float:
        """Return for how many seconds a renewal makes the lease of `task` last."""
        own = task.alive_time if task.started else None
        return self.times.lease_time(task.started) if own is None else own

    def finish(self, claim: Claim, until: float) -> str:
        """Settle the claimed run as done."""
        self._completion.finish(claim, until)
        return "finished"

    def finish_many(self, tasks: Sequence[Task], until: float) -> list[ScheduleError | None]:
        """Finish runs together; for each None, or why it could not be. The caller holds each task's lock.

        What the driver raises leaves it unknown what became of them; they may then be finished again.
        """
        for task in tasks:
            self._save_late(task, until)
        try:
            if len(tasks) == 1:
                errors = [self._finish_one(tasks[0], until)]
            else:
                errors = self._completion.finish_many([task.claim for task in tasks], until)
        except BaseException:
            for task in tasks:
                task.settling_unanswered()
            raise
        for task, error in zip(tasks, errors, strict=True):
            if error is None:
                task.settled_as("finished")
        self._held.remove(tasks)
        return errors

    def _finish_one(self, task: Task, until: float) -> ScheduleError | None:
        try:
            self._completion.finish(task.claim, until)
        except ScheduleError as error:
            return error
        return None

    def _save_late(self, task: Task, until: float) -> None:
        """Write data that was changed since the run was concluded, by a thread of its handler for instance."""
        try:
            task.save(until)
        except RUN_IS_OVER as error:
            log.info("key=%s its data was not written: %s", task.key, error)

    def finish_by(self, claim: Claim, task: NewTask, until: float) -> str:
        """Settle the claimed run as done by submitting `task`."""
        self._completion.finish_by(claim, task, until)
        return "finished"

    def retry(
        self, claim: Claim, wait: float | None, error: str | None, until: float, max_attempts: int | None = None
    ) -> str:
        """Make the claimed row due `wait` seconds from now (None: `retry_wait`), or end it when it is not to go on."""
        if claim.lease.cancel_requested:
            return self.cancel(claim, until)
        row = claim.row
        while (allowed := self._completion.attempts_allowed(row, max_attempts)) is not None and row.attempts >= allowed:
            worn_out = row.attempts > allowed  # and this attempt was not begun
            ended = claim._replace(row=row.attempted(row.attempts - 1) if worn_out else row)
            changed = self._completion.fail(ended, error, until)
            if changed is None:
                return "failed"
            row = changed
        seconds = self.times.backoff.seconds(row.attempts) if wait is None else wait
        self.store.retry(claim.lease, seconds, error, until)
        return "retried"

    def retry_seconds(self, attempts: int) -> float:
        """Return the configured `retry_wait` after so many attempts; it may be another each time (jitter)."""
        return self.times.backoff.seconds(attempts)

    def defer(self, claim: Claim, error: str, until: float) -> str:
        """Make the claimed row due after the longest `retry_wait`, the attempt not counted, or end it if cancelled."""
        if claim.lease.cancel_requested:
            return self.cancel(claim, until)
        wait, version = self.times.backoff.limit, version_of(claim.row)
        self.store.retry(claim.lease, wait, error, until, counted=False, version=version)
        return "retried"

    def release(self, claim: Claim, until: float) -> str:
        """Make the claimed row due now, or end it when it was to be cancelled."""
        if claim.lease.cancel_requested:
            return self.cancel(claim, until)
        self.store.release(claim.lease, until)
        return "released"

    def cancel(self, claim: Claim, until: float) -> str:
        """Settle the claimed run as cancelled."""
        self._completion.cancel(claim, until)
        return "cancelled"

    def save(self, claim: Claim, data: Mapping[str, Any], until: float) -> None:
        """Write the data of the claimed run."""
        self._completion.save(claim, data, until)

    def attempts_allowed(self, row: Row, max_attempts: int | None) -> int | None:
        """Return after how many attempts the row has failed; None: never."""
        return self._completion.attempts_allowed(row, max_attempts)

    def forget(self, task: Task) -> None:
        """Count `task` no longer among the held."""
        self._held.remove((task,))

    def give_back(self, holder: str, suspects: Collection[str], error: str = WORKER_DIED) -> int:
        """Give back what a dead holder leased; see `LeaseStore.give_back`."""
        return self.store.give_back(holder, suspects, self.times.backoff.limit, error)

    def _adopt(self, claims: Sequence[Claim], deadline: float, started: bool) -> list[Task]:
        pid = os.getpid()
        tasks = [Task(claim, self, deadline, started, self._clock, pid) for claim in claims]
        self._held.add(tasks)
        return tasks

    def _extend(self, tasks: list[Task], lease_time: float, begun: bool) -> list[Task]:
        asked = self._clock()
        leases = self.store.extend([task.lease for task in tasks], lease_time, begun)
        lost = []
        for task, lease in zip(tasks, leases, strict=True):
            if lease is None:
                lost.append(task)
                task.lost()
                self.forget(task)
            else:
                task.renewed(lease, asked + lease_time)
        for task in tasks:
            if task not in lost:
                self._save(task)
        return lost

    def _save(self, task: Task) -> None:
        """Write changed data. What fails is tried again with the next renewal, which finds out what is lost."""
        try:
            task.save(self._clock())
        except RUN_IS_OVER as error:
            log.info("key=%s its data was not written: %s", task.key, error)
        except Exception as error:  # noqa: BLE001 – the leases were renewed, and that is what the caller must hear of
            log.warning("key=%s its data was not written yet: %s", task.key, error)

    def _is_passed_over(self, claim: Claim, now: float) -> bool:
        """Settle what was acquired at `now`, by the database's clock, and is not to be run any more."""
        try:
            return self._completion.pass_over(claim, now, self._clock())
        except RUN_IS_OVER as lost:
            log.info("key=%s was not passed over: %s", claim.row.key, lost)
        except Exception as failure:  # noqa: BLE001 – what was acquired with it can be run all the same
            log.warning("key=%s was not passed over: %s; it comes back when its lease ends", claim.row.key, failure)
        return True
