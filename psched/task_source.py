"""Acquires due rows of one store as tasks, for the types that have handlers, and defers rows that cannot be run.

`PolledTable` is the base class of the two public table classes, `ScheduleCollection` and `Queue`.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from typing import Self, TypeVar
from weakref import ref

from psched import fork_safety
from psched.async_methods import async_twin
from psched.base_settlement import Settlement
from psched.clock import Clock, boottime, monotonic
from psched.config import Section, SectionName, Settings, attach_listeners
from psched.error_messages import one_line, shown
from psched.errors import RUN_IS_OVER, ConfigError, ScheduleError
from psched.model import WORKER_DIED, Claim, LeaseTimes, Retry, version_of
from psched.payload import check_key
from psched.store import Accepts, LeaseStore, Wakeup, holder_name
from psched.store.type_filter import TypeFilter
from psched.task import Task

Opened = TypeVar("Opened", bound="PolledTable")

log = logging.getLogger(__name__)

_MAINTENANCE_INTERVAL = 1.0
"""Seconds between two deletions of old rows while tasks run."""
_MAINTENANCE_SECONDS = 0.05
"""Seconds, plus at most one statement, that deleting old rows may delay a poll."""
_MAX_ACQUIRE = 100_000
_MIN_PRUNED = 1000
"""References to acquired tasks kept before those to settled tasks are removed."""
_GROWTH = 4
_LARGEST = 500
"""After rows that cannot be run, the next acquire takes some times as many, at most so many: thousands may be due."""
_MAX_ROUNDS = 50
"""Acquires in one poll while none of the acquired rows can be run: rows due behind them must not wait."""


class Source:
    """Safe to use from several threads."""

    def __init__(self, store: LeaseStore, settlement: Settlement, times: LeaseTimes, clock: Clock = boottime) -> None:
        self.times = times
        self.store = store
        self.open_wakeup = store.open_wakeup
        self._settlement = settlement
        self._clock = clock
        self._runnable = RunnableFilter(store, settlement, times.backoff.seconds, clock)
        self._maintained_at = -math.inf
        self._maintenance_fails = False
        self.reset_after_fork()
        fork_safety.register_for_fork(self)

    def reset_after_fork(self) -> None:
        """Forget all tasks. Called in a forked process, since the tasks belong to the parent."""
        self._acquired: list[ref[Task]] = []
        self._prune_at = _MIN_PRUNED
        self._pruning = threading.Lock()

    @property
    def held(self) -> list[Task]:
        """The tasks in flight, in the order of their acquires, without those that nothing refers to any more."""
        return [task for kept in self._acquired[:] if (task := kept()) is not None and task.in_flight]

    def poll_multi(
        self,
        max_acquire: int,
        types: Collection[str] | None = None,
        ahead: bool = False,
        accepts: Accepts | None = None,
    ) -> list[Task]:
        """Acquire up to `max_acquire` due rows, earliest first; `types` and `accepts` as for `LeaseStore.acquire`.

        `ahead`: leases are short, as the caller runs the tasks one after another and renews the leases meanwhile. That
        caller also calls `maintain`.
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
        """Acquire like `poll_multi`; return the claims, for `adopt_many`, and the earliest end of their leases."""
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
            # Stop when nothing was due, or the same unrunnable rows came back at once. Go on after passing over.
            is_over = keys <= seen and len(left) == len(runnable)
            if left or is_over:
                return left[:max_acquire], asked + lease_time
            seen |= keys
            limit = max(max_acquire, min(_GROWTH * limit, _LARGEST))
        return [], 0.0

    def release(self, claims: Sequence[Claim], deadline: float) -> None:
        """Release acquired rows that are not run here."""
        try:
            self.store.release_many([claim.lease for claim in claims], deadline)
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can be run all the same
            log.warning("%d rows were not released: %s; their leases end by themselves", len(claims), one_line(failure))

    def adopt(self, claim: Claim, asked: float) -> Task:
        """Return the task of a row that was acquired by a call made at `asked` (boottime), for `alive_time`."""
        return self.adopt_many([claim], asked + self.times.alive_time, True)[0]

    def give_back(
        self, holder: str, suspects: Collection[str], error: str = WORKER_DIED, keys: Collection[str] | None = None
    ) -> int:
        return self.store.give_back(holder, suspects, self.times.backoff.limit, error, keys)

    def maintain(self, idle: bool = False) -> bool:
        """Delete old rows for a moment, if the last time was long enough ago. More rarely while `idle`.

        Return whether more old rows are left. A failure is logged, never raised.
        """
        now = self._clock()
        if now < self._maintained_at + (self._settlement.maintenance_interval if idle else _MAINTENANCE_INTERVAL):
            return False
        self._maintained_at = now
        try:
            while self._settlement.maintain():
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
        """Return the tasks of acquired rows, whose leases last until `deadline` (boottime) at least."""
        pid = os.getpid()
        settlement, times, clock = self._settlement, self.times, self._clock
        tasks = [Task(claim, settlement, times, deadline, started, clock, pid) for claim in claims]
        # A list of references without callbacks: 0.4 µs a task less than a WeakValueDictionary (2026-11-22).
        self._acquired.extend([ref(task) for task in tasks])
        if len(self._acquired) > self._prune_at and self._pruning.acquire(blocking=False):
            try:
                self._prune()
            finally:
                self._pruning.release()
        return tasks

    def _prune(self) -> None:
        """Remove references to tasks that are gone or settled. Other threads may append meanwhile."""
        before = self._acquired[:]
        left = [kept for kept in before if (task := kept()) is not None and task.in_flight]
        self._acquired[: len(before)] = left
        self._prune_at = max(2 * len(left), _MIN_PRUNED)

    def _passes_over(self, claim: Claim, now: float) -> bool:
        """Settle a row if it is not to be run any more. `now`: of the acquire, by the database's clock."""
        try:
            return self._settlement.pass_over(claim, now, self._clock())
        except RUN_IS_OVER as lost:
            log.info("key=%s not skipped: %s", claim.row.key, lost)
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can be run all the same
            log.warning("key=%s not skipped: %s; retrying when its lease ends", claim.row.key, one_line(failure))
        return True


