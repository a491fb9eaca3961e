"""Reports runs to Sentry: errors with the run's context, queue spans, and check-ins of schedules (`psched[sentry]`).

Call `sentry_sdk.init(integrations=[PschedIntegration()])` in the module of the application. Each child imports this
module after its fork.
"""

from __future__ import annotations

import json
import math
import re
import threading
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, cast
from weakref import WeakKeyDictionary

import sentry_sdk
from sentry_sdk.consts import OP, SPANDATA, SPANSTATUS
from sentry_sdk.crons import MonitorStatus, capture_checkin
from sentry_sdk.integrations import Integration
from sentry_sdk.integrations.logging import ignore_logger
from sentry_sdk.scope import should_send_default_pii
from sentry_sdk.tracing import Span, TransactionSource
from sentry_sdk.utils import event_from_exception

from psched import telemetry
from psched.cron.expression import MACROS
from psched.execution.healthcheck_pings import run_id
from psched.model import NewTask, ScheduleRow
from psched.submit_telemetry import SubmitCall
from psched.task import Task

__all__ = ["PschedIntegration"]

_ORIGIN = "auto.queue.psched"
_TRACE_HEADERS = ("sentry-trace", "baggage")
_MOST_HEADERS = 4096
"""The maximum number of bytes of a task's headers as JSON."""
_LONGEST_SLUG = 50
_FIELD = re.compile(r"(?:\*|\d+(?:-\d+)?)(?:/\d+)?|[a-z]{3}(?:-[a-z]{3})?", re.IGNORECASE)
"""One item of a cron field that means the same to psched and Sentry."""
_FIELDS = 5


class PschedIntegration(Integration):
    """Reports errors of handlers with the run's context, spans of submits and runs, and check-ins of schedules.

    A check-in creates or updates the monitor of its schedule. The monitor gets the schedule's rule and time zone. The
    schedule's `alert_after`, if any, limits how late an occurrence may start, and how long it may run.
    """

    identifier = "psched"
    origin = _ORIGIN

    def __init__(self, monitor_schedules: bool = True, exclude_schedules: Iterable[str] = ()) -> None:
        """`monitor_schedules`: whether to send check-ins. `exclude_schedules`: globs of keys without check-ins."""
        self._monitors = monitor_schedules
        self._excluded = tuple(exclude_schedules)

    def monitors(self, key: str) -> bool:
        """Return whether the runs of this schedule send check-ins."""
        return self._monitors and not any(fnmatchcase(key, glob) for glob in self._excluded)

    @staticmethod
    def setup_once() -> None:
        """Attach to psched's telemetry, once per process."""
        ignore_logger("psched.runs")  # `run_error` reports these errors with more details of the run
        telemetry.attach(_listen, "run_start", "run_error", "run_end", "settle", "submit_start", "submit_end")


class _OpenRun(threading.local):
    """The scope and the spans of the run in this thread."""

    stack: ExitStack | None = None
    span: Any = None


_open_run = _OpenRun()
_open_submits: WeakKeyDictionary[SubmitCall, list[Span]] = WeakKeyDictionary()


def _listen(event: telemetry.Event, fields: dict[str, Any]) -> None:
    integration = sentry_sdk.get_client().get_integration(PschedIntegration)
    if integration is None:
        return
    if event == "run_start":
        _begin(integration, fields["section"], fields["task"])
    elif event == "run_error":
        _capture(fields["task"], fields["error"])
    elif event == "run_end":
        _end(fields["task"])
    elif event == "submit_start":
        _publish(fields["call"])
    elif event == "submit_end":
        _published(fields["call"], fields["error"])
    elif fields["error"] is None and fields["section"] == "schedules":
        for task in fields["tasks"]:
            _check_in_end(integration, task)


def _begin(integration: PschedIntegration, section: str, task: Task) -> None:
    _close()
    stack = _open_run.stack = ExitStack()
    scope = stack.enter_context(sentry_sdk.isolation_scope())
    scope.clear_breadcrumbs()
    scope.set_transaction_name(task.type, source=TransactionSource.TASK)
    scope.set_tag("psched.key", task.key[:200])
    scope.set_tag("psched.type", task.type[:200])
    scope.set_context("psched", _about(section, task))
    headers = {name: str(task.headers[name]) for name in _TRACE_HEADERS if name in task.headers}
    transaction = sentry_sdk.continue_trace(
        headers, op="queue.task.psched", name=task.type, source=TransactionSource.TASK, origin=_ORIGIN
    )
    stack.enter_context(sentry_sdk.start_transaction(transaction))
    span = sentry_sdk.start_span(op=OP.QUEUE_PROCESS, name=task.type, origin=_ORIGIN)
    _open_run.span = stack.enter_context(span)
    _describe(span, task.key, task.type)
    span.set_data(SPANDATA.MESSAGING_MESSAGE_RETRY_COUNT, task.attempts - 1)
    latency = _latency(task)
    if latency is not None:
        span.set_data(SPANDATA.MESSAGING_MESSAGE_RECEIVE_LATENCY, round(latency * 1000))
    if section == "schedules" and task.backfill is None and integration.monitors(task.key):
        _check_in(task, MonitorStatus.IN_PROGRESS, None)


def _about(section: str, task: Task) -> dict[str, Any]:
    about: dict[str, Any] = {
        "section": section,
        "key": task.key,
        "type": task.type,
        "scheduled_time": datetime.fromtimestamp(task.scheduled_time, UTC).isoformat(),
        "attempt": task.attempts,
        "last_attempt": task.last_attempt,
        "fence": task.fence,
        "run_id": run_id(task),
    }
    if should_send_default_pii():
        about["data"] = task.data
    return about


