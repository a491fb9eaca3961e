"""What the log says of errors that others raised. In children."""

from __future__ import annotations

import logging

from psched.backends import is_driver_error
from psched.errors import OutcomeUnknownError, PreemptedError, ScheduleError
from psched.task import Task

log = logging.getLogger(__name__)


def is_refusal(error: BaseException) -> bool:
    """Tell whether a database's driver raised it, so that its words say more than a traceback."""
    return is_driver_error(error)


def one_line(error: BaseException) -> str:
    """Return what `error` says on one line, without the statement that SQLAlchemy adds."""
    cause = getattr(error, "orig", None)
    text = str(error if cause is None else cause).strip()
    return text.splitlines()[0] if text else type(error).__name__


def say_unsettled(task: Task, error: ScheduleError) -> None:
    """Log why a run was not settled; nothing is tried again."""
    if isinstance(error, OutcomeUnknownError):
        log.warning("key=%s type=%s outcome unknown: %s", task.key, task.type, error)
    elif isinstance(error, PreemptedError):
        log.info("key=%s preempted: %s", task.key, error)
    else:
        log.info("key=%s was not settled: %s", task.key, error)