_FRESH = 2.0
"""Seconds for which a busy worker uses the types it found last."""
_SHARE = 0.05
"""The largest share of its time that a busy worker spends on looking up types."""
_ALWAYS = 64
"""The most exact names that are passed to every acquire, so that a new row is found at once.

Of more names only those with rows are passed: each name costs an acquire as much, with or without rows.
"""
_FOREIGN = 2
"""When this many times more types have rows than are accepted, the store is asked for the accepted types only."""


class ClaimableTypes:
    """Chooses the types to acquire from one source, of those that a filter accepts. Safe to use from several threads.

    A filter that accepts everything costs nothing. A few exact names are passed to the store as they are, and so are
    hundreds of names once far more other types have rows. Otherwise the types are looked up among those that have rows.
    That happens at each query for the next due time: an idle worker knows every new type, and a busy worker looks up
    types every few seconds.
    """

    def __init__(self, source: Source, wanted: TypeFilter, clock: Clock = monotonic) -> None:
        self.wanted = wanted
        self._source = source
        self._store = source.store
        self._clock = clock
        self._lock = threading.Lock()
        self._accepts = None if wanted.is_everything else wanted.accepts
        self._selects_by_type = not wanted.is_everything and source.store.keeps_types
        is_named = len(wanted.names) <= _ALWAYS
        self._always = wanted.names if is_named else frozenset()
        self._asks_by_name = wanted.is_exact and is_named
        self._present: Collection[str] = tuple(sorted(self._always))
        self._look_at: float | None = None
        """When a busy worker looks up types again; None if the worker was idle since the last look-up."""

    def prepare(self) -> None:
        """Prepare the store's statements, so that the first rows are not delayed."""
        self._store.prepare(self._present if self._selects_by_type else None)

    def to_acquire(self) -> tuple[Collection[str] | None, Accepts | None]:
        """Return the `types` and `accepts` for the next `Source.poll_multi`.

        After an idle time the types are those that the last `next_due` found.
        """
        if not self._selects_by_type:
            return None, self._accepts
        with self._lock:
            is_due = self._look_at is not None and self._clock() >= self._look_at
            if self._look_at is None:
                self._look_at = self._clock() + _FRESH
        if is_due:
            self.next_due(is_busy=True)
        return self._present, None

    def open_wakeup(self) -> Wakeup | None:
        """Return a new wake-up listener of one thread, for the accepted types."""
        return self._source.open_wakeup(self._accepts)

    def next_due(self, is_busy: bool = False) -> float | None:
        """Return the seconds until a row is due, None without a row; see `LeaseStore.next_due`.

        Look up the accepted types that have rows, unless all are known. `is_busy`: look them up again after some
        seconds.
        """
        if not self._selects_by_type:
            return self._store.next_due(accepts=self._accepts)
        begun = self._clock()
        if self._asks_by_name:
            present, wait = self._present, self._store.next_due(self._present)
        else:
            found = self._store.due_by_type()
            heads = {type_: due for type_, due in found.items() if self.wanted.accepts(type_)}
            present, wait = tuple(sorted(self._always | heads.keys())), min(heads.values(), default=None)
            if self.wanted.is_exact and len(found) > _FOREIGN * len(self.wanted.names):
                present, self._asks_by_name = tuple(sorted(self.wanted.names)), True
        now = self._clock()
        with self._lock:
            self._present = present
            self._look_at = now + max(_FRESH, (now - begun) / _SHARE) if is_busy else None
        return wait


