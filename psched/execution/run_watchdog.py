"""Watches what a child runs: tells a handler when it must stop, and leaves by force when it does not. In children."""

from __future__ import annotations

import logging
from collections.abc import Callable

from psched.clock import Clock, boottime
from psched.errors import CancelRequestedError, ImmediateProcessStopError, PreemptedError
from psched.execution.active_runs import ActiveRun, ActiveRuns
from psched.execution.periodic_thread import PeriodicThread

log = logging.getLogger(__name__)

_TICK = 0.2
_LAST_MOMENT = 0.5
"""A run that was told to stop because its lease ends is gone this many seconds before it does (or half its margin)."""

_WINDING_UP = 20.0
"""Seconds in which a process that is to stop settles and gives back what it holds, once nothing runs any more: enough
for a statement that gets no answer, and for another one on a new connection."""


class RunWatchdog:
    """Ends runs whose time is over: timeout, cancel, a lease that ends, an immediate stop of the process.

    And the process, when it is to stop, nothing runs, and its database keeps it from ending.
    """

    def __init__(
        self, runs: ActiveRuns, kill_interval: float, leave: Callable[[str], None], clock: Clock = boottime
    ) -> None:
        """`kill_interval`: seconds a handler has between `kill(reason)` and the end. `leave` does not return."""
        self.ticker = PeriodicThread("warden", self.tick, _TICK)
        self._runs = runs
        self._kill_interval = kill_interval
        self._leave = leave
        self._clock = clock
        self._stop_at: float | None = None
        self._winding_up = False
        self._end_at: float | None = None

    def wind_up(self) -> None:
        """Nothing new is begun: see that the process ends soon after what runs has ended."""
        self._winding_up = True
        self.ticker.poke(urgent=True)

    def stop(self, grace: float | None = None) -> None:
        """Stop all runs now: `kill(ImmediateProcessStopError)`, and the end `grace` later (default: kill interval)."""
        end = self._clock() + (self._kill_interval if grace is None else min(grace, self._kill_interval))
        self._stop_at = end if self._stop_at is None else min(end, self._stop_at)
        self.ticker.poke(urgent=True)

    def tick(self) -> bool:
        """Tell and end what must be; True while there is something to watch."""
        now = self._clock()
        active = self._runs.active()
        for run in active:
            reason = self._reason(run, now)
            if reason is not None:
                run.tell(reason, now)
        for run in active:
            if run.told is not None and now >= self._end(run, run.told):
                self._leave(f"{run.name} did not stop: {run.task.stop_reason}")
        if self._stop_at is not None and now >= self._stop_at:
            self._leave("immediate stop")
        if self._winding_up and (active or self._runs.closing or self._end_at is None):
            self._end_at = now + _WINDING_UP
        if self._end_at is not None and now >= self._end_at:
            self._leave(f"the database has kept it from ending for {_WINDING_UP:g} s; what it holds comes back")
        return bool(active) or self._stop_at is not None or self._winding_up

    def _reason(self, run: ActiveRun, now: float) -> Exception | None:
        """Say why this run must stop now, or None."""
        task, poller = run.task, run.poller
        if self._stop_at is not None:
            return ImmediateProcessStopError("the process stops now")
        if now >= task.deadline - poller.margin and not task.settled:
            return PreemptedError(f"{task.key!r}: the lease of this run ends and could not be renewed")
        if poller.task_timeout is not None and now >= run.started + poller.task_timeout:
            return TimeoutError(f"{task.key!r} ran longer than task_timeout ({poller.task_timeout:g} s)")
        if task.lease.cancel_requested:
            return CancelRequestedError(f"{task.key!r}: its cancellation was requested")
        return None

    def _end(self, run: ActiveRun, told: float) -> float:
        """Return when a run that was told to stop is ended by force, in boottime seconds."""
        end = told + self._kill_interval
        if isinstance(run.task.stop_reason, PreemptedError):
            return min(end, run.task.deadline - min(_LAST_MOMENT, run.poller.margin / 2))
        return end
