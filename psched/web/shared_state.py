"""The state that pages share: settings, readers, collections for changes, and results of queries.

A query is called a question here, and its result an answer. Answers are kept for a few seconds.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from typing import Any, NamedTuple, TypeVar, cast

from psched.clock import monotonic
from psched.config import SectionName, Settings
from psched.errors import NotFoundError
from psched.insight import Insight, open_insight
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import holder_name
from psched.web.access import Gate
from psched.web.status_poller import StatusPoller

T = TypeVar("T")

_CONNECTIONS = 4
_MOST_ANSWERS = 500
_PATIENCE = 0.3
"""Seconds that a page waits for a slow query. Most queries end in this time, but not those about 100,000 schedules."""
_FAILURE_KEPT = 30.0
"""Seconds after which the failure of a slow query is forgotten if no browser has fetched the error."""
_MOST_ASKED = 50
"""The maximum number of slow queries that wait for a thread, are running, or have failed with an error that no browser
has fetched yet. For further queries, browsers have to ask again."""
_THREADS = 2
"""The number of threads for slow queries."""


class _Kept(NamedTuple):
    """The result of a query, when it was found, and until when it may be used. Times are monotonic seconds."""

    at: float
    until: float
    found: Any


class SharedState:
    """State that all pages share. Safe to use from several threads. Connects at the first query."""

    def __init__(self, settings: Settings, gate: Gate) -> None:
        self.settings = settings
        self.gate = gate
        self.status_poller = StatusPoller(lambda: self.insight)
        self.streams = 0
        """The number of browsers connected to the stream of changes."""
        self._lock = threading.Lock()
        self._insight: Insight | None = None
        self._schedules: ScheduleCollection | None = None
        self._queue: Queue | None = None
        self._asked: dict[Hashable, Future[Any]] = {}
        self._failed: dict[Hashable, float] = {}
        """When queries of `_asked` failed, in monotonic seconds."""
        self._thread_pool = ThreadPoolExecutor(_THREADS, "psched web slow answers")
        self._is_closed = False
        self._answers: OrderedDict[Hashable, _Kept] = OrderedDict()
        self._asking: dict[Hashable, threading.Lock] = {}
        """The queries that threads are executing now. Other threads that need the same result wait for the lock."""
        self._changes = 0
        """How often `forget_answers` was called. The result of a query that began before the last call is not kept."""

    @property
    def insight(self) -> Insight:
        with self._lock:
            if self._insight is None:
                self._insight = open_insight(self.settings, _CONNECTIONS)
            return self._insight

    @property
    def schedules(self) -> ScheduleCollection:
        """The schedules, opened for changes. Raises like `configured`."""
        with self._lock:
            if self._schedules is None:
                self._schedules = open_schedules(configured(self.settings.schedules, "schedules"), _holder())
            return self._schedules

    @property
    def queue(self) -> Queue:
        """The queue, opened for changes. Raises like `configured`."""
        with self._lock:
            if self._queue is None:
                self._queue = open_queue(configured(self.settings.queue, "queue"), _holder())
            return self._queue

    def answer(self, question: Hashable, seconds: float, ask: Callable[[], T], keep: float | None = None) -> T:
        """Return a kept result of a query if it is younger than `seconds`. Otherwise return what `ask` returns now.

        `question`: identifies the query. If several threads have the same question, only one calls `ask`. Errors are
        not kept. `keep`: seconds after which the result is dropped, because it may be large. The default is `seconds`.
        """
        with self._lock:
            asking = self._asking.setdefault(question, threading.Lock())
        try:
            with asking:
                with self._lock:
                    kept, changes = self._answers.get(question), self._changes
                if kept is not None and monotonic() - kept.at < seconds:
                    found: T = kept.found
                    return found
                found = ask()
                with self._lock:
                    if changes == self._changes:
                        self._keep(question, found, seconds if keep is None else keep)
                return found
        finally:
            with self._lock:
                if not asking.locked():
                    self._asking.pop(question, None)

    def _keep(self, question: Hashable, found: Any, seconds: float) -> None:
        """Keep the result of a query, and drop expired results."""
        now = monotonic()
        for other in [each for each, kept in self._answers.items() if kept.until <= now]:
            del self._answers[other]
        self._answers[question] = _Kept(now, now + seconds, found)
        self._answers.move_to_end(question)
        if len(self._answers) > _MOST_ANSWERS:
            self._answers.popitem(last=False)

    def slow_answer(
        self, question: Hashable, seconds: float, ask: Callable[[], T], patience: float | None = None
    ) -> T | None:
        """Return the kept result of a query. If it is older than `seconds`, call `ask` again in a thread.

        A result older than twice `seconds` is not returned. Instead, the call waits up to `patience` seconds for the
        new result, and returns None if it has not come. After None, the browser fetches the page again, and gets the
        result or the error. `ask` must not depend on the request, except for the shown time zone, which is the same for
        all requests.
        """
        with self._lock:
            self._forget_old_failures()
            kept = self._answers.get(question)
            asked = self._asked.get(question)
            is_open = not self._is_closed and len(self._asked) < _MOST_ASKED
            if asked is None and (kept is None or monotonic() - kept.at >= seconds) and is_open:
                asked = self._asked[question] = self._thread_pool.submit(
                    copy_context().run, self._ask_slowly, question, ask, 2 * seconds
                )
        if kept is not None and monotonic() - kept.at < 2 * seconds:
            found: T = kept.found
            return found
        if asked is None or not wait([asked], _PATIENCE if patience is None else patience).done:
            return None
        with self._lock:
            self._asked.pop(question, None)  # `ask` failed: after a success its thread removes the question
            self._failed.pop(question, None)
        return cast("T", asked.result())

    def _ask_slowly(self, question: Hashable, ask: Callable[[], T], keep: float) -> T:
        try:
            found = self.answer(question, 0, ask, keep)
        except BaseException:
            with self._lock:
                self._failed[question] = monotonic()
            raise
        with self._lock:
            self._asked.pop(question, None)
        return found

    def _forget_old_failures(self) -> None:
        for question, failed in list(self._failed.items()):
            if monotonic() - failed >= _FAILURE_KEPT:
                del self._failed[question]
                self._asked.pop(question, None)

    def forget_answers(self) -> None:
        """Forget all kept results, because a visitor changed something."""
        with self._lock:
            self._answers.clear()
            self._changes += 1

    def close(self) -> None:
        """End the threads and close every connection. Idempotent."""
        self.status_poller.close()
        with self._lock:
            self._is_closed = True
        self._thread_pool.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            opened = [each for each in (self._insight, self._schedules, self._queue) if each is not None]
            self._insight = self._schedules = self._queue = None
        for each in opened:
            each.close()


def configured(found: T | None, section: SectionName) -> T:
    """Return `found`. Raises NotFoundError if it is None, because the configuration does not have this section."""
    if found is None:
        raise NotFoundError(f"this configuration has no section `{section}`")
    return found


def _holder() -> str:
    return holder_name(f"psched-web-{os.getpid()}")