_REMEMBERED = 10_000
"""Keys whose last logged problem is remembered. Problems of further keys may be logged repeatedly."""

_MANY = 100
"""Attempts after which the wait is the longest."""

LOST_ATTEMPTS = "every attempt it is allowed was begun, and none was settled: its workers died, or lost their leases"
"""The error of a task whose allowed attempts were all begun, and none settled."""


class RunnableFilter:
    """Defers the claims that cannot be run. Safe to use from several threads."""

    def __init__(self, store: LeaseStore, settlement: Settlement, wait: Callable[[int], float], clock: Clock) -> None:
        """`wait`: returns the seconds to wait after a number of attempts."""
        self._store = store
        self._settlement = settlement
        self._wait = wait
        self._clock = clock
        self._reported: OrderedDict[str, str] = OrderedDict()

    def split_runnable(self, claims: Sequence[Claim]) -> list[Claim]:
        runnable, unrunnable = [], []
        for claim in claims:
            reason = self._why_not(claim)
            if reason is None:
                runnable.append(claim)
            else:
                unrunnable.append((claim, reason))
        if unrunnable:
            self._defer(unrunnable)
        return runnable

    def _why_not(self, claim: Claim) -> str | None:
        row = claim.row
        problem = row.problem if row.problem is not None else self._settlement.problem(row)
        if problem is not None:
            self._report(row.key, problem)
            return problem
        if claim.lease.cancel_requested:
            return "its cancellation was requested"
        allowed = self._settlement.attempts_allowed(row, None) if row.attempts > 1 else None
        if allowed is None or row.attempts <= allowed or self._settlement.is_paused(row):
            return None
        return LOST_ATTEMPTS

    def _report(self, key: str, problem: str) -> None:
        if self._reported.get(key) != problem:
            self._reported[key] = problem
            if len(self._reported) > _REMEMBERED:
                self._reported.popitem(last=False)
            log.error("key=%s cannot be run: %s; retrying later", key, problem)

    def _is_only_retried(self, claim: Claim) -> bool:
        """Whether the row can be retried: its attempts are not used up, and no cancel was requested."""
        allowed = self._settlement.attempts_allowed(claim.row, None)
        return not claim.lease.cancel_requested and (allowed is None or claim.row.attempts < allowed)

    def _defer(self, unrunnable: Sequence[tuple[Claim, str]]) -> None:
        """Make the rows of these claims due later.

        One statement defers the rows that are only to be retried. The other rows are settled one by one. So are all
        rows if the database refuses that statement; if it does not answer, the rows are due when their leases end.
        """
        together: list[tuple[Claim, str]] = []
        alone: list[tuple[Claim, str]] = []
        for claim, reason in unrunnable:
            is_deferred_together = _has_usable_lease(claim) and self._is_only_retried(claim)
            (together if is_deferred_together else alone).append((claim, reason))
        try:
            retries = [self._retry_of(claim, reason) for claim, reason in together]
            refusals = self._store.retry_many(retries, self._clock()) if together else []
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can be run all the same
            is_away = self._store.is_unavailable(failure)
            if not is_away:
                alone = [*together, *alone]
            words = "%d rows that cannot be run were not deferred in one statement: %s; %s"
            then = "retrying when their leases end" if is_away else "trying one by one"
            log.warning(words, len(together), one_line(failure), then)
        else:
            for (claim, _), refusal in zip(together, refusals, strict=True):
                if refusal is not None:
                    _log_lost(claim, refusal)
        for claim, reason in alone:
            self._defer_alone(claim, reason)

    def _retry_of(self, claim: Claim, reason: str) -> Retry:
        """Defer a schedule for the longest wait and without counting an attempt."""
        version = version_of(claim.row)
        if version is None:
            return Retry(claim.lease, self._wait(claim.row.attempts), reason)
        return Retry(claim.lease, self._wait(_MANY), reason, version, counted=False)

    def _defer_alone(self, claim: Claim, reason: str) -> None:
        """Defer one row by itself. If its attempts are used up or it was cancelled, end it instead."""
        try:
            if self._is_only_retried(claim):
                retry = self._retry_of(claim, reason)
                self._store.retry(retry.lease, retry.wait, retry.error, self._clock(), retry.counted, retry.version)
                return
            outcome = self._settlement.retry(claim, self._wait(claim.row.attempts), reason, None, self._clock())
            if outcome != "retried":
                log.info("key=%s not run; the task is %s now", claim.row.key, outcome)
        except RUN_IS_OVER as lost:
            _log_lost(claim, lost)
        except Exception as failure:  # noqa: BLE001 – the other rows of this acquire can be run all the same
            log.warning("key=%s not deferred: %s; retrying when its lease ends", claim.row.key, one_line(failure))


