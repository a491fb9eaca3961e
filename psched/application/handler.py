"""The base class of handlers, the handler of an App's function, and the decider that settles a run that raised."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

from psched.application.event_loop import CancellableRun, EventLoops
from psched.backoff import Backoff
from psched.error_text import did_you_mean
from psched.errors import OutcomeUnknownError, PreemptedError
from psched.task import Task
from psched.telemetry import emit

TaskFunction = Callable[[Task], Any]

_LONGEST_TRACE = 6000
"""Characters kept of the end of a traceback."""


class UndefinedDecisionError(Exception):
    """A handler asked for a decision that its decider does not define."""


class Decider:
    """Decides by name: each public method of a subclass is a decision, its keyword arguments are the facts."""

    def __init__(self, handler: Base) -> None:
        self.handler = handler

    @property
    def task(self) -> Task:
        """The task being run."""
        return self.handler.task

    def decide(self, decision: str, **options: Any) -> Any:
        """Take the named decision. Raises UndefinedDecisionError when there is no such method."""
        known = [name for name in dir(self) if not name.startswith("_") and name not in vars(Decider)]
        methods = {name: method for name in known if callable(method := getattr(self, name))}
        if decision not in methods:
            hint = did_you_mean(decision, methods)
            raise UndefinedDecisionError(f"{type(self).__name__} has no decision {decision!r}{hint}")
        return methods[decision](**options)


class DefaultDecider(Decider):
    """Retries the task later."""

    def unexpected_error_raised(self, error: Exception) -> None:
        """Report the error and make the task due again after the handler's `retry_wait` (None: the configured one).

        A run that is settled, or was asked to stop, stays as it is. Raises `error` again if the lease of this run is
        lost, as nothing can be decided then. The lost lease of another task is a failure like any other.
        """
        task = self.task
        if task.lease_lost and isinstance(error, PreemptedError | OutcomeUnknownError):
            raise error
        retry_failed(task, error, self.handler.retry_wait)


class Base:
    """One run of one task: override `perform`, and settle `self.task` in it. Each run has its own handler object.

    Called by a handler thread of the daemon; only `kill` comes from another thread.
    """

    decider: ClassVar[type[Decider]] = DefaultDecider
    """The class that decides how a run that raised is settled."""

    retry_wait: float | Backoff | None = None
    """Seconds until the next attempt after an error; None takes the configured `retry_wait`."""

    max_attempts: int | None = None
    """Attempts after which a run has failed, unless its task or schedule has a limit; None takes the configured one."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def run(self) -> None:
        """Call before_perform, perform and after_perform; the decider decides about an Exception of theirs."""
        try:
            if self.before_perform() is not False:
                try:
                    self.perform()
                finally:
                    self.after_perform()
        except Exception as error:  # noqa: BLE001 – the decider decides about errors of the handler
            self.decide("unexpected_error_raised", error=error)

    def before_perform(self) -> bool | None:
        """Prepare the run. Return False to end it here: `perform` and `after_perform` are not called then."""
        return None

    def perform(self) -> None:
        """Do the work and call `self.task.finish()`, `retry()` or `release()`."""
        raise NotImplementedError(f"{type(self).__name__} must define perform() or run()")

    def after_perform(self) -> None:
        """Tidy up after `perform`, also when it raised (as in PerfectQueue)."""

    def kill(self, reason: Exception) -> None:
        """Bring `perform` to its end; does nothing here. Called from another thread, also just before `run` begins.

        `reason`: ImmediateProcessStopError, PreemptedError, CancelRequestedError or TimeoutError; `task.stop_reason`
        is set to it before, so that a loop may look there instead. A run that goes on for `child_kill_interval`
        seconds more ends with its process.
        """

    def decide(self, decision: str, **options: Any) -> Any:
        """Call the decider's method of this name. Raises UndefinedDecisionError when it has none."""
        return self.decider(self).decide(decision, **options)


@dataclass(eq=False)
class FunctionHandler(Base):
    """Runs one function on one task. `finish`: whether returning finishes the task."""

    task: Task
    function: TaskFunction
    loops: EventLoops
    finish: bool
    retry_wait: float | Backoff | None
    max_attempts: int | None
    _running: CancellableRun | None = None
    _killed: bool = False

    def perform(self) -> None:
        """Call the function, await its result if that is awaitable, and conclude the task."""
        result = self.function(self.task)
        if result is not None and inspect.isawaitable(result):
            self._running = CancellableRun()
            if self._killed:  # of `kill` and this thread, the second one sees the write of the first
                self._running.cancel()
            self._running.run(result, self.loops.runner())
        if self.finish and not self.task.settled:
            self.task.conclude()

    def kill(self, reason: Exception) -> None:
        """Cancel the awaited coroutine; a plain function has to look at `task.stop_reason`."""
        self._killed = True
        if self._running is not None:
            self._running.cancel()


def retry_failed(task: Task, error: BaseException, retry_wait: float | Backoff | None = None) -> None:
    """Report `error` and retry the task, unless it was settled before or asked to stop. Raises like `Task.retry`."""
    emit("run_error", task=task, error=error)
    if not task.settled and task.stop_reason is None:
        task.retry(retry_wait, error=describe_error(error))


def describe_error(error: BaseException) -> str:
    """Return the error with the end of its traceback, as it is stored with the row."""
    trace = "".join(traceback.format_exception(error))
    return f"{error!r}\n{trace[-_LONGEST_TRACE:]}"
