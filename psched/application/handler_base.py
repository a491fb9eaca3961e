"""Base classes of handlers and of deciders. A decider decides how a failed run is settled.

Used in child processes and by the embedded scheduler.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from psched.application.event_loop import CancellableRun, EventLoops
from psched.error_messages import did_you_mean
from psched.errors import ArgumentsError, OutcomeUnknownError, PreemptedError, UnstorableResultError
from psched.retry_wait import Backoff
from psched.task import Task
from psched.telemetry import emit

_LONGEST_TRACE = 6000
"""The maximum number of characters that are kept of a traceback: its end."""


class Handler(Protocol):
    """One run of one task, with the methods that the daemon calls."""

    def run(self) -> None:
        """Do the work and settle the task. Called in a handler thread. An exception ends only this run."""

    def kill(self, reason: Exception) -> None:
        """Make `run` end soon. `reason` is the cause. Called by another thread, at any time, at most once."""


HandlerFactory = Callable[[Task], Handler]


class UndefinedDecisionError(Exception):
    """A handler requested a decision that its decider does not define."""


class Decider:
    """Decides how to settle a run.

    Each public method of a subclass is a decision. Its keyword arguments describe the case.
    """

    def __init__(self, handler: Base) -> None:
        self.handler = handler

    @property
    def task(self) -> Task:
        """The task being run."""
        return self.handler.task

    def decide(self, decision: str, **options: Any) -> Any:
        """Call the method named `decision`. Raises UndefinedDecisionError if no such method exists."""
        known = [name for name in dir(self) if not name.startswith("_") and name not in vars(Decider)]
        methods = {name: method for name in known if callable(method := getattr(self, name))}
        if decision not in methods:
            hint = did_you_mean(decision, methods)
            raise UndefinedDecisionError(f"{type(self).__name__} has no decision {decision!r}{hint}")
        return methods[decision](**options)


class DefaultDecider(Decider):
    """Makes a task due again after an error."""

    def unexpected_error_raised(self, error: Exception) -> None:
        """Report the error, and make the task due again after the handler's `retry_wait`.

        If `retry_wait` is None, the configured wait applies. A wait of the schedule takes precedence over both.

        A run that is already settled, or was asked to stop, is not changed. If the lease of this run is lost, `error`
        is raised again. If `error` is about the lost lease of another task, this run is retried.
        """
        task = self.task
        if task.lease_lost and isinstance(error, PreemptedError | OutcomeUnknownError):
            raise error
        retry_failed(task, error, self.handler.retry_wait)


class Base:
    """One run of one task. Override `perform`, and settle `self.task` in it. Each run has its own handler object.

    A handler thread of the daemon calls the methods. Only `kill` is called by another thread.
    """

    decider: ClassVar[type[Decider]] = DefaultDecider
    """The class that decides how to settle a run that raised an exception."""

    retry_wait: float | Backoff | None = None
    """Seconds from an error to the next attempt, or a growing wait. A wait of the schedule takes precedence. None: the
    configured `retry_wait`.
    """

    max_attempts: int | None = None
    """The maximum number of attempts for a task or an occurrence. A limit of the task or of the schedule takes
    precedence. None: the configured `max_attempts`.
    """

    timeout: float | None = None
    """Seconds after which a run is stopped and retried. A timeout of the schedule takes precedence. None: the
    configured `task_timeout`."""

    retention_time: float | None = None
    """How many seconds a finished queue task is kept with its result; None: the configured time."""

    failed_retention_time: float | None = None
    """How many seconds a failed queue task is kept; None: the configured time."""

    def __init__(self, task: Task) -> None:
        self.task = task

    def run(self) -> None:
        """Call before_perform, perform and after_perform. If one of them raises an Exception, call the decider."""
        try:
            if self.before_perform() is not False:
                try:
                    self.perform()
                finally:
                    self.after_perform()
        except Exception as error:  # noqa: BLE001 – the decider handles errors of the handler
            self.decide("unexpected_error_raised", error=error)

    def before_perform(self) -> bool | None:
        """Prepare the run. Return False to end the run here, without `perform` and `after_perform`."""
        return None

    def perform(self) -> None:
        """Do the work and call `self.task.finish()`, `retry()` or `release()`."""
        raise NotImplementedError(f"{type(self).__name__} must define perform() or run()")

    def after_perform(self) -> None:
        """Clean up after `perform`, even if it raised an exception."""

    def kill(self, reason: Exception) -> None:
        """Make `perform` end soon. The default does nothing.

        Another thread calls this, possibly just before `run` begins.

        `reason`: ImmediateProcessStopError, PreemptedError, CancelRequestedError or TimeoutError. It is in
        `task.stop_reason` before the call, so a loop can check that attribute instead. If the run still continues after
        another `child_kill_interval` seconds, its process is killed.
        """

    def decide(self, decision: str, **options: Any) -> Any:
        """Call the decider's method named `decision`. Raises UndefinedDecisionError if no such method exists."""
        return self.decider(self).decide(decision, **options)


class CallingHandler(Base):
    """Calls a function that may be `async`. `kill` cancels a coroutine; other functions check `task.stop_reason`."""

    def __init__(self, task: Task, loops: EventLoops) -> None:
        super().__init__(task)
        self._loops = loops
        self._running: CancellableRun | None = None
        self._killed = False

    def kill(self, reason: Exception) -> None:
        """Cancel the awaited coroutine."""
        self._killed = True
        if self._running is not None:
            self._running.cancel()

    def awaited(self, result: Any) -> Any:
        """Return the result of the function. If `result` is awaitable, await it first."""
        if result is None or not inspect.isawaitable(result):
            return result
        self._running = CancellableRun()
        if self._killed:  # `kill` and this thread write one attribute each; the later writer sees both
            self._running.cancel()
        return self._running.run(result, self._loops.runner())


def retry_failed(task: Task, error: BaseException, retry_wait: float | Backoff | None = None) -> None:
    """Report `error`. Then retry the task if it is not settled and has no `stop_reason`. Raises like `Task.retry`.

    `retry_wait`: the wait of the task's type. A wait of the task's schedule takes precedence. An UnstorableResultError
    is not retried: the task fails for good.
    """
    emit("run_error", task=task, error=error)
    if task.settled or task.stop_reason is not None:
        return
    if isinstance(error, UnstorableResultError):
        task.fail(str(error))
    else:
        task.retry(retry_wait if task.own_retry_wait is None else None, error=describe_error(error))


def describe_error(error: BaseException) -> str:
    """Return the text of the error with the end of its traceback. This text is stored with the row.

    The text of an ArgumentsError has no traceback, because psched's own check of the data raises it.
    """
    if isinstance(error, ArgumentsError):
        return f"{type(error).__name__}: {error}"
    trace = "".join(traceback.format_exception(error))
    return f"{error!r}\n{trace[-_LONGEST_TRACE:]}"


def takes_one_argument(function: Callable[..., Any]) -> bool:
    """Return whether `function` can be called with one argument; True if Python does not know its parameters."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # Python knows no parameters of this function, which is written in C
        return True
    return True
