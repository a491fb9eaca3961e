"""One handler thread of a child: poll, run, settle. In a process child it is the main thread."""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Sequence

from psched.application.decider import account_of, failure
from psched.clock import Clock, boottime
from psched.errors import (
    CancelRequestedError,
    ImmediateProcessStopError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
)
from psched.execution.active_runs import ActiveRun, ActiveRuns
from psched.execution.batch_size import TOO_LONG
from psched.execution.poller import SectionPoller
from psched.execution.settlement import CompletedRun
from psched.execution.stop_event import StopEvent
from psched.process.logs import is_refusal, one_line, say_unsettled
from psched.process.running_table import RunningTable
from psched.source.unrunnable import LOST_ATTEMPTS
from psched.task import Task

log = logging.getLogger(__name__)

TURN = 0.1
"""Seconds for which one lane goes on taking batches before the others have their turn."""


class Runner:
    """Takes tasks from its lanes in turn and runs their handlers, until told to stop."""

    def __init__(
        self,
        cell: int,
        pollers: Sequence[SectionPoller],
        runs: ActiveRuns,
        running_table: RunningTable,
        stopping: StopEvent,
        acquired: Callable[[], None],
        done: Callable[[], None],
        clock: Clock = boottime,
    ) -> None:
        """`acquired` is called when there is something to keep or to watch, `done` after each run."""
        self._cell = cell
        self._lanes = pollers
        self._runs = runs
        self._board = running_table
        self._stopping = stopping
        self._acquired = acquired
        self._done = done
        self._clock = clock
        self._waiting: deque[Task] = deque()
        self._pid = os.getpid()

    def run(self) -> None:
        """Work until stopped; returns when the running task is done."""
        try:
            while not self._stopping.is_set():
                worked = [self._serve(poller) for poller in self._lanes]
                if not any(worked):
                    self._rest()
        finally:
            for poller in self._lanes:
                poller.finished.settle()
            all(give_back(task) for task in self._waiting)  # where one fails the others would, too
            for poller in self._lanes:
                poller.close()
                self._runs.close(self._cell, poller.application.close)

    def current(self) -> ActiveRun | None:
        """Return the run in progress. Any thread."""
        return self._runs.at(self._cell)

    def queue(self, tasks: Sequence[Task]) -> None:
        """Put acquired tasks in line."""
        self._waiting.extend(tasks)
        if tasks:
            self._acquired()

    def waiting(self) -> list[Task]:
        """Return the tasks that were taken ahead and have not begun. Any thread."""
        return list(self._waiting)

    def busy_for(self) -> float:
        """Return for how many seconds the present handler has been running; 0 when none is. Any thread."""
        run = self.current()
        return 0.0 if run is None else self._clock() - run.started

    def flush_overdue(self) -> None:
        """Settle what has waited too long for others to be settled with. Any thread."""
        for poller in self._lanes:
            poller.finished.flush_overdue()

    def _serve(self, poller: SectionPoller) -> bool:
        """Run what the lane has now; False when it has nothing.

        While more is due that is begun before what has run is settled, but for a moment only: then others have a turn.
        """
        tasks = poller.poll()
        worked = bool(tasks)
        end = self._clock() + TURN
        while tasks:
            for each in self._lanes:
                each.turn_away()
            # last, since it wakes threads, which are better at work beside the handler than before it
            self.queue(tasks)
            self._run_what_waits(poller)
            tasks = poller.take_more() if self._clock() < end and not self._stopping.is_set() else ()
        poller.finished.settle()
        return worked

    def _run_what_waits(self, poller: SectionPoller) -> None:
        planned, now = -math.inf, self._clock()
        while self._waiting and not self._stopping.is_set():
            if len(self._waiting) > 1 and now > planned + TOO_LONG:
                self._give_back_what_waits(poller)
                planned = self._clock()
            task = self._waiting[0]
            poller.finished.flush_if_slow(now, poller.prefetch.expected(task.type))
            now = self._take(poller, task)
            self._waiting.popleft()

    def _give_back_what_waits(self, poller: SectionPoller) -> None:
        """Give back what would wait too long for what is before it, the last first, until that fails."""
        keep = poller.prefetch.keep([task.type for task in self._waiting])
        while len(self._waiting) > keep and give_back(self._waiting[-1]):
            self._waiting.pop()

    def _rest(self) -> None:
        """Wait until a lane is to be polled: its time has come, or somebody calls."""
        for poller in self._lanes:
            poller.settle()
        ears = {descriptor: poller for poller in self._lanes for descriptor in poller.descriptors}
        for descriptor in self._stopping.wait_for(list(ears), min(poller.pause() for poller in self._lanes)):
            ears[descriptor].hear()

    def _take(self, poller: SectionPoller, task: Task) -> float:
        """Run a task and return when it ended. Few steps: handlers may take a millionth of a second."""
        if not task.is_to_begin:
            give_back(task)
            return self._clock()
        if not task.begin(poller.margin):
            return self._clock()
        run = ActiveRun(task, poller, started=task.begun_at)
        try:
            self._run(run)
        except ScheduleError as error:
            say_unsettled(task, error)
        except Exception as error:
            fault = None if is_refusal(error) else error
            words = "key=%s type=%s could not be settled: %s; it comes back"
            log.error(words, task.key, task.type, one_line(error), exc_info=fault)
        finally:
            now = self._clock()
            took = now - run.started
            if task.concluded or task.outcome == "finished":
                poller.finished.add(CompletedRun(task, took), now)
            else:
                task.forget()
            poller.prefetch.note(task.type, took)
            self._done()
        return now

    def _run(self, run: ActiveRun) -> None:
        """Make the handler and run it. Making it is the application's code, too: it may hang, or end the process."""
        self._board.running(self._cell, run.name)
        self._runs.begin(self._cell, run)
        self._acquired()  # the warden may have found nothing to watch since the poll
        try:
            self._call(run)
            self._conclude(run)
        finally:
            self._runs.end(self._cell)
            self._board.idle(self._cell)

    def _call(self, run: ActiveRun) -> None:
        known = True
        run.task.finished_later = True
        try:
            handler = run.poller.application.handler(run.task)
            known = handler is not None
            run.task.max_attempts = getattr(handler, "max_attempts", None)
            if handler is not None and self._may_run(run.task) and run.take(handler):
                handler.run()
        except BaseException as error:  # noqa: BLE001 – an application's error, even SystemExit, is its task's alone
            self._leave_if_forked()
            self._raised(run.task, error)
        self._leave_if_forked()
        if not known:
            self._unknown(run.task)

    def _may_run(self, task: Task) -> bool:
        return not self._is_worn_out(task) and self._is_recorded(task)

    def _is_worn_out(self, task: Task) -> bool:
        """Let a task fail that has ended its workers as often as its type may be tried."""
        if not task.worn_out:
            return False
        log.error("key=%s type=%s failed for good: %s", task.key, task.type, LOST_ATTEMPTS)
        task.retry(error=LOST_ATTEMPTS)
        return True

    def _is_recorded(self, task: Task) -> bool:
        """Record that the run has begun if that cannot wait; give the task back when that fails."""
        try:
            task.record_begin()
        except PreemptedError as lost:
            task.stop_reason = lost
            return False
        except Exception as error:  # noqa: BLE001 – whatever a driver raises: the handler has not begun
            log.warning("key=%s type=%s not run: its begin was not recorded: %s", task.key, task.type, one_line(error))
            if not give_back(task):
                task.stop_reason = error
            return False
        return True

    def _unknown(self, task: Task) -> None:
        log.error("key=%s type=%s no handler for this type; trying again later", task.key, task.type)
        task.defer(f"no handler for the type {task.type!r}")  # a newer worker may have one: no attempt of this task

    def _raised(self, task: Task, error: BaseException) -> None:
        """A handler let an exception out, perhaps SystemExit: that ends its run and nothing else."""
        if task.lease_lost and isinstance(error, PreemptedError | OutcomeUnknownError):
            say_unsettled(task, error)
        elif task.settled:
            log.error("key=%s raised after it was settled", task.key, exc_info=error)
        elif task.stop_reason is None:
            log.error("key=%s type=%s %s", task.key, task.type, failure(task, error), exc_info=error)
            task.retry(error=account_of(error))

    def _leave_if_forked(self) -> None:
        """A process that the handler forked and that came back here must not go on as a second worker."""
        if os.getpid() != self._pid:
            os._exit(0)

    def _conclude(self, run: ActiveRun) -> None:
        task = run.task
        if task.concluded or task.outcome == "finished":
            return
        if not task.settled:
            settle_stopped(task)
        if task.settled and task.outcome != "finished":
            level, took = logging.DEBUG if task.outcome == "released" else logging.INFO, self._clock() - run.started
            log.log(level, "key=%s type=%s %s", task.key, task.type, task.account(took))


def settle_stopped(task: Task) -> None:
    """Settle a run that its handler left open, by the reason it was stopped for."""
    reason = task.stop_reason
    try:
        if isinstance(reason, ImmediateProcessStopError):
            task.release()
        elif isinstance(reason, CancelRequestedError):
            task.cancel()
        elif isinstance(reason, TimeoutError):
            task.retry(error=str(reason))
        elif isinstance(reason, PreemptedError):
            log.warning("key=%s was stopped: %s", task.key, reason)
        elif reason is None:
            log.warning("key=%s was left unsettled by its handler; it comes back when its lease ends", task.key)
    except ScheduleError as error:
        say_unsettled(task, error)


def give_back(task: Task) -> bool:
    """Release a task that is not going to begin here, or finish one whose run is concluded.

    False when that failed, and it stays leased.
    """
    with task.lock:
        if task.settled:
            return True
        try:
            if task.concluded:
                task.finish()
            else:
                task.release()
        except ScheduleError as error:
            log.info("key=%s was not given back: %s", task.key, error)
        except Exception as error:  # noqa: BLE001 – the lease ends by itself, whatever the driver raised
            log.warning("key=%s was not given back: %s; its lease ends by itself", task.key, one_line(error))
            return False
    return True
