"""The status that all visitors share. One thread asks the database once a second, as long as there are visitors."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from psched.clock import monotonic
from psched.error_messages import one_line
from psched.insight import Insight, NodeState
from psched.insight.table_insight import problem_of
from psched.model import ScheduleRow
from psched.store.counts import Counted

log = logging.getLogger(__name__)

INTERVAL: Final = 1.0
"""Seconds from one snapshot to the next."""
_SLOW_INTERVAL = 4.0
"""Seconds after which nodes and overdue schedules are read again."""
PATIENCE: Final = 2.5
"""Seconds after which a database that has not answered counts as unreachable."""
_FIRST = 6.0
"""`PATIENCE` for the first answer. It is longer, because modules are loaded and a connection is opened first."""
_NEVER = -1e9
"""A time before any time of the monotonic clock."""
_NOBODY = 30.0
"""The thread ends this many seconds after the last request of a visitor."""
_REFRESH = 15
"""Seconds after which a page is fetched again even if no number has changed."""
_MOST = 1000
"""The maximum number of rows of each state that are counted. Counting more would cost time each second, for little
use."""
_MOST_OVERDUE = 50
"""The maximum number of late schedules that are counted."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The state of the database at `taken` (unix seconds, database's clock).

    `mark`: when it changes, browsers fetch their pages again. `overdue`: the most overdue schedules, at most 51. That
    is one more than pages count.
    """

    taken: float
    mark: str
    schedules: Mapping[str, Counted]
    tasks: Mapping[str, Counted]
    nodes: Sequence[NodeState]
    overdue: Sequence[ScheduleRow]

    @property
    def overdue_count(self) -> Counted:
        """The number of late schedules, counted up to 50."""
        return Counted.up_to(_MOST_OVERDUE, len(self.overdue))


@dataclass(frozen=True, slots=True)
class Status:
    """The last snapshot, if any.

    `away_since`: since when the database cannot be used (unix seconds); None if it can be used. `problem`: why it
    cannot be used.
    """

    snapshot: Snapshot | None = None
    away_since: float | None = None
    problem: str = ""


class StatusPoller:
    """Keeps the status of the database up to date. Safe to use from several threads."""

    def __init__(self, insight: Callable[[], Insight]) -> None:
        """`insight`: called when the database is first read; returns the reader."""
        self._insight = insight
        self._changed = threading.Condition()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._wanted_until = 0.0
        self._asked: tuple[float, float] | None = None
        """When the query that is still unanswered began, in monotonic and in unix seconds."""
        self._status = Status()
        self._answered = _NEVER
        self._slow: tuple[float, Sequence[NodeState], Sequence[ScheduleRow]] = (-1e9, (), ())
        self._is_checked = False
        self._opened: Insight | None = None

    def status(self, wait: float | None = None) -> Status:
        """Return the current status. If the thread must start first, wait up to `wait` seconds for its first answer.

        With `wait` None, wait at most until the database counts as unreachable.
        """
        until = monotonic() + (self._patience if wait is None else wait)
        with self._changed:
            self._begin()
            while monotonic() < until and monotonic() - self._answered > 2 * PATIENCE and not self._closed.is_set():
                self._changed.wait(max(0.0, until - monotonic()))
            return self._now()

    def next_status(self) -> Status:
        """Wait for the database's next answer, or until the database counts as unreachable. Return the status then."""
        asked = monotonic()
        with self._changed:
            self._begin()
            while self._answered <= asked and monotonic() - asked < 2 * PATIENCE and not self._closed.is_set():
                if self._now().away_since is not None:
                    break
                self._changed.wait(INTERVAL / 4)
            return self._now()

    def end(self) -> None:
        """Make the thread and the streams of changes end soon. Safe to call in a signal handler."""
        self._closed.set()

    def close(self) -> None:
        """End the thread without waiting for a database that does not answer. Idempotent."""
        self.end()
        with self._changed:
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join(PATIENCE)

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    @property
    def _patience(self) -> float:
        return PATIENCE if self._answered > _NEVER else _FIRST

    def _begin(self) -> None:
        self._wanted_until = monotonic() + _NOBODY
        if (self._thread is None or not self._thread.is_alive()) and not self._closed.is_set():
            self._thread = threading.Thread(target=self._run, name="psched web status", daemon=True)
            self._thread.start()

    def _now(self) -> Status:
        """Return the status. The database counts as unreachable if it has not answered for `PATIENCE` seconds."""
        asked = self._asked
        if self._status.away_since is None and asked is not None and monotonic() - asked[0] > self._patience:
            return Status(self._status.snapshot, asked[1], "the database does not answer")
        return self._status

    def _run(self) -> None:
        while not self._closed.is_set() and self._is_wanted():
            with self._changed:
                self._asked = (monotonic(), time.time())
            try:
                status = Status(self._take())
            except Exception as error:  # noqa: BLE001 – whatever a driver raises, there is no snapshot
                status = self._away(error)
            with self._changed:
                if status.away_since is None and self._status.away_since is not None:
                    log.info("the database answers again")
                self._status, self._asked, self._answered = status, None, monotonic()
                self._changed.notify_all()
            self._closed.wait(INTERVAL)

    def _is_wanted(self) -> bool:
        with self._changed:
            is_wanted = monotonic() < self._wanted_until
            if not is_wanted:
                self._thread = None
            return is_wanted

    def _away(self, error: Exception) -> Status:
        before, problem = self._status, self._problem(error)
        if before.away_since is not None:
            return Status(before.snapshot, before.away_since, problem)
        log.warning("%s", problem)
        return Status(before.snapshot, time.time() if self._asked is None else self._asked[1], problem)

    def _problem(self, error: Exception) -> str:
        return one_line(error) if self._opened is None else problem_of(self._opened, error)

    def _take(self) -> Snapshot:
        insight = self._opened = self._insight()
        if not self._is_checked:
            insight.check_tables()
            self._is_checked = True
        part = insight.schedules or insight.tasks
        assert part is not None
        now = part.now()
        schedules = {} if insight.schedules is None else insight.schedules.counts(_MOST)
        tasks = {} if insight.tasks is None else insight.tasks.counts(_MOST)
        asked, nodes, overdue = self._slow
        if monotonic() - asked >= _SLOW_INTERVAL:
            nodes = insight.nodes()
            overdue = () if insight.schedules is None else insight.schedules.overdue(_MOST_OVERDUE + 1)
            self._slow = (monotonic(), nodes, overdue)
        return Snapshot(now, _mark(now, schedules, tasks, nodes, overdue), schedules, tasks, nodes, overdue)


def _mark(
    now: float,
    schedules: Mapping[str, Counted],
    tasks: Mapping[str, Counted],
    nodes: Sequence[NodeState],
    overdue: Sequence[ScheduleRow],
) -> str:
    states = [(node.name, node.vanished, node.processes) for node in nodes]
    seen = (int(now) // _REFRESH, *schedules.items(), *tasks.items(), *states, *(row.key for row in overdue))
    return hashlib.sha256(repr(seen).encode("utf-8", "backslashreplace")).hexdigest()[:12]
