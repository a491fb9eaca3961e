"""A bounded queue of HTTP requests. A thread sends them, with retries."""

from __future__ import annotations

import logging
import threading
from collections import deque

from psched.clock import Clock, monotonic
from psched.http_client import Request, post

log = logging.getLogger(__name__)

PAUSES = (1.0, 2.0, 4.0)
"""Seconds before the second, the third and the fourth attempt."""
_SILENCE = 60.0
"""Seconds between two log lines about undelivered requests."""


class RequestQueue:
    """Sends requests in order, in a thread of this process. Each request is tried up to 1 + len(PAUSES) times.

    `put` never waits and never raises. If `capacity` requests are waiting, the oldest is dropped. The first request
    starts the thread, so an unused queue may exist during a fork.
    """

    def __init__(self, name: str, capacity: int = 1000, clock: Clock = monotonic) -> None:
        """`name`: the name of the thread; log lines use it, too."""
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
        """Send the request soon. After `close`, requests are dropped."""
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
        """Send the waiting requests without pauses, for at most `seconds`. Then drop the rest."""
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
                if self._waiting and self._waiting[0] is request:  # else the request was dropped in the meantime
                    self._waiting.popleft()

    def _send(self, request: Request) -> None:
        for pause in (*PAUSES, None):
            is_last = pause is None or self._closing  # a request that was in progress at the close is tried again
            try:
                post(request)
            except Exception as error:  # noqa: BLE001 – the thread must continue with the next request
                if is_last or getattr(error, "is_final", False):
                    with self._changed:
                        self._report(f"{request.host}: {error}")
                    return
            else:
                return
            with self._changed:
                self._changed.wait_for(lambda: self._closing, pause)

    def _report(self, reason: str) -> None:
        """Count an undelivered request. Log the count at most once a minute. The caller holds the lock."""
        self._undelivered += 1
        now = self._clock()
        if self._logged_at is None or now >= self._logged_at + _SILENCE:
            number = "1 request was" if self._undelivered == 1 else f"{self._undelivered} requests were"
            log.warning("%s: %s not delivered: %s", self._name, number, reason)
            self._logged_at, self._undelivered = now, 0
