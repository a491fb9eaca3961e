"""Logs how each run ended, by a telemetry listener."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from psched import telemetry
from psched.backends import is_driver_error
from psched.error_messages import one_line
from psched.errors import (
    ArgumentsError,
    IdempotentAlreadyFinishedError,
    OutcomeUnknownError,
    PreemptedError,
    ScheduleError,
    UnstorableResultError,
)
from psched.task import Task

_runs_log = logging.getLogger("psched.runs")
_LONGEST_NAME = 200
"""The maximum number of characters of an error in the log line of its run. The full traceback follows."""


def log_runs(json: bool = False) -> None:
    """Attach a telemetry listener that logs the end of each run. Idempotent.

    `json`: also log, one by one, the runs that are settled together, and add the run to each record that a handler
    logs.
    """
    if json:
        import psched.structured_logging  # noqa: F401, PLC0415 – attaches the listener for run contexts
    telemetry.attach(_log_each_run if json else _log_run, "run_skip", "run_error", "settle", "lease_lost")


def _log_each_run(event: telemetry.Event, fields: dict[str, Any]) -> None:
    if event == "settle" and fields["error"] is None:
        for task in fields["tasks"]:
            _log_settled_run(task, logging.DEBUG if task.outcome == "released" else logging.INFO)
    else:
        _log_run(event, fields)


def _log_run(event: telemetry.Event, fields: dict[str, Any]) -> None:
    if event == "settle" and fields["error"] is None:
        _log_settled(fields["section"], fields["tasks"])
    elif event == "settle":
        for task in fields["tasks"]:
            _log_unsettled(task, fields["error"])
    elif event == "run_error":
        _log_error(fields["task"], fields["error"])
    elif event == "run_skip":
        task, reason = fields["task"], fields["reason"]
        said = _said("run_skipped", task, reason)
        _runs_log.error("key=%s type=%s %s", task.key, task.type, reason, extra=said)
    else:
        task = fields["task"]
        said = _said("lease_lost", task)
        _runs_log.info("key=%s preempted: this worker has lost its lease", task.key, extra=said)


def _said(event: str, task: Task, error: str | None = None, **fields: Any) -> dict[str, Any]:
    """Return the fields for `JSONFormatter` that describe a run, as the `extra` of a record."""
    return {"psched_event": event, "psched_task": task, "psched_error": error, "psched_fields": fields}


def _log_settled(section: str, tasks: Sequence[Task]) -> None:
    """Log a single run with its outcome. Of several runs, log only the number, because all of them have finished."""
    if len(tasks) == 1 or _runs_log.isEnabledFor(logging.DEBUG):
        for task in tasks:
            _log_settled_run(task, logging.DEBUG if len(tasks) > 1 or task.outcome == "released" else logging.INFO)
    if len(tasks) > 1:
        _runs_log.info("section=%s %d runs finished, the last one key=%s", section, len(tasks), tasks[-1].key)


def _log_settled_run(task: Task, level: int) -> None:
    said = _said(f"run_{task.outcome}", task, duration_ms=round(task.duration * 1000, 3))
    _runs_log.log(level, "key=%s type=%s %s", task.key, task.type, task.describe_outcome(), extra=said)


def _log_unsettled(task: Task, error: Exception | str) -> None:
    said = _said("run_unsettled", task, error if isinstance(error, str) else one_line(error))
    if isinstance(error, str):
        _runs_log.warning("key=%s %s", task.key, error, extra=said)
    elif isinstance(error, OutcomeUnknownError):
        _runs_log.warning("key=%s type=%s outcome unknown: %s", task.key, task.type, error, extra=said)
    elif isinstance(error, PreemptedError):
        _runs_log.info("key=%s preempted: %s", task.key, error, extra=said)
    elif isinstance(error, IdempotentAlreadyFinishedError):
        _runs_log.debug("key=%s %s", task.key, error, extra=said)  # settled by this worker; the answer was lost
    elif isinstance(error, ScheduleError):
        _runs_log.info("key=%s the outcome of this run was not stored: %s", task.key, error, extra=said)
    else:
        words = "key=%s type=%s could not be settled: %s; it runs again when its lease ends"
        trace = None if is_driver_error(error) else error
        _runs_log.error(words, task.key, task.type, one_line(error), exc_info=trace, extra=said)


def _log_error(task: Task, error: BaseException) -> None:
    says_all = isinstance(error, ArgumentsError | UnstorableResultError)  # raised by psched's own checks
    trace = None if says_all else error
    name = (repr(error).splitlines() or [""])[0][: None if says_all else _LONGEST_NAME]
    said = _said("run_error", task, name)
    if task.settled:
        words = "key=%s type=%s handler raised after the run was %s"
        _runs_log.error(words, task.key, task.type, task.outcome, exc_info=error, extra=said)
    elif task.stop_reason is not None:
        _runs_log.info("key=%s type=%s handler raised when asked to stop: %r", task.key, task.type, error, extra=said)
    else:
        good = " for good, as this was its last attempt" if task.last_attempt else ""
        _runs_log.error("key=%s type=%s failed%s: %s", task.key, task.type, good, name, exc_info=trace, extra=said)
