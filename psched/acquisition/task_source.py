"""Acquires due rows of one store as tasks, and deletes old rows."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Collection, Mapping, Sequence
from weakref import WeakValueDictionary

from psched import fork_safety
from psched.acquisition.unrunnable_rows import RunnableFilter
from psched.clock import Clock, boottime
from psched.error_messages import one_line, shown
from psched.errors import RUN_IS_OVER
from psched.model import WORKER_DIED, Claim, LeaseTimes
from psched.settlement_base import Settlement
from psched.store import Accepts, LeaseStore
from psched.task import Task

log = logging.getLogger(__name__)

_MAINTENANCE_INTERVAL = 1.0
"""Seconds between two deletions of old rows while tasks run."""
_MAINTENANCE_SECONDS = 0.05
"""Seconds that one deletion of old rows may take. After this time it begins no further statement."""
_MAX_ACQUIRE = 100_000
_GROWTH = 4
_LARGEST = 500
"""The maximum number of rows of a repeated acquire. A poll whose rows cannot be run acquires again, each time `_GROWTH`
times as many rows."""
_MAX_ROUNDS = 50
"""The maximum number of acquires in one poll. A poll acquires again if none of its rows can be run."""


class TaskSource:
    """Acquires rows of one store as tasks. Safe to use from several threads."""

    def __init__(self, store: LeaseStore, settlement: Settlement, times: LeaseTimes, clock: Clock = boottime) -> None:
        self.times = times
        self.store = store
        self.open_wakeup = store.open_wakeup
        self.settlement = settlement
        self._clock = clock
        self._runnable = RunnableFilter(store, settlement, times, clock)
        self._maintained_at = -math.inf
        self._maintenance_fails = False
        self.reset_after_fork()
        fork_safety.register_for_fork(self)

    def reset_after_fork(self) -> None:
        """Forget all tasks. Called in a forked process, because the tasks belong to the parent."""
        self._acquired: WeakValueDictionary[int, Task] = WeakValueDictionary()

    @property
    def held(self) -> list[Task]:
        """The acquired tasks that are not settled yet, in the order in which they were acquired.

        Tasks that the caller no longer references are left out.
        """
        return [task for kept in self._acquired.valuerefs() if (task := kept()) is not None and task.in_flight]

    def poll_multi(
        self,
        max_acquire: int,
        types: Collection[str] | None = None,
        ahead: bool = False,
        accepts: Accepts | None = None,
    ) -> list[Task]:
        """Acquire up to `max_acquire` due rows, earliest first. `types` and `accepts` are as for `LeaseStore.acquire`.

        `ahead`: whether the caller runs the tasks one after another, renews their leases and calls `maintain`. With
        `ahead` the leases are short if `max_acquire` is more than 1.
        """
        started = not ahead or max_acquire == 1
        claims, deadline = self.fetch_multi(max_acquire, types, not started, accepts, ahead)
        return self.adopt_many(claims, deadline, started)

    def fetch_multi(
        self,
        max_acquire: int,
        types: Collection[str] | None = None,
        is_prefetch: bool = True,
        accepts: Accepts | None = None,
        maintains: bool = True,
    ) -> tuple[list[Claim], float]:
        """Acquire up to `max_acquire` due rows.

        Return their claims, and when the first lease ends, in boottime seconds. `types` and `accepts` are as for
        `LeaseStore.acquire`. `is_prefetch`: whether the runs begin later. `maintains`: whether the caller itself calls
        `maintain`.
        """
        given: object = max_acquire
        if not isinstance(given, int) or given > _MAX_ACQUIRE:
            raise ValueError(f"max_acquire must be a whole number of at most {_MAX_ACQUIRE}, got {shown(max_acquire)}")
        if not maintains:
            self.maintain()
        lease_time = self.times.lease_time(not is_prefetch)
        seen: set[str] = set()
        limit = max_acquire
        for _ in range(_MAX_ROUNDS):
            asked = self._clock()
            claims = self.store.acquire(limit, lease_time, types, accepts, ahead=is_prefetch)
            runnable = self._runnable.split_runnable(claims)
            left = [claim for claim in runnable if not self._passes_over(claim, claim.lease.expires_at - lease_time)]
            if len(left) > max_acquire:
                self.release(left[max_acquire:], asked + lease_time)
            keys = {claim.row.key for claim in claims}
            # Stop if nothing was due or the same unrunnable rows came back. Continue if rows were passed over.
            is_over = keys <= seen and len(left) == len(runnable)
            if left or is_over:
                return left[:max_acquire], asked + lease_time
            seen |= keys
            limit = max(max_acquire, min(_GROWTH * limit, _LARGEST))
        return [], 0.0

    def release(self, claims: Sequence[Claim], deadline: float) -> None:
        """Release acquired rows that this process will not run.

        Each row gets back its due time from before the acquire.
        """
        try:
            self.store.release_many([claim.lease for claim in claims], deadline, begun=False)
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can still be run
            log.warning("%d rows were not released: %s; their leases expire", len(claims), one_line(failure))

    def adopt(self, claim: Claim, asked: float) -> Task:
        """Return the task of an acquired row whose lease lasts `alive_time`.

        `asked`: when the acquire was sent, in boottime seconds.
        """
        return self.adopt_many([claim], asked + self.times.alive_time, True)[0]

    def give_back(
        self,
        holder: str,
        suspects: Collection[str],
        error: str = WORKER_DIED,
        claims: Mapping[str, int] | None = None,
    ) -> int:
        return self.store.give_back(holder, suspects, self.times.backoff.limit, error, claims)

    def maintain(self, idle: bool = False) -> bool:
        """Delete old rows if the last deletion is long enough ago. Return True if old rows are left.

        `idle`: delete less often. A call takes about `_MAINTENANCE_SECONDS` at most, and raises no errors.
        """
        now = self._clock()
        if now < self._maintained_at + (self.settlement.maintenance_interval if idle else _MAINTENANCE_INTERVAL):
            return False
        self._maintained_at = now
        try:
            while self.settlement.maintain():
                if self._clock() >= now + _MAINTENANCE_SECONDS:
                    self._maintained_at = -math.inf
                    return True
            self._maintenance_fails = False
        except Exception as error:  # noqa: BLE001 – a poll must not fail because old rows cannot be deleted
            if not self._maintenance_fails and not self.store.is_unavailable(error):
                log.warning("deleting old rows failed: %s; retrying", one_line(error))
            self._maintenance_fails = True
        return False

    def adopt_many(self, claims: Sequence[Claim], deadline: float, started: bool) -> list[Task]:
        """Return the tasks of acquired rows. Their leases last at least until `deadline` (boottime)."""
        pid = os.getpid()
        settlement, times, clock = self.settlement, self.times, self._clock
        tasks = [Task(claim, settlement, times, deadline, started, clock, pid) for claim in claims]
        self._acquired.update((id(task), task) for task in tasks)
        return tasks

    def _passes_over(self, claim: Claim, now: float) -> bool:
        """Settle the run if it must be skipped. Return True if it must be skipped, and also after an error.

        `now`: the time of the acquire, by the database's clock.
        """
        try:
            return self.settlement.pass_over(claim, now, self._clock())
        except RUN_IS_OVER as lost:
            log.info("key=%s was not run, and its skip or pause was not stored: %s", claim.row.key, lost)
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can still be run
            words = "key=%s was not run, and its skip or pause was not stored: %s; retrying when its lease ends"
            log.warning(words, claim.row.key, one_line(failure))
        return True
