"""Outgoing HTTP requests: one POST, and a bounded queue of POSTs that a thread sends with retries."""

from __future__ import annotations

import http.client
import logging
import threading
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from psched.clock import Clock, monotonic

log = logging.getLogger(__name__)

_USER_AGENT = "psched"
PAUSES = (1.0, 2.0, 4.0)
"""Seconds before the second and each further attempt at a request."""
_WORTH_A_RETRY = (408, 425, 429)
"""Statuses below 500 after which the same request may succeed."""
_SILENCE = 60.0
"""Seconds between two log lines about requests that were not delivered."""


@dataclass(frozen=True, slots=True)
class Request:
    """One POST. `timeout`: seconds for the connection, and again for the answer."""

    url: str = field(repr=False)
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 10.0

    @property
    def host(self) -> str:
        """The host of the URL, for messages: the rest may be a secret."""
        return urlsplit(self.url).hostname or "?"


class RequestError(OSError):
    """A request that was not answered with 2xx. `is_final`: another attempt would fail, too."""

    def __init__(self, message: str, is_final: bool = False) -> None:
        super().__init__(message)
        self.is_final = is_final


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: urllib would follow it by a GET without the body."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def post(request: Request) -> None:
    """Send one request; proxies are those of the environment. Raises RequestError, without the URL."""
    headers = {"User-Agent": _USER_AGENT, **request.headers}
    sent = urllib.request.Request(request.url, request.body, headers, method="POST")  # noqa: S310 – http(s)
    opener = urllib.request.build_opener(_NoRedirects)
    try:
        with opener.open(sent, timeout=request.timeout):
            return
    except urllib.error.HTTPError as error:
        error.close()
        is_final = error.code < 500 and error.code not in _WORTH_A_RETRY
        raise RequestError(f"HTTP {error.code} {error.reason}", is_final) from None
    except urllib.error.URLError as error:
        raise RequestError(str(error.reason)) from None
    except (OSError, http.client.HTTPException) as error:
        raise RequestError(str(error) or type(error).__name__) from None


class RequestQueue:
    """Sends requests in their order, in a thread of this process, each up to 1 + len(PAUSES) times.

    `put` never waits and never raises. When `capacity` requests wait, the oldest is dropped. The thread starts with the
    first request, so an unused queue may cross a fork.
    """

    def __init__(self, name: str, capacity: int = 1000, clock: Clock = monotonic) -> None:
        """`name`: of the thread, and what the log calls the requests."""
        self._name = name
        self._capacity = capacity
        self._clock = clock
        self._waiting: deque[Request] = deque()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closing = False
        self._undelivered = 0
        self._logged_at: float | None = None

    def put(self, request: Request) -> None:
        """Send the request soon. After `close` it is dropped."""
        with self._changed:
            if self._closing:
                return
            if len(self._waiting) >= self._capacity:
                self._waiting.popleft()
                self._report(f"more than {self._capacity} requests wait")
            self._waiting.append(request)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify()

    def close(self, seconds: float) -> None:
        """Send what waits, without pauses, for at most `seconds`; then give up the rest."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is None:
            return
        thread.join(seconds)
        with self._changed:
            left = len(self._waiting)
            self._waiting.clear()
        if left:
            log.warning("%s: %d requests were not sent before the stop", self._name, left)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                if not self._waiting:
                    return
                request = self._waiting[0]
            self._send(request)
            with self._changed:
                if self._waiting and self._waiting[0] is request:  # else it was dropped meanwhile
                    self._waiting.popleft()

    def _send(self, request: Request) -> None:
        for pause in (*PAUSES, None):
            is_last = pause is None or self._closing  # a request that was being sent at the close is tried once more
            try:
                post(request)
            except Exception as error:  # noqa: BLE001 – the thread must go on with the next request
                if is_last or getattr(error, "is_final", False):
                    with self._changed:
                        self._report(f"{request.host}: {error}")
                    return
            else:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)

    def _report(self, reason: str) -> None:
        """Count an undelivered request, and log the count once a minute. Call with the lock."""
        self._undelivered += 1
        now = self._clock()
        if self._logged_at is None or now >= self._logged_at + _SILENCE:
            number = "1 request was" if self._undelivered == 1 else f"{self._undelivered} requests were"
            log.warning("%s: %s not delivered: %s", self._name, number, reason)
            self._logged_at, self._undelivered = now, 0
