"""Collects successful runs and settles them together.

One transaction for a hundred runs costs about as much as a transaction for one run. Until a run is settled, the
database does not show that it has ended, and its lease is renewed. If the process dies before the settlement, the run
is repeated.
"""

from __future__ import annotations

import logging
import math
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress

from psched.acquisition.task_source import TaskSource
from psched.clock import Clock, boottime
from psched.execution.batch_size import BatchBudget
from psched.execution.fetcher_settlement import GroupSettlement
from psched.task import Task, finish_many
from psched.telemetry import emit

log = logging.getLogger(__name__)

LONGEST = 0.2
"""The maximum number of seconds that a run waits to be settled with others. While settling is slow, the limit is
higher.

In a child that polls for itself, the handler thread settles. If a handler is running at the end of the wait, the runs
are settled when it ends. If it runs long, the thread `prefetched lease renewer` settles them.
"""
_FULL = 500
"""When this many runs are collected, the handler thread settles them itself. A second thread would only take turns with
the handler thread."""
_LAST_MOMENT = 1.0
"""Seconds. When retries end because a lease ends, they also end for runs whose leases end at most this much later."""


class SettlementBuffer:
    """Successful runs of one section that are not settled yet.

    Only the poller's thread calls `add` and `flush_if_slow`; any thread may call the other methods.
    """

    def __init__(
        self, section: str, source: TaskSource, clock: Clock = boottime, group: GroupSettlement | None = None
    ) -> None:
        """`group`: settles runs together with the runs of other children. None: only this process settles them."""
        self._section = section
        self._source = source
        self._group = group
        self._clock = clock
        self._collected: deque[Task] = deque()
        self._since = math.inf
        self._budget = BatchBudget()
        self._flushing = threading.Lock()

    def add(self, task: Task, now: float) -> None:
        """Add a run that has ended. If it is settled already, `flush` only emits its event."""
        if not self._collected:
            self._since = now
        self._collected.append(task)

    @property
    def is_empty(self) -> bool:
        return not self._collected

    @property
    def due_at(self) -> float:
        """When the collected runs are overdue, in boottime seconds."""
        return self._since + self._budget.seconds(LONGEST) if self._collected else math.inf

    @property
    def is_full(self) -> bool:
        """Whether the buffer is full: with more runs, a transaction would not become cheaper per run."""
        return len(self._collected) >= _FULL

    def flush_if_slow(self, now: float, seconds: float | None) -> None:
        """Settle the collected runs now, if they would wait too long for the end of the run that begins at `now`.

        `seconds`: the expected duration of that run. None: it is not known, so the collected runs are settled.
        """
        if self._collected and (seconds is None or now + seconds > self._since + self._budget.seconds(LONGEST)):
            self.flush()

    def flush_overdue(self) -> None:
        """Settle runs that have waited too long behind a slow handler.

        After a failure the next call or `flush` tries again.
        """
        now = self._clock()
        if now > self.due_at:
            self.flush(now)

    def flush(self, until: float | None = None) -> None:
        """Settle all runs. While the database does not answer, retry until `until` (default: until their leases end).

        If another thread is settling, a call with `until` does nothing. A call without `until` waits: when it returns,
        the events of all runs that were added before have been emitted.
        """
        if not self._flushing.acquire(blocking=until is None):
            return
        try:
            self._settle(until)
        finally:
            self._flushing.release()

    def _settle(self, until: float | None) -> None:
        groups: list[Sequence[Task]] = [self._take()]
        for tasks in groups:
            if not tasks:
                continue
            begun = self._clock()
            end = min(task.deadline for task in tasks) if until is None else until
            try:
                group = self._group if self._group is not None and self._group.accepts(tasks, begun) else None
                refused = finish_many(tasks, end, None if group is None else group.finish_many)
            except Exception as error:  # noqa: BLE001 – no fault of a database ends the worker
                groups.extend(self._to_retry(tasks, error, end, retries_now=until is None))
                continue
            seconds = self._clock() - begun if group is None else group.seconds
            self._budget.learn(seconds if group is None else group.own_seconds)
            self._report([task for task in tasks if task not in refused] if refused else tasks, seconds=seconds)
            for task, refusal in refused.items():
                self._report([task], refusal)

    def _take(self) -> list[Task]:
        """Empty the buffer. Emit the events of runs that are settled already, and return the others."""
        taken = []
        with suppress(IndexError):  # empty: another thread may take the last run
            while True:
                taken.append(self._collected.popleft())
        self._report([task for task in taken if task.settled])
        return [task for task in taken if not task.settled]

    def _to_retry(
        self, tasks: Sequence[Task], error: Exception, until: float, retries_now: bool
    ) -> list[Sequence[Task]]:
        """Handle a failed attempt to settle `tasks`. Return the groups of runs to settle again immediately.

        `until`: when the attempts end (boottime seconds).
        """
        if not self._source.store.is_unavailable(error):
            if len(tasks) > 1:  # a row that cannot be settled must not block the others
                return [[task] for task in tasks]
            self._give_up(tasks, error)
            return []
        if not retries_now:
            log.debug("section=%s %d runs are not settled yet: %s", self._section, len(tasks), error)
            self._since = self._clock()
            self._collected.extendleft(reversed(tasks))
            return []
        left = [task for task in tasks if task.deadline > until + _LAST_MOMENT]
        self._give_up([task for task in tasks if task not in left], error)
        return [left] if left else []

    def _give_up(self, tasks: Sequence[Task], error: Exception) -> None:
        for task in tasks:
            task.forget()
            self._report([task], error)

    def _report(self, tasks: Sequence[Task], error: Exception | None = None, seconds: float | None = None) -> None:
        if tasks:
            emit("settle", section=self._section, tasks=tasks, error=error, seconds=seconds)
