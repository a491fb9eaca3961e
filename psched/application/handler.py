"""Base classes of handlers, and of deciders (how a failed run is settled). In children and the embedded scheduler."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar, Protocol, TypeVar

from psched.application.event_loop import CancellableRun, EventLoops
from psched.error_messages import did_you_mean
from psched.errors import OutcomeUnknownError, PreemptedError, UnstorableResultError
from psched.retry_wait import Backoff
from psched.task import Task
from psched.telemetry import emit

T = TypeVar("T")

_LONGEST_TRACE = 6000
"""Characters kept of the end of a traceback."""


class Handler(Protocol):
    """One run of one task: the methods that the daemon calls."""

    def run(self) -> None:
        """Do the work and settle the task. In a handler thread; an exception ends this run only."""

    def kill(self, reason: Exception) -> None:
        """Make `run` end soon; `reason` says why. Called from another thread, at any time, at most once."""


HandlerFactory = Callable[[Task], Handler]


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

    timeout: float | None = None
    """Seconds after which the run is stopped and tried again; None takes the configured `task_timeout`."""

    retention_time: float | None = None
    """Seconds for which a finished queue task is kept, with its result; None takes the configured time."""

    failed_retention_time: float | None = None
    """Seconds for which a failed queue task is kept; None takes the configured time."""

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
        is set to it before, so that a loop may look there instead. A run that continues for `child_kill_interval`
        seconds more ends with its process.
        """

    def decide(self, decision: str, **options: Any) -> Any:
        """Call the decider's method of this name. Raises UndefinedDecisionError when it has none."""
        return self.decider(self).decide(decision, **options)


class CallingHandler(Base):
    """Calls functions. `kill` cancels the coroutine that is awaited; a function has to look at `task.stop_reason`."""

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

    def call(self, function: Callable[[T], Any], argument: T) -> Any:
        """Call the function, and return its result: if that is awaitable, what it returns."""
        result = function(argument)
        return self._await(result) if result is not None and inspect.isawaitable(result) else result

    def _await(self, result: Awaitable[object]) -> object:
        self._running = CancellableRun()
        if self._killed:  # of `kill` and this thread, the second one sees the write of the first
            self._running.cancel()
        return self._running.run(result, self._loops.runner())


def retry_failed(task: Task, error: BaseException, retry_wait: float | Backoff | None = None) -> None:
    """Report `error` and retry the task, unless it was settled before or asked to stop. Raises like `Task.retry`.

    `retry_wait`: of its type; that of its schedule comes first. A task whose result cannot be stored fails for good.
    """
    emit("run_error", task=task, error=error)
    if task.settled or task.stop_reason is not None:
        return
    if isinstance(error, UnstorableResultError):
        task.fail(str(error))
    else:
        task.retry(retry_wait if task.own_retry_wait is None else None, error=describe_error(error))


def describe_error(error: BaseException) -> str:
    """Return the error with the end of its traceback, as it is stored with the row."""
    trace = "".join(traceback.format_exception(error))
    return f"{error!r}\n{trace[-_LONGEST_TRACE:]}"


def takes_one_argument(function: Callable[..., Any]) -> bool:
    """Return whether `function` can be called with one argument; True where Python does not know its parameters."""
    try:
        inspect.signature(function).bind(None)
    except TypeError:
        return False
    except ValueError:  # a function in C
        return True
    return True
