"""OpenTelemetry spans for submits, runs and settlements, by the semantic conventions for messaging.

A submit is a span `send {type}`. The context of this span is stored in the task's headers. The run of the task is a
span `process {type}`, linked to the span of the submit. The span of the run has a child `settle {type}`: the
transaction that ends the run. The run of a schedule begins a new trace.

`telemetry: otel` in the configuration attaches the listeners. A program without a configuration calls `instrument`. The
spans go to the provider that the program has set. If the application of a worker sets no provider, the worker makes a
provider from the variables OTEL_* after the fork, and sends the remaining spans when the worker ends.
"""

from __future__ import annotations

import atexit
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import Token
from importlib import import_module
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from opentelemetry import context, propagate, trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode

from psched.error_messages import one_line, shown
from psched.model import NewTask, ScheduleRow
from psched.payload import encode_headers
from psched.submit_telemetry import SubmitCall
from psched.task import Task
from psched.telemetry import Event, attach

__all__ = ["instrument"]

log = logging.getLogger(__name__)

_FLUSH = 10.0
"""The maximum number of seconds that an ending worker waits until its last spans are sent."""
_QUEUE = "OTEL_BSP_MAX_QUEUE_SIZE"
_QUEUE_SIZE = 65_536
"""The maximum number of spans that wait to be sent. OTEL_BSP_MAX_QUEUE_SIZE takes precedence. A batch of short tasks
ends about a thousand spans at the same time."""


def instrument(*, parent: bool = False, in_worker: bool = False) -> None:
    """Start making spans in this process. Idempotent: only the options of the first call count.

    `parent`: make the span of a run a child of its submit's span, so that both are in one trace. Otherwise the run
    begins its own trace, with a link to the submit. `in_worker`: make a provider if none is set; True in workers.
    """
    if not isinstance(parent, bool):
        raise ValueError(f"parent must be true or false, got {shown(parent)}")
    _tracing.start(parent, in_worker)


class _Run(NamedTuple):
    span: Span
    token: Token[Context]


class _Send(NamedTuple):
    spans: Sequence[Span]
    token: Token[Context] | None


class _Tracing:
    """Listens to submits and runs. Listeners may be called in any thread."""

    def __init__(self) -> None:
        self._parent = False
        self._detach: list[Callable[[], None]] = []
        self._tracer = trace.get_tracer("psched")
        self._runs: WeakKeyDictionary[Task, _Run] = WeakKeyDictionary()
        self._sends: WeakKeyDictionary[SubmitCall, _Send] = WeakKeyDictionary()

    def start(self, parent: bool, in_worker: bool) -> None:
        if in_worker:
            _make_provider()
        if self._detach:
            return
        self._parent = parent
        self._detach = [
            attach(self._submit_begins, "submit_start"),
            attach(self._submit_ends, "submit_end"),
            attach(self._run_begins, "run_start"),
            attach(self._run_event, "run_skip", "run_error", "lease_lost"),
            attach(self._run_ends, "run_end"),
            attach(self._settled, "settle"),
        ]

    def stop(self) -> None:
        while self._detach:
            self._detach.pop()()

    def _begin(self, operation: str, type_: str, kind: SpanKind, **options: Any) -> Span:
        attributes = {
            "messaging.system": "psched",
            "messaging.operation.name": operation,
            "messaging.operation.type": operation,
            "messaging.destination.name": type_,
            **options.pop("attributes"),
        }
        return self._tracer.start_span(f"{operation} {type_}", kind=kind, attributes=attributes, **options)

    def _submit_begins(self, event: Event, fields: dict[str, Any]) -> None:
        call: SubmitCall = fields["call"]
        of_types: dict[str, list[NewTask]] = {}
        for task in call.tasks:
            of_types.setdefault(task.type, []).append(task)
        spans = {type_: self._send_span(type_, tasks) for type_, tasks in of_types.items()}
        if call.keeps_headers:
            carriers = {type_: _carrier(span) for type_, span in spans.items()}
            call.tasks = [_with_context(task, carriers[task.type]) for task in call.tasks]
        token = None
        if len(spans) == 1:  # so that spans of other libraries for statements become children of this span
            (span,) = spans.values()
            token = context.attach(trace.set_span_in_context(span))
        self._sends[call] = _Send(tuple(spans.values()), token)

    def _send_span(self, type_: str, tasks: Sequence[NewTask]) -> Span:
        about: dict[str, Any] = {"messaging.batch.message_count": len(tasks)}
        if len(tasks) == 1:
            about = {"messaging.message.id": tasks[0].key}
        return self._begin("send", type_, SpanKind.PRODUCER, attributes=about)

    def _submit_ends(self, event: Event, fields: dict[str, Any]) -> None:
        send = self._sends.pop(fields["call"], None)
        if send is None:
            return
        if send.token is not None:
            context.detach(send.token)
        for span in send.spans:
            if fields["error"] is not None:
                _fail(span, fields["error"])
            elif fields["call"].existing:
                span.set_attribute("psched.existing_tasks", len(fields["call"].existing))
            span.end()

    def _run_begins(self, event: Event, fields: dict[str, Any]) -> None:
        task: Task = fields["task"]
        submitted = propagate.extract(_texts(task.headers), Context())
        producer = trace.get_current_span(submitted).get_span_context()
        links = [Link(producer)] if producer.is_valid else []
        around = submitted if self._parent else trace.set_span_in_context(trace.INVALID_SPAN, submitted)
        options: dict[str, Any] = {"context": around, "links": links}
        span = self._begin("process", task.type, SpanKind.CONSUMER, attributes=_attributes(task), **options)
        if span.get_span_context().is_valid:
            task.trace_id = trace.format_trace_id(span.get_span_context().trace_id)
        self._runs[task] = _Run(span, context.attach(trace.set_span_in_context(span, around)))

    def _run_event(self, event: Event, fields: dict[str, Any]) -> None:
        run = self._runs.get(fields["task"])
        if run is None:
            return
        if event == "run_skip":
            run.span.add_event("psched.run_skip", {"reason": fields["reason"]})
        elif event == "lease_lost":
            run.span.add_event("psched.lease_lost")
        elif fields["task"].stop_reason is None:
            _fail(run.span, fields["error"])
        else:  # not an error: psched asked the handler to stop
            run.span.record_exception(fields["error"])

    def _run_ends(self, event: Event, fields: dict[str, Any]) -> None:
        run = self._runs.get(fields["task"])
        if run is None:
            return
        context.detach(run.token)
        outcome = fields["task"].outcome
        if outcome is not None:
            run.span.set_attribute("psched.outcome", outcome)
        if outcome == "failed":
            run.span.set_status(Status(StatusCode.ERROR))
        run.span.end()

    def _settled(self, event: Event, fields: dict[str, Any]) -> None:
        """Make a span for each settled run. The span begins when the common transaction of these runs began."""
        error, seconds = fields["error"], fields["seconds"]
        now = time.time_ns()
        begin = now - int((seconds or 0.0) * 1e9)
        for task in fields["tasks"]:
            run = self._runs.get(task)
            if run is None:
                continue
            about = {"messaging.message.id": task.key, "psched.outcome": task.outcome or "unsettled"}
            around = trace.set_span_in_context(run.span, Context())
            options: dict[str, Any] = {"context": around, "start_time": begin}
            span = self._begin("settle", task.type, SpanKind.CLIENT, attributes=about, **options)
            if isinstance(error, Exception):
                _fail(span, error)
            elif error is not None:
                span.set_status(Status(StatusCode.ERROR, error))
            span.end(now)


