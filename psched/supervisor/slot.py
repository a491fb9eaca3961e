"""One slot of the master: fork a child, hear it, end it when it must, bury it, and fork the next. In the master.

`tick(now)` never waits. Times are monotonic seconds.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable
from functools import partial

from psched.child import main as child_process
from psched.model import worker_died
from psched.process import channel as pipes
from psched.process.child_spec import ChildSpec, DeadChild
from psched.process.escalation import Escalation, Order
from psched.process.logs import Log
from psched.process.poll_election import PollElection
from psched.process.running_table import RunningTable
from psched.store import holder_name
from psched.supervisor.child import ChildProcess
from psched.supervisor.forking import ProcessTable
from psched.supervisor.lease_recovery import DeadChildren
from psched.supervisor.master_status import PendingWorker
from psched.supervisor.reload import LoadedConfig

log = logging.getLogger(__name__)

_ORDERS = {Order.GRACEFUL: pipes.GRACEFUL, Order.IMMEDIATE: pipes.IMMEDIATE}
_LONGEST_PAUSE = 60.0
_SHORTEST_PAUSE = 0.5
"""Bounds of the pause between two attempts of a child that cannot begin, in seconds."""
_CRASH_PAUSE = 0.2
"""Seconds at the least between two forks of a slot whose children die of the tasks they run."""
_CHANCES = 2
_CHANCES_OF_KILLED = 5
"""How many children in a row may die without a word before a start ends: of what they do, or killed by others."""


class Slot:
    """A slot. At any time it has at most one child, and each child has a board of its own."""

    def __init__(
        self,
        number: int,
        plan: LoadedConfig,
        watch: PollElection | None,
        process_table: ProcessTable,
        dead_children: DeadChildren,
        log_file: Log,
        is_fatal: Callable[[str], bool],
    ) -> None:
        """`watch`: the one of the plan's children.

        `is_fatal` is asked, with the reason, when a child could not begin: whether that ends everything.
        """
        self.number = number
        self.plan = plan
        self._watch = watch
        self.was_ready = False
        """Whether any child of it has ever begun to work."""
        self._nursery = process_table
        self._estate = dead_children
        self._log_file = log_file
        self._is_fatal = is_fatal
        self._retired = False
        self._child: ChildProcess | None = None
        self._handle: Escalation | None = None
        self._boot: ChildSpec | None = None
        self._fork_at = -math.inf
        self._early_deaths = 0
        self._failures = 0
        self._could_not_begin = False
        self._gave_up_later = False
        """Whether its last child could not begin although it had said it was ready: it may do so again."""
        self._reason: str | None = None
        self._last_end = ""

    @property
    def gone(self) -> bool:
        """Whether the slot is retired and empty."""
        return self._retired and self._child is None

    @property
    def began(self) -> bool:
        """Whether its first child has begun to work, or could not and is tried again."""
        return self.was_ready or self._could_not_begin

    @property
    def trouble(self) -> str | None:
        """What keeps it from working at present."""
        if self._failures and self._reason is not None:
            return f"worker {self.number} cannot begin: {self._reason}"
        return None if self._child is None else self._child.trouble

    @property
    def pending(self) -> PendingWorker | None:
        """What keeps the slot without a child that is at work; None when there is one, or is to be none."""
        if self._retired or (self._child is not None and self._child.ready):
            return None
        return PendingWorker(self.number, self._fork_at if self._child is None else None, self._last_end)

    @property
    def running(self) -> tuple[str, ...]:
        """What its child runs (`section:key`)."""
        return () if self._boot is None else self._boot.running_table.names()

    def tick(self, now: float) -> None:
        """Bury, hear, end or fork, whatever is due."""
        if self._child is not None:
            self._supervise(self._child, now)
        if self._child is None and not self._retired and now >= self._fork_at:
            self._fork(now)

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest."""
        if self._handle is not None:
            return self._handle.deadline
        return math.inf if self._retired else self._fork_at

    @property
    def idle(self) -> bool:
        """Whether its child is at work, with nothing to run, and can be left alone until the deadline."""
        child, handle = self._child, self._handle
        return child is not None and child.ready and handle is not None and handle.idle and not self.running

    def reset_deadlines(self, now: float) -> None:
        """Count no silence before `now`: the master itself could not hear."""
        if self._handle is not None:
            self._handle.hear(now)

    def replace(self, plan: LoadedConfig, watch: PollElection | None, immediate: bool, now: float) -> None:
        """Go on by another plan: the child ends, after its task unless `immediate`, and the next one is born into it.

        The slot stays one slot: a task that runs goes on occupying it, so no more run at a time than are configured.
        """
        self.plan, self._watch = plan, watch
        self._retired = False
        self._fork_at = -math.inf
        self._failures = 0
        if self._handle is not None:
            self._handle.stop(immediate, now)

    def retire(self, immediate: bool, now: float) -> None:
        """End the child and fork no other."""
        self._retired = True
        if self._handle is not None:
            self._handle.stop(immediate, now)

    def reopen_log(self) -> None:
        """Tell the child to reopen its log file."""
        if self._child is not None:
            self._child.ends.order(pipes.REOPEN)

    def _fork(self, now: float) -> None:
        boot = ChildSpec(
            self.number,
            self.plan.settings,
            self.plan.application,
            holder_name(f"w{self.number}"),
            self._estate.claim(),
            RunningTable(self.plan.cells),
            self._watch,
        )
        try:
            child = self._nursery.fork(f"worker {self.number}", partial(child_process.run_child, boot, self._log_file))
        except OSError as error:
            self._estate.leave(boot.dead)
            self._cannot_begin(f"cannot fork: {error.strerror}", now)
            return
        self._child, self._boot = child, boot
        self._handle = Escalation(self.plan.limits, now)
        log.debug("%s was forked", child)

    def _supervise(self, child: ChildProcess, now: float) -> None:
        assert self._handle is not None
        self._handle.hear(child.heard)
        if child.gone:
            self._reap(child, now)
            return
        if child.ready and self._failures and (not self._gave_up_later or now >= child.born + _LONGEST_PAUSE):
            log.warning("%s is up after %d failed attempts", child, self._failures)
            self._failures, self._reason = 0, None
        self.was_ready = self.was_ready or child.ready
        order = self._handle.tick(now)
        if order is not None:
            self._enforce(child, self._handle, order, now)

    def _enforce(self, child: ChildProcess, handle: Escalation, order: Order, now: float) -> None:
        if order is not Order.KILL:
            child.ends.order(_ORDERS[order])
            return
        why = "was silent for too long and counts as frozen" if handle.silent(now) else "did not leave in time"
        log.error("%s %s; killing it%s", child, why, _while_running(self.running))
        child.kill(why)

    def _reap(self, child: ChildProcess, now: float) -> None:
        """Draw the consequences of a child's end: what it leaves behind, and when the next one is born."""
        assert self._boot is not None and self._handle is not None
        boot, stopping = self._boot, self._handle.stopping
        running = boot.running_table.names()
        boot.running_table.close()
        self._child = self._handle = self._boot = None
        if boot.watch is not None and boot.watch is self._watch:
            boot.watch.remove(self.number)
        if not child.gave_back:
            self._estate.leave(boot.dead)
        if child.ready and not (child.orderly or child.empty):
            self._estate.leave([DeadChild(boot.holder, running, worker_died(child.end))])
        self._last_end = "" if child.orderly else child.end
        if child.orderly or stopping:
            self._log_end(child, running, stopping)
            self._fork_at = now
        elif not child.ready or child.why:
            self._gave_up_later = child.ready
            chances = _CHANCES_OF_KILLED if child.killed else _CHANCES
            self._cannot_begin(child.why or f"{child.end} before it could begin", now, 1 if child.why else chances)
        else:
            self._fork_at = self._replacement_time(child, running, now)
            log.error("%s %s%s; %s", child, child.end, _while_running(running), self._announce(now))

    def _replacement_time(self, child: ChildProcess, running: tuple[str, ...], now: float) -> float:
        """Return when the next child is forked.

        A child that has run something began well; not the slot has to wait, but the task of which it died, longer after
        each time. Else the slot waits after two early deaths in a row; after one the leases wait for a successor.
        """
        limit = self.plan.settings.child_fork_frequency_limit
        if running or child.worked:
            self._early_deaths = 0
            return max(now, child.born + min(limit, _CRASH_PAUSE))
        earliest = child.born + limit
        self._early_deaths = self._early_deaths + 1 if now < earliest else 0
        return max(now, earliest) if self._early_deaths > 1 else now

    def _log_end(self, child: ChildProcess, running: tuple[str, ...], stopping: bool) -> None:
        if child.orderly:
            log.log(logging.INFO if stopping else logging.DEBUG, "%s has left", child)
        else:
            log.warning("%s %s%s", child, child.end, _while_running(running))

    def _cannot_begin(self, reason: str, now: float, chances: int = 1) -> None:
        """Back off: each attempt in a row waits longer. The reason is told when it is a new one.

        After so many failures in a row as there are `chances` a start ends.
        """
        self._failures += 1
        shortest = max(self.plan.settings.child_fork_frequency_limit, _SHORTEST_PAUSE)
        pause = min(shortest * 2 ** min(self._failures - 1, 10), _LONGEST_PAUSE) * random.uniform(1.0, 1.25)
        self._fork_at = now + pause
        is_new, self._reason = reason != self._reason, reason
        self._could_not_begin = self._failures >= chances
        if self._could_not_begin and self._is_fatal(reason):
            log.error("worker %d cannot begin: %s; giving up", self.number, reason)
        elif is_new:
            log.error("worker %d cannot begin: %s; %s", self.number, reason, self._announce(now))

    def _announce(self, now: float) -> str:
        if self._retired:
            return "it is not replaced"
        pause = self._fork_at - now
        return "replacing it" if pause <= 0 else f"the next one comes in {pause:.1f} s"


def _while_running(names: tuple[str, ...]) -> str:
    return f" while running {', '.join(names)}" if names else ""
