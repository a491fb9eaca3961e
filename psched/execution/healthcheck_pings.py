"""A telemetry listener that pings Healthchecks when a run of a schedule starts, succeeds or fails."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from psched import telemetry
from psched.config import Settings
from psched.config.healthchecks import Healthchecks
from psched.execution.http_request_queue import RequestQueue
from psched.http_client import Request
from psched.store import LeaseStore
from psched.task import Task, store_of

_CLOSE = 3.0
"""How many seconds an ending process continues to send waiting pings."""
_LONGEST_ERROR = 10_000
"""The maximum number of characters of an error in a ping."""
_RUNS = uuid.UUID("5e0f5a4e-6d5c-4c55-9d0a-2f3c1f1f3b0a")
"""The UUID namespace of run ids."""


class HealthcheckPings:
    """Sends pings about the runs of one handler process."""

    def __init__(
        self, configured: Healthchecks, put: Callable[[Request], None], store: LeaseStore | None = None
    ) -> None:
        """`put`: takes a request; must not wait.

        `store`: ping only for the runs of this store, because a process may have several schedulers. Default: ping for
        all runs.
        """
        self._configured = configured
        self._put = put
        self._store = store

    def listen(self, event: telemetry.Event, fields: dict[str, Any]) -> None:
        """Ping for `run_start` and `settle` events. A `settle` event is emitted after the commit."""
        if fields["section"] != "schedules":
            return
        if event == "run_start":
            self._ping(fields["task"], "/start")
        elif fields["error"] is None:
            for task in fields["tasks"]:
                if task.outcome == "finished":
                    self._ping(task, "")
                elif task.error is not None:
                    self._ping(task, "/fail", task.error)

    def _ping(self, task: Task, action: str, text: str = "") -> None:
        if (self._store is not None and store_of(task) is not self._store) or task.backfill is not None:
            return
        url = self._configured.url_of(task.key, task.type)
        if url is not None:
            body = text[:_LONGEST_ERROR].encode(errors="replace")
            headers = {"Content-Type": "text/plain; charset=utf-8"}
            self._put(Request(ping_url(url, action, run_id(task)), body, headers, self._configured.timeout))


def run_id(task: Task) -> str:
    """Return the UUID of the task's attempt. Every process computes the same UUID."""
    return str(uuid.uuid5(_RUNS, f"{task.key}\n{task.scheduled_time}\n{task.lease.fence}"))


def ping_url(url: str, action: str, rid: str) -> str:
    """Return the URL of one ping, with `action` after the path and `rid` in the query."""
    parts = urlsplit(url)
    query = f"{parts.query}&rid={rid}" if parts.query else f"rid={rid}"
    return urlunsplit(parts._replace(path=parts.path.rstrip("/") + action, query=query))


def start_pings(settings: Settings, store: LeaseStore | None = None) -> Callable[[], None]:
    """Start to ping, if `healthchecks` is configured. Return a function that sends waiting pings and stops pinging.

    `store`: as for `HealthcheckPings`.
    """
    configured = None if settings.schedules is None else settings.schedules.healthchecks
    if configured is None:
        return lambda: None
    queue = RequestQueue("healthchecks")
    detach = telemetry.attach(HealthcheckPings(configured, queue.put, store).listen, "run_start", "settle")

    def close() -> None:
        detach()
        queue.close(_CLOSE)

    return close