def _has_usable_lease(claim: Claim) -> bool:
    """Whether bulk statements take the key and the fence: SQLite stores any value in both columns."""
    key: object = claim.lease.key
    fence: object = claim.lease.fence
    return isinstance(key, str) and "\0" not in key and isinstance(fence, int)


def _log_lost(claim: Claim, lost: ScheduleError) -> None:
    log.info("key=%s not deferred: %s", claim.row.key, lost)


class PolledTable:
    """All rows of one table. A context manager; safe to use from several threads, not across a fork."""

    def __init__(self, store: LeaseStore, settlement: Settlement, times: LeaseTimes) -> None:
        self.store = store
        self.source = Source(store, settlement, times)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def poll(self, types: Collection[str] | None = None) -> Task | None:
        """Acquire the row that is due first. Return None if none is due, or `max_running` holds back all of them.

        The lease lasts `alive_time`; a caller that needs longer calls `task.heartbeat()`. `types`: acquire rows of
        these types only (NotSupportedError on `rdb_compat`).
        """
        tasks = self.poll_multi(1, types)
        return tasks[0] if tasks else None

    def poll_multi(self, max_acquire: int = 1, types: Collection[str] | None = None) -> Sequence[Task]:
        """Acquire up to `max_acquire` due rows, in the order in which they are to be run; see `poll`."""
        if types is not None and (isinstance(types, str) or not isinstance(types, Collection)):
            raise ValueError(f"types must be a collection of types like ['report'], got {shown(types)}")
        for each in () if types is None else types:
            check_key(each, "type")
        return self.source.poll_multi(max_acquire, types)

    def close(self) -> None:
        """Close every connection to the database; idempotent. A later call of any method connects anew."""
        self.store.close()

    aclose = async_twin(close)


def open_table(name: SectionName, settings: Settings, open_section: Callable[[Section, str], Opened]) -> Opened:
    """Return the table of a configured section, opened for this process; listeners get its submits.

    Raises ConfigError without a section, or if the table is missing.
    """
    section = dict(settings.named_sections).get(name)
    if section is None:
        raise ConfigError(f"the configuration has no {name}: give it type and url, or a section `{name}:`")
    attach_listeners(settings)
    opened = open_section(section, holder_name(str(os.getpid())))
    try:
        opened.store.check_tables()
    except BaseException as error:
        if isinstance(error, Exception) and opened.store.is_unavailable(error):
            error.add_note(f"{name}: the database {section.masked_url} is not available; does it run, is `url:` right?")
        opened.close()
        raise
    return opened
