"""Serves the metrics over HTTP, with /healthz and /readyz."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from http import HTTPStatus
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import make_wsgi_app
from prometheus_client.exposition import ThreadingWSGIServer

from psched.exporter.families import NodeCollector, registry_of

StartResponse = Callable[..., Any]


class MetricsApplication:
    """A WSGI application with the pages /metrics, /healthz and /readyz."""

    def __init__(self, collector: NodeCollector) -> None:
        self._collector = collector
        self._metrics = make_wsgi_app(registry_of(collector))

    def __call__(self, environ: dict[str, Any], start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path == "/metrics":
            return self._metrics(environ, start_response)  # type: ignore[no-any-return]
        if path == "/healthz":
            health = self._collector.health()
            return _answer(start_response, health.is_healthy, health.why_not())
        if path == "/readyz":
            health = self._collector.health()
            if health.is_ready and not self._collector.database_is_up():
                return _answer(start_response, False, "the database does not answer")
            return _answer(start_response, health.is_ready, health.why_not())
        if path == "/":
            return _answer(start_response, True, "psched exporter: /metrics, /healthz, /readyz")
        start_response(_line(HTTPStatus.NOT_FOUND), [("Content-Type", "text/plain; charset=utf-8")])
        return [b"not found: /metrics, /healthz, /readyz\n"]


def serve(collector: NodeCollector, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until the process ends. Calls `ready` with the address. Raises OSError if the port cannot be used."""
    server_class = _Server6 if ":" in host else ThreadingWSGIServer
    application = MetricsApplication(collector)
    with make_server(host, port, application, server_class, handler_class=_QuietHandler) as server:
        name = f"[{host}]" if ":" in host else host
        ready(f"http://{name}:{server.server_port}/metrics")
        server.serve_forever()


def _answer(start_response: StartResponse, is_ok: bool, text: str) -> Iterable[bytes]:
    status = HTTPStatus.OK if is_ok else HTTPStatus.SERVICE_UNAVAILABLE
    start_response(_line(status), [("Content-Type", "text/plain; charset=utf-8")])
    return [f"{text}\n".encode()]


def _line(status: HTTPStatus) -> str:
    return f"{status.value} {status.phrase}"


class _QuietHandler(WSGIRequestHandler):
    timeout = 30
    """Seconds after which a client that sends or reads nothing is disconnected. Each client occupies a thread."""

    def handle(self) -> None:
        with suppress(TimeoutError, ConnectionError):  # the client is gone
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        """Log no requests, because they come every few seconds."""


class _Server6(ThreadingWSGIServer):
    address_family = socket.AF_INET6


__all__ = ["MetricsApplication", "WSGIServer", "serve"]
