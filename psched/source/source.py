"""Acquires due rows of one store as tasks, and knows which of these are in flight. In clients and children."""

from __future__ import annotations

import logging
import math
import os
import threading
from collections.abc import Collection, Sequence
from weakref import ref

from psched import fork_safety
from psched.clock import Clock, boottime
from psched.errors import RUN_IS_OVER
from psched.model import WORKER_DIED, Claim
from psched.source.unrunnable import RunnableFilter
from psched.store import Accepts, LeaseStore
from psched.suggest import shown
from psched.task import Completion, LeaseTimes, Task

log = logging.getLogger(__name__)

_MAINTENANCE_INTERVAL = 1.0
"""Seconds between two deletions of old rows while tasks are run."""
_MAINTENANCE_SECONDS = 0.05
"""Seconds for which deleting old rows may delay a poll, give or take a statement."""
_MAX_ACQUIRE = 100_000
_MIN_PRUNED = 1000
"""References to acquired tasks that are kept at least before those to settled ones are removed."""
_MAX_ROUNDS = 50
"""How often one poll acquires again when none of the acquired rows can be run; rows due behind them must not wait."""


class Source:
    """Polls one store. Safe to use from several threads."""

    def __init__(self, store: LeaseStore, completion: Completion, times: LeaseTimes, clock: Clock = boottime) -> None:
        self.times = times
        self.store = store
        self.open_wakeup = store.open_wakeup
        self._completion = completion
        self._clock = clock
        self._runnable = RunnableFilter(store, completion, times.backoff.seconds, clock)
        self._maintained_at = -math.inf
        self._maintenance_fails = False
        self.begin_anew()
        fork_safety.register_for_fork(self)

    def begin_anew(self) -> None:
        """Hold no task, as at first; in a forked process, since the tasks belong to its parent."""
        self._acquired: list[ref[Task]] = []
        self._prune_at = _MIN_PRUNED
        self._pruning = threading.Lock()

    @property
    def held(self) -> list[Task]:
        """The acquired tasks that are in flight, in the order of their acquire, and still referenced elsewhere."""
        return [task for kept in self._acquired[:] if (task := kept()) is not None and task.in_flight]

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

        `ahead`: the caller runs them one after another and renews the leases meanwhile, so that they may be short. That
        caller also calls `maintain` itself.
        """
        given: object = max_acquire
        if not isinstance(given, int) or given > _MAX_ACQUIRE:
            raise ValueError(f"max_acquire must be a whole number of at most {_MAX_ACQUIRE}, got {shown(max_acquire)}")
        if not ahead:
            self.maintain()
        started = not ahead or max_acquire == 1
        lease_time = self.times.lease_time(started)
        seen: set[str] = set()
        for _ in range(_MAX_ROUNDS):
            asked = self._clock()
            claims = self.store.acquire(max_acquire, lease_time, types, accepts, ahead=not started)
            runnable = self._runnable.split_runnable(claims)
            left = [claim for claim in runnable if not self._passes_over(claim, claim.lease.expires_at - lease_time)]
            tasks = self._adopt(left, asked + lease_time, started)
            keys = {claim.row.key for claim in claims}
            # Stop when nothing was due, or the same unrunnable rows came back at once; but go on after passing over.
            is_over = keys <= seen and len(left) == len(runnable)
            if tasks or is_over:
                return tasks
            seen |= keys
        return []

    def adopt(self, claim: Claim, asked: float) -> Task:
        """Return the task of a row acquired by another call, made at `asked` (boottime), for `alive_time`."""
        return self._adopt([claim], asked + self.times.alive_time, True)[0]

    def give_back(self, holder: str, suspects: Collection[str], error: str = WORKER_DIED) -> int:
        """Give back the rows that a dead holder leased; see `LeaseStore.give_back`."""
        return self.store.give_back(holder, suspects, self.times.backoff.limit, error)

    def maintain(self, idle: bool = False) -> bool:
        """Delete old rows for a moment, if the last time was long enough ago; more rarely while `idle`.

        Returns whether more rows are to be deleted than that moment allowed. A failure is logged, never raised.
        """
        now = self._clock()
        if now < self._maintained_at + (self._completion.maintenance_interval if idle else _MAINTENANCE_INTERVAL):
            return False
        self._maintained_at = now
        try:
            while self._completion.maintain():
                if self._clock() >= now + _MAINTENANCE_SECONDS:
                    self._maintained_at = -math.inf
                    return True
            self._maintenance_fails = False
        except Exception as error:  # noqa: BLE001 – a poll must not fail because old rows cannot be deleted
            if not self._maintenance_fails and not self.store.is_unavailable(error):
                log.warning("deleting old rows failed: %s; retrying", error)
            self._maintenance_fails = True
        return False

    def _adopt(self, claims: Sequence[Claim], deadline: float, started: bool) -> list[Task]:
        pid = os.getpid()
        completion, times, clock = self._completion, self.times, self._clock
        tasks = [Task(claim, completion, times, deadline, started, clock, pid) for claim in claims]
        # A list of references without callbacks: 0.4 µs a task less than a WeakValueDictionary (2026-11-22).
        self._acquired.extend([ref(task) for task in tasks])
        if len(self._acquired) > self._prune_at and self._pruning.acquire(blocking=False):
            try:
                self._prune()
            finally:
                self._pruning.release()
        return tasks

    def _prune(self) -> None:
        """Remove references to tasks that are gone or settled; other threads may append meanwhile."""
        before = self._acquired[:]
        left = [kept for kept in before if (task := kept()) is not None and task.in_flight]
        self._acquired[: len(before)] = left
        self._prune_at = max(2 * len(left), _MIN_PRUNED)

    def _passes_over(self, claim: Claim, now: float) -> bool:
        """Settle a row that was acquired at `now`, by the database's clock, and is not to be run any more."""
        try:
            return self._completion.pass_over(claim, now, self._clock())
        except RUN_IS_OVER as lost:
            log.info("key=%s not skipped: %s", claim.row.key, lost)
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can be run all the same
            log.warning("key=%s not skipped: %s; retrying when its lease ends", claim.row.key, failure)
        return True