_tracing = _Tracing()


def _attributes(task: Task) -> dict[str, Any]:
    about = {
        "messaging.message.id": task.key,
        "psched.section": "schedules" if isinstance(task.row, ScheduleRow) else "queue",
        "psched.attempt": task.attempts,
        "psched.scheduled_time": task.scheduled_time,
    }
    fence = task.fence
    return about if fence is None else {**about, "psched.fence": fence}


def _fail(span: Span, error: BaseException) -> None:
    span.record_exception(error)
    span.set_attribute("error.type", type(error).__qualname__)
    span.set_status(Status(StatusCode.ERROR, one_line(error)))


def _texts(headers: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers whose values are text. A propagator reads only text, but any client may write other values."""
    return {name: value for name, value in headers.items() if isinstance(value, str)}


def _carrier(span: Span) -> dict[str, str]:
    """Return headers that carry the context of `span`. Without a provider, returns no headers."""
    carrier: dict[str, str] = {}
    if span.get_span_context().is_valid:
        propagate.inject(carrier, trace.set_span_in_context(span))
    return carrier


def _with_context(task: NewTask, carrier: Mapping[str, str]) -> NewTask:
    """Return the task with the headers from `carrier` that there is room for. The caller's own headers are kept."""
    own: Any = task.headers  # not checked yet; the store checks it
    if not carrier or not isinstance(own, Mapping) or "traceparent" in own:
        return task
    for added in _ever_fewer(carrier):
        headers = {**added, **own}
        try:
            encode_headers(headers)
        except ValueError:  # too large; or the caller's own headers are invalid, and then the store will refuse them
            continue
        return task._replace(headers=headers)
    return task


def _ever_fewer(carrier: Mapping[str, str]) -> Iterable[Mapping[str, str]]:
    """Yield `carrier`, then `carrier` without the baggage, then `traceparent` alone."""
    yield carrier
    yield {name: value for name, value in carrier.items() if name != "baggage"}
    yield {name: value for name, value in carrier.items() if name == "traceparent"}


def preload() -> None:
    """Import the exporter's modules in the master, so that workers share the memory of these modules."""
    import_module("opentelemetry.exporter.otlp.proto.http.trace_exporter")
    import_module("opentelemetry.sdk.trace.export")


def _make_provider() -> None:
    """Set a provider that sends spans by OTLP over HTTP. A provider that the application has set is kept."""
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415 – workers only
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 – workers only
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415 – workers only
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415 – workers only

    about: dict[str, Any] = {"host.name": socket.gethostname(), "process.pid": os.getpid()}
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        about["service.name"] = "psched"
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    size = None if _QUEUE in os.environ else _QUEUE_SIZE
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=size))
    trace.set_tracer_provider(provider)
    atexit.register(_shut_down, provider.shutdown, os.getpid())


def _shut_down(shutdown: Callable[[], None], pid: int) -> None:
    """Send the remaining spans.

    Waits a limited time, because a collector that hangs must not stop the worker from ending.
    """
    if os.getpid() != pid:
        return
    sending = threading.Thread(target=shutdown, name="last spans", daemon=True)
    sending.start()
    sending.join(_FLUSH)
    if sending.is_alive():
        log.warning("the last spans were not sent within %g s and are lost; is the collector running?", _FLUSH)
