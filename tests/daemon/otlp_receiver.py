"""Receives spans by OTLP over HTTP on loopback, as a collector does."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class ReceivedSpan:
    """A received span. `links`: the trace id and span id of each link."""

    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    links: tuple[tuple[str, str], ...]
    is_error: bool
    begin: int
    end: int
    attributes: dict[str, Any] = field(hash=False)
    resource: dict[str, Any] = field(hash=False)

    @property
    def place(self) -> tuple[str, str]:
        """The trace id and span id, as in a link."""
        return self.trace_id, self.span_id

    @property
    def key(self) -> Any:
        """The key of the span's task or schedule."""
        return self.attributes.get("messaging.message.id")


class OtlpReceiver:
    """Keeps the spans that it receives."""

    def __init__(self) -> None:
        self._spans: list[ReceivedSpan] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                assert self.path == "/v1/traces" and not self.headers.get("Content-Encoding")
                receiver.take(ExportTraceServiceRequest.FromString(body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Print nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True

    @property
    def environ(self) -> dict[str, str]:
        """The environment variables that make a program send its spans to this receiver."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{self._server.server_port}"}

    def take(self, request: ExportTraceServiceRequest) -> None:
        """Keep the spans of one request."""
        for resource in request.resource_spans:
            about = _values(resource.resource.attributes)
            for scope in resource.scope_spans:
                self._spans += [_received(span, about) for span in scope.spans]

    def spans(self, operation: str | None = None, key: str | None = None) -> list[ReceivedSpan]:
        """Return the spans received so far, in the order of their start.

        `operation`, `key`: only spans with this value.

        Each process sends its spans itself, so they may arrive in another order.
        """
        found = [
            span
            for span in list(self._spans)
            if operation in (None, span.name.partition(" ")[0]) and key in (None, span.key)
        ]
        return sorted(found, key=lambda span: span.begin)

    def serve(self) -> None:
        """Receive spans until `close` is called."""
        self._server.serve_forever(0.05)

    def close(self) -> None:
        """Stop `serve`."""
        self._server.shutdown()
        self._server.server_close()


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    """Run a receiver in a thread."""
    receiver = OtlpReceiver()
    thread = threading.Thread(target=receiver.serve, name="otlp receiver", daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.close()
        thread.join()


def _received(span: Span, resource: dict[str, Any]) -> ReceivedSpan:
    return ReceivedSpan(
        span.name,
        Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        span.status.code == 2,
        span.start_time_unix_nano,
        span.end_time_unix_nano,
        _values(span.attributes),
        resource,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}
