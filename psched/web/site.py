"""What the pages share: settings, readers, the collections that change something, and answers kept for some seconds."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, TypeVar

from psched.clock import monotonic
from psched.config import Settings
from psched.insight import Insight, open_insight
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import holder_name
from psched.web.access import Gate
from psched.web.snapshots import Snapshots

T = TypeVar("T")

_CONNECTIONS = 4
_MOST_ANSWERS = 500


class Site:
    """Safe to use from several threads. Connects when something is first asked."""

    def __init__(self, settings: Settings, gate: Gate) -> None:
        self.settings = settings
        self.gate = gate
        self.snapshots = Snapshots(lambda: self.insight)
        self.streams = 0
        """Open streams of change marks."""
        self._lock = threading.Lock()
        self._insight: Insight | None = None
        self._schedules: ScheduleCollection | None = None
        self._queue: Queue | None = None
        self._answers: OrderedDict[Hashable, tuple[float, Any]] = OrderedDict()

    @property
    def insight(self) -> Insight:
        with self._lock:
            if self._insight is None:
                self._insight = open_insight(self.settings, _CONNECTIONS)
            return self._insight

    @property
    def schedules(self) -> ScheduleCollection | None:
        """The schedules, to be changed; None without that section."""
        with self._lock:
            section = self.settings.schedules
            if self._schedules is None and section is not None:
                self._schedules = open_schedules(section, _holder())
            return self._schedules

    @property
    def queue(self) -> Queue | None:
        """The queue, to be changed; None without that section."""
        with self._lock:
            section = self.settings.queue
            if self._queue is None and section is not None:
                self._queue = open_queue(section, _holder())
            return self._queue

    def answer(self, question: Hashable, seconds: float, ask: Callable[[], T]) -> T:
        """Return what `ask` returned within the last `seconds`, or now. Errors are not kept."""
        with self._lock:
            kept = self._answers.get(question)
        if kept is not None and monotonic() - kept[0] < seconds:
            found: T = kept[1]
            return found
        found = ask()
        with self._lock:
            self._answers[question] = (monotonic(), found)
            self._answers.move_to_end(question)
            if len(self._answers) > _MOST_ANSWERS:
                self._answers.popitem(last=False)
        return found

    def forget_answers(self) -> None:
        """Ask everything anew: something was changed here."""
        with self._lock:
            self._answers.clear()

    def close(self) -> None:
        """End the thread and close every connection. Idempotent."""
        self.snapshots.close()
        with self._lock:
            opened = [each for each in (self._insight, self._schedules, self._queue) if each is not None]
            self._insight = self._schedules = self._queue = None
        for each in opened:
            each.close()


def _holder() -> str:
    return holder_name(f"psched-web-{os.getpid()}")
