"""Log lines of runs, written by a telemetry listener."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from psched import telemetry
from psched.backends import is_driver_error
from psched.errors import IdempotentAlreadyFinishedError, OutcomeUnknownError, PreemptedError, ScheduleError
from psched.execution.settlement import CompletedRun
from psched.process.logs import one_line
from psched.task import Task

log = logging.getLogger(__name__)

_LONGEST_NAME = 200
"""Characters of an error in the log line; its traceback follows."""


def log_runs() -> None:
    """Log what becomes of runs from now on. May be called several times."""
    telemetry.attach(_log, "run_skip", "run_error", "settle", "lease_lost")


def _log(event: telemetry.Event, fields: dict[str, Any]) -> None:
    if event == "settle" and fields["error"] is None:
        _settled(fields["section"], fields["runs"])
    elif event == "settle":
        for run in fields["runs"]:
            _unsettled(run.task, fields["error"])
    elif event == "run_error":
        _raised(fields["task"], fields["error"])
    elif event == "run_skip":
        log.error("key=%s type=%s %s", fields["task"].key, fields["task"].type, fields["reason"])
    else:
        log.info("key=%s preempted: its lease is no longer ours", fields["task"].key)


def _settled(section: str, runs: Sequence[CompletedRun]) -> None:
    """Log a single run, or how many; several that are settled together have all finished."""
    if len(runs) == 1 or log.isEnabledFor(logging.DEBUG):
        for task, seconds in runs:
            level = logging.DEBUG if len(runs) > 1 or task.outcome == "released" else logging.INFO
            log.log(level, "key=%s type=%s %s", task.key, task.type, task.describe_outcome(seconds))
    if len(runs) > 1:
        log.info("section=%s %d runs finished, the last one key=%s", section, len(runs), runs[-1].task.key)


def _unsettled(task: Task, error: Exception | str) -> None:
    if isinstance(error, str):
        log.warning("key=%s %s", task.key, error)
    elif isinstance(error, OutcomeUnknownError):
        log.warning("key=%s type=%s outcome unknown: %s", task.key, task.type, error)
    elif isinstance(error, PreemptedError):
        log.info("key=%s preempted: %s", task.key, error)
    elif isinstance(error, IdempotentAlreadyFinishedError):
        log.debug("key=%s %s", task.key, error)  # by this worker, and the answer was lost
    elif isinstance(error, ScheduleError):
        log.info("key=%s was not settled: %s", task.key, error)
    else:
        words = "key=%s type=%s could not be settled: %s; it comes back"
        log.error(words, task.key, task.type, one_line(error), exc_info=None if is_driver_error(error) else error)


def _raised(task: Task, error: BaseException) -> None:
    if task.settled:
        log.error("key=%s type=%s raised after it was %s", task.key, task.type, task.outcome, exc_info=error)
    elif task.stop_reason is not None:
        log.info("key=%s type=%s raised when asked to stop: %r", task.key, task.type, error)
    else:
        good = " for good, as this was its last attempt" if task.last_attempt else ""
        name = (repr(error).splitlines() or [""])[0][:_LONGEST_NAME]
        log.error("key=%s type=%s failed%s: %s", task.key, task.type, good, name, exc_info=error)
