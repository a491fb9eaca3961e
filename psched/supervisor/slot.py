"""A slot of the master: forks a child, supervises it, stops it, and forks the next child.

`tick(now)` never waits. Times are monotonic seconds.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from attrs import evolve

from psched.child.main import role_of
from psched.config import Settings
from psched.metrics.event_counters import MasterCounter
from psched.process.child_spec import FETCHER_SLOT, ChildSpec
from psched.process.dead_child import DeadChild
from psched.process.dispatch_socket import DispatchSocket
from psched.process.running_table import RunningTable
from psched.store import holder_name
from psched.supervisor.child import ChildProcess
from psched.supervisor.fork_and_reap import ProcessTable
from psched.supervisor.lease_recovery import LeaseRecovery
from psched.supervisor.loaded_config import LoadedConfig
from psched.supervisor.master_status import PendingWorker

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 60.0
"""The longest pause between two attempts to start a child, in seconds."""
_SHORTEST_PAUSE = 0.5
"""The shortest pause between two attempts to start a child, in seconds."""
_FETCHER_HEARTBEAT_INTERVAL = 0.5
_FETCHER_HEARTBEAT_LIMIT = 3.0
_CRASH_PAUSE = 0.2
"""The shortest time between two forks in a slot, in seconds, if its children are killed by their tasks."""
_LONGEST_FETCHER_PAUSE = 2.0
"""The longest time between two forks of fetching children that have died early, in seconds."""
_FETCHER_EARLY_DEATH = 1.0
"""The death of a fetching child counts as early if the child has lived for fewer seconds than this. It also counts as
early if the child has lived for a shorter time than the last pause of its slot."""
_ATTEMPTS = 2
"""The start of the master fails when this many children in a row have died before they were ready. If the child has
reported a reason, one death is enough."""
_ATTEMPTS_OF_KILLED = 5
"""Like `_ATTEMPTS`, for children that were ended by SIGKILL."""


@dataclass(slots=True)
class Slot:
    """A slot has at most one child at a time."""

    number: int
    config: LoadedConfig
    dispatch: DispatchSocket | None
    """The socket over which the fetching child sends tasks; None if the only child polls for itself."""
    siblings: Callable[[], tuple[str, ...]]
    """Returns the names of the children with the same dispatch socket."""
    process_table: ProcessTable
    lease_recovery: LeaseRecovery
    is_fatal: Callable[[str], bool]
    """Called with the reason why a child cannot start. Returns whether the master ends."""
    counters: MasterCounter | None = None
    was_ready: bool = False
    _has_applied: bool = False
    """Whether a child has applied the schedules of the current configuration's application, or can never apply them."""
    _retired: bool = False
    _child: ChildProcess | None = None
    _fork_at: float = -math.inf
    _early_deaths: int = 0
    _failures: int = 0
    _could_not_start: bool = False
    _reason: str | None = None
    _last_end: str = ""

    @property
    def title(self) -> str:
        return "fetcher" if self.number == FETCHER_SLOT else f"worker {self.number}"

    @property
    def living(self) -> ChildSpec | None:
        """The spec of the current child, or None."""
        return None if self._child is None else self._child.spec

    @property
    def gone(self) -> bool:
        return self._retired and self._child is None

    @property
    def began(self) -> bool:
        """Whether a child was ready, or the last attempts to start a child have failed. The master is up only then."""
        return self.was_ready or self._could_not_start

    @property
    def trouble(self) -> str | None:
        if self._failures and self._reason is not None:
            return f"{self.title} cannot start: {self._reason}"
        return None if self._child is None else self._child.trouble

    @property
    def pending(self) -> PendingWorker | None:
        """The worker for which the slot waits; None if a worker is ready, or if no more workers will be forked."""
        if self._retired or (self._child is not None and self._child.ready):
            return None
        return PendingWorker(self.number, self._fork_at if self._child is None else None, self._last_end)

    @property
    def running(self) -> tuple[str, ...]:
        """The tasks of the child (`section:key`)."""
        return () if self._child is None else self._child.running

    def tick(self, now: float) -> None:
        if self._child is not None:
            self._supervise(self._child, now)
        if self._child is not None or self._retired or now < self._fork_at:
            return
        name, dead = holder_name(f"w{self.number}"), self.lease_recovery.claim()
        try:
            spec = self._spec(name, dead)
            self._child = self.process_table.fork(self.title, spec.settings, partial(role_of, spec), spec)
        except OSError as error:
            self.lease_recovery.add(dead)
            self._cannot_start(f"cannot fork: {error.strerror}", now)
        else:
            log.debug("%s was forked", self._child)

    def _spec(self, name: str, dead: tuple[DeadChild, ...]) -> ChildSpec:
        """Return the spec of the next child. Raises OSError."""
        return ChildSpec(
            self.number,
            self._settings(),
            self.config.application,
            name if self.dispatch is None else self.dispatch.holder,
            dead,
            RunningTable(self.config.handler_threads),
            name,
            self.dispatch,
            self.siblings(),
            self.config.claimer,
            None if self.counters is None else self.counters.block(self.title),
            not self._has_applied,
        )

    def _settings(self) -> Settings:
        """Return the settings of the next child.

        A fetching child has shorter limits, because all handler children wait while it is frozen.
        """
        settings = self.config.settings
        if self.number != FETCHER_SLOT:
            return settings
        interval = min(settings.child_heartbeat_interval, _FETCHER_HEARTBEAT_INTERVAL)
        limit = min(settings.child_heartbeat_limit, _FETCHER_HEARTBEAT_LIMIT)
        return evolve(settings, child_heartbeat_interval=interval, child_heartbeat_limit=limit)

    @property
    def deadline(self) -> float:
        return math.inf if self._retired or self._child is not None else self._fork_at

    @property
    def idle(self) -> bool:
        """Whether `tick` may be skipped until the deadline."""
        child = self._child
        return child is not None and child.ready and child.escalation.idle and not child.running

    def replace(self, config: LoadedConfig, dispatch: DispatchSocket | None, immediate: bool, now: float) -> None:
        """Stop the child. The next child is forked only when the child has ended, so that never too many tasks run."""
        self.config, self.dispatch = config, dispatch
        self._has_applied = self._retired = False
        self._fork_at = -math.inf
        self._failures = 0
        if self._child is not None:
            self._child.escalation.stop(immediate, now)

    def retire(self, immediate: bool, now: float) -> None:
        self._retired = True
        if self._child is not None:
            self._child.escalation.stop(immediate, now)

    def _supervise(self, child: ChildProcess, now: float) -> None:
        if not child.escalation.stopping:  # a child that `replace` stops has the previous configuration
            self._has_applied = self._has_applied or child.applied
        if child.gone:
            self._child_ended(child, now)
            return
        if child.ready and self._failures:
            log.warning("%s is up after %d failed attempts", child, self._failures)
            self._failures, self._reason = 0, None
        self.was_ready = self.was_ready or child.ready

    def _child_ended(self, child: ChildProcess, now: float) -> None:
        assert child.spec is not None
        stopping = child.escalation.stopping
        self._child = None
        self.lease_recovery.child_ended(child, child.spec)
        self._last_end = "" if child.orderly else child.end
        if child.orderly:
            log.log(logging.INFO if stopping else logging.DEBUG, "%s has exited", child)
            self._fork_at = now
        elif stopping:
            log.warning("%s %s%s", child, child.end, child.while_running)
            self._fork_at = now
        elif not child.ready and not (self.was_ready and child.killed_by_others):
            attempts = 1 if child.start_error else _ATTEMPTS_OF_KILLED if child.was_sigkilled else _ATTEMPTS
            self._cannot_start(child.start_error or f"{child.end} before it was ready", now, attempts)
        else:
            self._fork_at = self._replacement_time(child, now)
            log.error("%s %s%s; %s", child, child.end, child.while_running, self._next_fork(now))

    def _replacement_time(self, child: ChildProcess, now: float) -> float:
        """Return when to fork the next child after a crash.

        If the child has run a task, the next child is forked almost immediately: only the task that crashed the child
        waits, longer each time. If the child has run no task, the first replacement is forked immediately, because
        leases wait for recovery. From the second early death in a row, the slot waits for `child_fork_frequency_limit`.
        The slot of the fetching child waits only for 0.2, 0.4, 0.8, 1.6, 2, 2, … s, because all handler children wait
        for the fetching child.
        """
        limit = self.config.settings.child_fork_frequency_limit
        if child.running or child.worked:
            self._early_deaths = 0
            return max(now, child.forked_at + min(limit, _CRASH_PAUSE))
        early = limit
        if self.number == FETCHER_SLOT:
            limit = min(limit, _CRASH_PAUSE * 2.0 ** min(self._early_deaths - 1, 30), _LONGEST_FETCHER_PAUSE)
            early = max(limit, _FETCHER_EARLY_DEATH)
        self._early_deaths = self._early_deaths + 1 if now < child.forked_at + early else 0
        return max(now, child.forked_at + limit) if self._early_deaths > 1 else now

    def _cannot_start(self, reason: str, now: float, attempts: int = 1) -> None:
        """Decide when to fork the next child. Each failure in a row makes the pause longer.

        If no child of the master was ever ready, the master ends after `attempts` failures.
        """
        self._failures += 1
        shortest = max(self.config.settings.child_fork_frequency_limit, _SHORTEST_PAUSE)
        pause = min(shortest * 2 ** min(self._failures - 1, 10), _LONGEST_PAUSE) * random.uniform(1.0, 1.25)
        self._fork_at = now + pause
        is_new, self._reason = reason != self._reason, reason
        self._could_not_start = self._failures >= attempts
        if self._could_not_start and self.is_fatal(reason):
            log.error("%s cannot start: %s; giving up", self.title, reason)
        elif is_new:
            log.error("%s cannot start: %s; %s", self.title, reason, self._next_fork(now))

    def _next_fork(self, now: float) -> str:
        if self._retired:
            return "it will not be replaced"
        pause = self._fork_at - now
        return "replacing it" if pause <= 0 else f"next attempt in {pause:.1f} s"