def _latency(task: Task) -> float | None:
    """Return how many seconds late the run started, by the database's clock; None if the start is unknown."""
    begun = task.claim.started
    if begun is None:
        return None
    delay = task.row.delay if isinstance(task.row, ScheduleRow) else 0.0
    return max(0.0, begun - task.scheduled_time - delay)


def _capture(task: Task, error: BaseException) -> None:
    """Report an error of a handler.

    If psched had asked the handler to stop, the error is only reported if the reason was a timeout.
    """
    if task.stop_reason is not None and not isinstance(task.stop_reason, TimeoutError):
        return
    options = sentry_sdk.get_client().options
    mechanism = {"type": "psched", "handled": False}
    event, hint = event_from_exception(error, client_options=options, mechanism=mechanism)
    sentry_sdk.capture_event(event, hint=hint)


def _end(task: Task) -> None:
    status = SPANSTATUS.OK if task.error is None else SPANSTATUS.INTERNAL_ERROR
    if _open_run.span is not None:
        _open_run.span.set_status(status)
        transaction = sentry_sdk.get_current_scope().transaction
        if transaction is not None:
            transaction.set_status(status)
    _close()


def _close() -> None:
    stack, _open_run.stack, _open_run.span = _open_run.stack, None, None
    if stack is not None:
        stack.close()


def _describe(span: Any, key: str, type_: str) -> None:
    span.set_data(SPANDATA.MESSAGING_SYSTEM, "psched")
    span.set_data(SPANDATA.MESSAGING_MESSAGE_ID, key)
    span.set_data(SPANDATA.MESSAGING_DESTINATION_NAME, type_)


def _check_in_end(integration: PschedIntegration, task: Task) -> None:
    if task.backfill is not None or not integration.monitors(task.key):
        return
    if task.outcome == "finished":
        _check_in(task, MonitorStatus.OK, task.duration)
    elif task.error is not None:
        _check_in(task, MonitorStatus.ERROR, task.duration)


def _check_in(task: Task, status: str, duration: float | None) -> None:
    capture_checkin(
        monitor_slug=monitor_slug(task.key),
        check_in_id=run_id(task).replace("-", ""),
        status=status,
        duration=duration,
        monitor_config=cast("Any", monitor_config(cast("ScheduleRow", task.row))),
    )


def monitor_slug(key: str) -> str:
    """Return the name of a schedule's monitor: its key, or a slug of the key if Sentry does not allow the key."""
    slug = re.sub(r"[^a-z0-9_]+", "-", key.lower()).strip("-")[:_LONGEST_SLUG]
    if slug == key:
        return slug
    return f"{slug[: _LONGEST_SLUG - 9] or 'schedule'}-{sha256(key.encode()).hexdigest()[:8]}"


def monitor_config(row: ScheduleRow) -> dict[str, Any] | None:
    """Return the monitor of a schedule; None for a rule that Sentry does not support, such as a rule with seconds."""
    if row.rule.start is not None or row.rule.end is not None or row.rule.exclude:
        return None
    cron = MACROS.get(row.rule.cron.strip().lower(), row.rule.cron)
    fields = cron.split()
    items = [item for each in fields for item in each.split(",")]
    if len(fields) != _FIELDS or not all(map(_FIELD.fullmatch, items)):
        return None
    config: dict[str, Any] = {
        "schedule": {"type": "crontab", "value": " ".join(fields)},
        "timezone": row.rule.timezone,
    }
    delay, alert_after = row.delay, row.policy.alert_after
    if alert_after is not None:
        config["checkin_margin"] = _minutes(delay + alert_after)
        config["max_runtime"] = _minutes(alert_after)
    elif delay > 0:
        config["checkin_margin"] = _minutes(delay) + 1
    return config


def _minutes(seconds: float) -> int:
    return max(1, math.ceil(seconds / 60))


def _publish(call: SubmitCall) -> None:
    """Open a span for each type of the submitted tasks.

    If the store keeps headers, put the trace into the tasks' headers.
    """
    of_types: dict[str, list[NewTask]] = {}
    for task in call.tasks:
        of_types.setdefault(task.type, []).append(task)
    spans = {type_: sentry_sdk.start_span(op=OP.QUEUE_PUBLISH, name=type_, origin=_ORIGIN) for type_ in of_types}
    _open_submits[call] = list(spans.values())
    for type_, span in spans.items():
        first, *more = of_types[type_]
        _describe(span, first.key, type_)
        if more:
            span.set_data("messaging.batch.message_count", len(more) + 1)
    if len(spans) == 1:  # so that Sentry's spans for statements become children of this span
        span.__enter__()
    if call.keeps_headers:
        scope = sentry_sdk.get_current_scope()
        traces = {type_: dict(scope.iter_trace_propagation_headers(span=span)) for type_, span in spans.items()}
        call.tasks = [task._replace(headers=_joined(task.headers, traces[task.type])) for task in call.tasks]


def _published(call: SubmitCall, error: BaseException | None) -> None:
    spans = _open_submits.pop(call, [])
    for span in spans:
        if len(spans) == 1:
            span.__exit__(None if error is None else type(error), error, None)
        else:
            if error is not None:
                span.set_status(SPANSTATUS.INTERNAL_ERROR)
            span.finish()


def _joined(headers: Mapping[str, Any], trace: Mapping[str, str]) -> Mapping[str, Any]:
    """Return `headers` with the headers of the trace added, if there is room. The caller's own headers are kept."""
    for names in (_TRACE_HEADERS, _TRACE_HEADERS[:1]):
        joined = {**{name: trace[name] for name in names if name in trace}, **headers}
        if len(json.dumps(joined)) <= _MOST_HEADERS:
            return joined
    return headers
