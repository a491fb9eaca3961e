"""The loop of a handler thread: poll, run, settle.

With `processor_type: process` the loop runs in the main thread.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence

from psched.acquisition.unrunnable_rows import LOST_ATTEMPTS
from psched.application.handler_base import retry_failed
from psched.clock import Clock, boottime
from psched.error_messages import one_line
from psched.errors import (
    CancelRequestedError,
    ImmediateProcessStopError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
)
from psched.execution.active_runs import ActiveRun, ActiveRuns
from psched.execution.batch_size import TOO_LONG
from psched.execution.periodic_thread import PeriodicThread
from psched.execution.poller import Poller, give_up_leases
from psched.execution.stop_event import StopEvent
from psched.task import Task
from psched.telemetry import emit

log = logging.getLogger(__name__)

TURN = 0.1
"""How many seconds a section's full batches are run before the next section is polled."""


class HandlerLoop:
    """Polls the sections in turn and runs the handlers of their tasks, until the process stops."""

    def __init__(
        self,
        cell: int,
        pollers: Sequence[Poller],
        runs: ActiveRuns,
        stopping: StopEvent,
        clock: Clock = boottime,
    ) -> None:
        self._cell = cell
        self._pollers = pollers
        self._runs = runs
        self._stopping = stopping
        self._clock = clock
        self._waiting: deque[Task] = deque()
        self._poller = pollers[0]
        self._pid = os.getpid()

    def run(self) -> None:
        """Poll and run tasks until stopped. Then return as soon as the running task has ended.

        Raises what nobody expects. Then this loop holds no task, and may run again.
        """
        try:
            while not self._stopping.is_set():
                is_idle = True
                for poller in self._pollers:
                    for _ in self._batches(poller):
                        is_idle = False
                        self._run_waiting(poller)
                    poller.settle_idle()
                if is_idle:
                    self._wait()
        finally:
            for poller in self._pollers:
                poller.settlement_buffer.flush()
            all(give_back(task) for task in self._waiting)  # ends at the first failure: the others would fail, too
            self._waiting.clear()

    def close(self) -> None:
        """Close the pollers and the application, after the last `run`. Called in the thread of the loop."""
        for poller in self._pollers:
            poller.close()
            self._runs.close(self._cell, poller.application.close)

    def current(self) -> ActiveRun | None:
        """Return the run in progress, or None. Callable from any thread."""
        return self._runs.at(self._cell)

    def queue(self, tasks: Sequence[Task]) -> None:
        self._waiting.extend(tasks)
        self._runs.wake_threads()

    def busy_for(self) -> float:
        """Return how many seconds the current handler has been running, 0 without a handler.

        Callable from any thread.
        """
        run = self.current()
        return 0.0 if run is None else self._clock() - run.task.begun_at

    def release_waiting(self, at_once: bool) -> bool:
        """Release tasks that wait too long behind others; if `at_once`, release all waiting tasks.

        Return whether tasks are waiting or may arrive. Callable from any thread.
        """
        tasks, poller = list(self._waiting), self._poller
        if len(tasks) > 1 and (at_once or self.busy_for() > poller.patience):
            give_up = give_up_leases if at_once else poller.give_up
            give_up(tasks, self._clock())
        may_arrive = [each.return_late() for each in self._pollers]
        return len(tasks) > 1 or any(may_arrive)

    @property
    def check_interval(self) -> float:
        """Seconds between two calls of `release_waiting`."""
        return min(poller.check_interval for poller in self._pollers)

    def flush_overdue(self) -> None:
        """Settle collected runs that have waited too long. Callable from any thread."""
        for poller in self._pollers:
            poller.settlement_buffer.flush_overdue()

    def _batches(self, poller: Poller) -> Iterator[None]:
        """Acquire and queue tasks. Yield after each batch, so that the caller runs the batch.

        As long as batches are full, acquire further batches, for at most TURN seconds.
        """
        tasks = poller.poll()
        end = self._clock() + TURN
        while tasks:
            self._poller = poller
            for each in self._pollers:
                each.ignore_wakeups()
            # last, because it wakes threads that should run during the handler, not before it
            self.queue(tasks)
            yield
            has_turn = poller.batch_was_full and self._clock() < end and not self._stopping.is_set()
            tasks = poller.poll(may_rest=False) if has_turn else ()

    def _run_waiting(self, poller: Poller) -> None:
        planned, now = -math.inf, self._clock()
        while self._waiting and not self._stopping.is_set():
            if len(self._waiting) > 1 and now > planned + TOO_LONG:
                self._release_excess(poller)
                planned = self._clock()
                continue  # no task may be left: another thread releases tasks that wait behind a long run
            task = self._waiting[0]
            poller.settle_before(now, task.type)
            now = self._run(poller, task)
            self._waiting.popleft()
            poller.run_ended(task, bool(self._waiting))

    def _release_excess(self, poller: Poller) -> None:
        """Release tasks that would wait too long behind others."""
        tasks = list(self._waiting)
        keep = poller.prefetch.keep([task.type for task in tasks])
        if keep < len(tasks):
            poller.give_up(tasks[keep:], self._clock())
            self._waiting = deque(task for task in tasks if not task.settled)

    def _wait(self) -> None:
        """Wait until a section must be polled or a wake-up comes."""
        for poller in self._pollers:
            poller.rest()
        wakeups = {descriptor: poller for poller in self._pollers for descriptor in poller.descriptors}
        for descriptor in self._stopping.wait_for(list(wakeups), min(poller.pause() for poller in self._pollers)):
            wakeups[descriptor].wake()

    def _run(self, poller: Poller, task: Task) -> float:
        """Run a task. Return the boottime at its end. Must be fast, because a handler may take only a microsecond."""
        if not task.may_begin or not task.begin(poller.margin):
            if not task.lease_lost:
                give_back(task)
            task.forget()  # else its lease would be renewed as long as this process lives
            return self._clock()
        emit("run_start", section=poller.name, task=task)
        run = ActiveRun(task, poller)
        self._runs.begin(self._cell, run)
        self._runs.wake_threads()  # the watchdog may have gone to sleep since the poll
        try:
            if self._call(run):
                self._settle(run)
        except Exception as error:  # noqa: BLE001 – whatever a driver raises: the lease expires
            self._emit_unsettled(run, error)
        finally:
            self._runs.end(self._cell)
            now = self._clock()
            task.duration = now - task.begun_at
            emit("run_end", section=poller.name, task=task, seconds=task.duration)
            if task.concluded or task.outcome == "finished":
                poller.settlement_buffer.add(task, now)
            else:
                task.forget()
            self._runs.count(now)
        return now

    def _call(self, run: ActiveRun) -> bool:
        """Create the handler and run it. The handler is code of the application, so it may hang or end the process.

        Return False if the run cannot be settled any more.
        """
        task = run.task
        task.finished_later = True
        is_routed = True
        task.timeout = own_timeout = task.own_timeout  # the timeout also limits the creation of the handler
        try:
            handler = run.poller.application.handler(task)
            is_routed = handler is not None
            task.max_attempts = getattr(handler, "max_attempts", None)
            if own_timeout is None:
                task.timeout = getattr(handler, "timeout", None)
            finished, failed = getattr(handler, "retention_time", None), getattr(handler, "failed_retention_time", None)
            if finished is not None or failed is not None:
                task.keep_for(finished, failed)
            if handler is not None and self._may_run(run) and run.begin_handler(handler):
                handler.run()
        except BaseException as error:  # noqa: BLE001 – an error of the application, even SystemExit, ends only its run
            self._leave_if_forked()
            if task.lease_lost and isinstance(error, PreemptedError | OutcomeUnknownError):
                self._emit_unsettled(run, error)
                return False
            retry_failed(task, error)
        self._leave_if_forked()
        if not is_routed:
            self._emit_skip(run, "no handler for this type; retrying later")
            task.defer(f"no handler for the type {task.type!r}")  # not an attempt: newer workers may have a handler
        return True

    def _may_run(self, run: ActiveRun) -> bool:
        """Return whether the run may begin. Record the start of the run first, if that is required.

        If recording fails, release the task. If all allowed attempts ended with the death of their workers, fail the
        task.
        """
        task = run.task
        if task.attempts_exhausted:
            self._emit_skip(run, f"failed for good: {LOST_ATTEMPTS}")
            task.retry(error=LOST_ATTEMPTS)
            return False
        try:
            task.record_begin()
        except PreemptedError as lost:
            task.stop_reason = lost
            return False
        except Exception as error:  # noqa: BLE001 – whatever a driver raises: the handler has not begun
            self._emit_skip(run, f"not run: its start was not recorded: {one_line(error)}")
            if not give_back(task):
                task.stop_reason = error
            return False
        return True

    def _settle(self, run: ActiveRun) -> None:
        """Settle a stopped run whose handler has not settled it. A successful run is settled later, with others."""
        task = run.task
        if task.concluded or task.outcome == "finished":
            return
        task.duration = self._clock() - task.begun_at
        if not task.settled:
            settle_stopped(task)
        if task.settled:
            emit("settle", section=run.poller.name, tasks=(task,), error=None, seconds=None)
        elif task.stop_reason is None:
            self._emit_unsettled(run, "was not settled by its handler; it runs again when its lease ends")
        elif isinstance(task.stop_reason, PreemptedError):
            self._emit_unsettled(run, f"was stopped: {task.stop_reason}")

    def _leave_if_forked(self) -> None:
        """End this process if a handler forked it and then returned, so that it does not become a second worker."""
        if os.getpid() != self._pid:
            os._exit(0)

    def _emit_skip(self, run: ActiveRun, reason: str) -> None:
        emit("run_skip", section=run.poller.name, task=run.task, reason=reason)

    def _emit_unsettled(self, run: ActiveRun, error: Exception | str) -> None:
        run.task.duration = self._clock() - run.task.begun_at
        emit("settle", section=run.poller.name, tasks=(run.task,), error=error, seconds=None)


