"""Asks a handler to stop when its run must end. If the handler does not stop, ends the process by force."""

from __future__ import annotations

from collections.abc import Callable

from psched.clock import Clock, boottime
from psched.errors import CancelRequestedError, ImmediateProcessStopError, PreemptedError
from psched.execution.active_runs import ActiveRun, ActiveRuns
from psched.execution.periodic_thread import PeriodicThread

_TICK = 0.2
_LAST_MOMENT = 0.5
"""If a lease cannot be renewed and its run does not stop, the process exits shortly before the end of the lease: this
many seconds before, or half of the poller's `margin` if that is less."""

_WINDING_UP = 20.0
"""How many seconds a stopping process may need to settle and release its tasks after the last handler: enough for a
statement without an answer, and another statement over a new connection."""


class RunWatchdog(PeriodicThread):
    """Ends runs after a timeout, a cancel request, the end of a lease, or an immediate stop of the process.

    Also ends a stopping process that runs no handler but waits for a database that does not answer.
    """

    def __init__(
        self, runs: ActiveRuns, kill_interval: float, leave: Callable[[str], None], clock: Clock = boottime
    ) -> None:
        """`kill_interval`: seconds between `kill(reason)` and the forced exit.

        `leave`: ends the process, never returns.
        """
        super().__init__("run watchdog", self.tick, _TICK)
        self._runs = runs
        self._kill_interval = kill_interval
        self._leave = leave
        self._clock = clock
        self._stop_at: float | None = None
        self._winding_up = False
        self._end_at: float | None = None

    def wind_up(self) -> None:
        """Ensure that the process ends soon after its last run. Call this when no further run begins."""
        self._winding_up = True
        self.wake()

    def stop(self, grace: float | None = None) -> None:
        """Call `kill(ImmediateProcessStopError)` of all handlers.

        Force the exit after `grace` seconds, at the latest after the kill interval. None: after the kill interval.
        """
        end = self._clock() + (self._kill_interval if grace is None else min(grace, self._kill_interval))
        self._stop_at = end if self._stop_at is None else min(end, self._stop_at)
        self.wake()

    def tick(self) -> bool:
        """Stop the runs that must end. Return True while there are runs to watch."""
        now = self._clock()
        active = self._runs.active()
        for run in active:
            reason = self._reason(run, now)
            if reason is not None:
                run.stop(reason, now)
        for run in active:
            if run.stopped_at is not None and now >= self._end(run, run.stopped_at):
                self._leave(f"{run.name} did not stop: {run.task.stop_reason}")
        if self._stop_at is not None and now >= self._stop_at:
            self._leave("immediate stop")
        if self._winding_up and (active or self._runs.closing or self._end_at is None):
            self._end_at = now + _WINDING_UP
        if self._end_at is not None and now >= self._end_at:
            self._leave(f"the database did not answer for {_WINDING_UP:g} s; the tasks run again when their leases end")
        return bool(active) or self._stop_at is not None or self._winding_up

    def _reason(self, run: ActiveRun, now: float) -> Exception | None:
        task, poller = run.task, run.poller
        if self._stop_at is not None:
            return ImmediateProcessStopError("the process stops now")
        if now >= task.deadline - poller.margin and not task.settled:
            return PreemptedError(f"{task.key!r}: the lease of this run ends and could not be renewed")
        timeout = poller.task_timeout if task.timeout is None else task.timeout
        if timeout is not None and now >= task.begun_at + timeout:
            own = "the timeout of its type" if task.own_timeout is None else "the timeout of its schedule"
            name = "task_timeout" if task.timeout is None else own
            return TimeoutError(f"{task.key!r} ran longer than {name} ({timeout:g} s)")
        if task.lease.cancel_requested:
            return CancelRequestedError(f"{task.key!r}: its cancellation was requested")
        return None

    def _end(self, run: ActiveRun, stopped_at: float) -> float:
        """Return when the process exits by force if the run has not ended by then, in boottime seconds.

        `stopped_at`: when the run was asked to stop.
        """
        end = stopped_at + self._kill_interval
        if isinstance(run.task.stop_reason, PreemptedError):
            return min(end, run.task.deadline - min(_LAST_MOMENT, run.poller.margin / 2))
        return end
