"""Decides how a run that raised is settled; a team may replace it. In children."""

from __future__ import annotations

import traceback
from typing import Any, Protocol

from psched.backoff import Backoff
from psched.errors import OutcomeUnknownError, PreemptedError
from psched.suggest import did_you_mean
from psched.task import Task
from psched.telemetry import emit

_LONGEST_TRACE = 6000
"""Characters kept of the end of a traceback."""


class UndefinedDecisionError(Exception):
    """A handler asked for a decision that its decider does not define."""


class Undecided(Protocol):
    """The parts of a handler that a decider uses."""

    task: Task
    retry_wait: float | Backoff | None


class Decider:
    """Decides by name: each public method of a subclass is a decision, its keyword arguments are the facts."""

    def __init__(self, handler: Undecided) -> None:
        self.handler = handler

    @property
    def task(self) -> Task:
        """The task being run."""
        return self.handler.task

    def decide(self, decision: str, **options: Any) -> Any:
        """Take the named decision. Raises UndefinedDecisionError when there is no such method."""
        if decision not in self._decisions():
            name = type(self).__name__
            hint = did_you_mean(decision, self._decisions())
            raise UndefinedDecisionError(f"{name} has no decision {decision!r}{hint}")
        return getattr(self, decision)(**options)

    def _decisions(self) -> list[str]:
        names = [name for name in dir(self) if not name.startswith("_") and name not in vars(Decider)]
        return [name for name in names if callable(getattr(self, name))]


class DefaultDecider(Decider):
    """Retries the task later."""

    def unexpected_error_raised(self, error: Exception) -> None:
        """Report the error and make the task due again after the handler's `retry_wait` (None: the configured one).

        A run that was settled before, or was asked to stop, stays as it is. Raises `error` again when it means that the
        lease of this very run is lost: then there is nothing to decide. Such an error about another task is a failure
        like any other.
        """
        task = self.task
        if task.lease_lost and isinstance(error, PreemptedError | OutcomeUnknownError):
            raise error
        emit("run_error", task=task, error=error)
        if not task.settled and task.stop_reason is None:
            task.retry(self.handler.retry_wait, error=account_of(error))


def account_of(error: BaseException) -> str:
    """Return the error with the end of its traceback, as it is stored with the row."""
    trace = "".join(traceback.format_exception(error))
    return f"{error!r}\n{trace[-_LONGEST_TRACE:]}"