def settle_stopped(task: Task) -> None:
    """Settle a stopped run whose handler has not settled it. The outcome depends on the reason for the stop.

    Raises like `Task.retry`.
    """
    reason = task.stop_reason
    if isinstance(reason, ImmediateProcessStopError):
        task.release()
    elif isinstance(reason, CancelRequestedError):
        task.cancel()
    elif isinstance(reason, TimeoutError):
        task.retry(error=str(reason))


def give_back(task: Task) -> bool:
    """Release a task that will not begin here. If the run of the task was successful, finish the task instead.

    Return False if this failed. Then the lease of the task expires.
    """
    with task.lock:
        if task.settled:
            return True
        try:
            if task.concluded:
                task.finish()
            else:
                task.release_unstarted()
        except ScheduleError as error:
            log.info("key=%s was not released: %s", task.key, error)
        except Exception as error:  # noqa: BLE001 – the lease expires, whatever the driver raised
            log.warning("key=%s was not released: %s; its lease expires", task.key, one_line(error))
            return False
    return True


class WaitingTaskReleaser(PeriodicThread):
    """Releases prefetched tasks that wait behind a long run."""

    def __init__(self, loops: Sequence[HandlerLoop]) -> None:
        self._loops = loops
        self._stopping = False
        super().__init__("waiting task releaser", self.tick, 0.0)

    def tick(self) -> bool:
        waiting = [loop.release_waiting(self._stopping) for loop in self._loops]
        self.interval = min(loop.check_interval for loop in self._loops)
        return any(waiting)

    def stop(self) -> None:
        """Release all tasks that have not begun."""
        self._stopping = True
        self.wake()
