"""The base class of handlers. In children."""

from __future__ import annotations

from typing import Any, ClassVar

from psched.application.failure_handling import Decider, DefaultDecider
from psched.backoff import Backoff
from psched.task import Task


class Base:
    """One run of one task: override `perform`, and settle `self.task` in it. Each run has its own handler object.

    Called by a handler thread of the daemon; only `kill` comes from another thread.
    """

    decider: ClassVar[type[Decider]] = DefaultDecider
    """The class that decides how a run that raised is settled."""

    retry_wait: float | Backoff | None = None
    """Seconds until the next attempt after an error; None takes the configured `retry_wait`."""

    max_attempts: int | None = None
    """After how many attempts a run has failed for good, unless its task or schedule says so itself.

    None takes the configured number.
    """

    def __init__(self, task: Task) -> None:
        self.task = task

    def run(self) -> None:
        """Call before_perform, perform and after_perform; the decider decides about an Exception of theirs."""
        try:
            if self.before_perform() is not False:
                self._perform()
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

    def _perform(self) -> None:
        try:
            self.perform()
        finally:
            self.after_perform()
