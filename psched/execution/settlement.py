"""Buffers runs that went well and settles them together: a transaction costs about as much for a hundred as for one.

Until then no row shows that they ran: when the process dies before, they run again, as at-least-once allows. Their
leases are renewed like those of the tasks that run.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from psched.clock import Clock, boottime
from psched.errors import ScheduleError
from psched.execution.batch_size import BatchBudget
from psched.source import Source
from psched.task import Task, finish_many
from psched.telemetry import emit

log = logging.getLogger(__name__)

LONGEST = 0.2
"""Seconds for which a run waits to be settled with others, give or take a handler; longer while settling is slow."""
_LAST_MOMENT = 1.0
"""Runs whose leases end within so many seconds of one another are given up together."""


class CompletedRun(NamedTuple):
    """A run that has ended, and how many seconds it took."""

    task: Task
    seconds: float


class SettlementBuffer:
    """`add` and `flush_if_slow` are for the poller's thread, the others for any thread."""

    def __init__(self, section: str, source: Source, clock: Clock = boottime) -> None:
        self._section = section
        self._source = source
        self._clock = clock
        self._collected: deque[CompletedRun] = deque()
        self._since = math.inf
        self._budget = BatchBudget()

    def add(self, run: CompletedRun, now: float) -> None:
        """Collect a run that is concluded, or one that is finished already, which only emits its event."""
        if not self._collected:
            self._since = now
        self._collected.append(run)

    def flush_if_slow(self, now: float, seconds: float | None) -> None:
        """Settle runs that would wait too long for a run that is expected to take `seconds` (None: not known)."""
        if self._collected and (seconds is None or now + seconds > self._since + self._budget.seconds(LONGEST)):
            self.flush()

    def flush(self) -> None:
        """Settle all; while the database does not answer, try until their leases end."""
        left = self._take()
        while left:
            until = min(run.task.deadline for run in left)
            left = [run for run, error in self._settle(left, until) if self._outlasts(run, until, error)]

    def flush_overdue(self) -> None:
        """Settle runs that have waited too long behind a slow handler; the next call or `flush` retries what fails."""
        if self._clock() <= self._since + self._budget.seconds(LONGEST):
            return
        unsettled = self._settle(self._take(), self._clock())
        if unsettled:
            error = unsettled[0][1]
            log.debug("section=%s %d runs are not settled yet: %s", self._section, len(unsettled), error)
            self._since = self._clock()
            self._collected.extendleft(run for run, _ in reversed(unsettled))

    def _take(self) -> list[CompletedRun]:
        """Take all out; emit the event of those that are settled and return the others."""
        taken = []
        while self._collected:
            try:
                taken.append(self._collected.popleft())
            except IndexError:  # another thread took the last one
                break
        settled = [run for run in taken if run.task.settled]
        if settled:
            emit("settle", section=self._section, runs=settled, error=None)
        return [run for run in taken if not run.task.settled] if settled else taken

    def _settle(self, runs: Sequence[CompletedRun], until: float) -> list[tuple[CompletedRun, Exception]]:
        """Settle runs, each by itself if they cannot be settled together for another reason than an outage.

        Each is settled under its lock, so that no renewal comes between. Returns those that an outage left unsettled.
        """
        if not runs:
            return []
        try:
            with _locked(runs):
                left = [run for run in runs if not run.task.settled]
                errors: Sequence[ScheduleError | None] = ()
                if left:
                    begun = self._clock()
                    errors = finish_many([run.task for run in left], until)
                    self._budget.learn(self._clock() - begun)
        except Exception as error:  # noqa: BLE001 – no fault of a database ends the worker
            if self._source.store.is_unavailable(error):
                return [(run, error) for run in runs]
            if len(runs) > 1:  # a row that cannot be settled must not keep the others from it
                return [left for run in runs for left in self._settle([run], until)]
            self._give_up(runs[0], error)
            return []
        refused = [(run, why) for run, why in zip(left, errors, strict=True) if why is not None]
        settled = [run for run in runs if run.task.settled] if refused else runs
        if settled:
            emit("settle", section=self._section, runs=settled, error=None)
        for run, why in refused:
            emit("settle", section=self._section, runs=(run,), error=why)
        return []

    def _outlasts(self, run: CompletedRun, until: float, error: Exception) -> bool:
        """Return whether its lease goes on, as the database may answer yet; give the run up otherwise."""
        if run.task.deadline > until + _LAST_MOMENT:
            return True
        self._give_up(run, error)
        return False

    def _give_up(self, run: CompletedRun, error: Exception) -> None:
        run.task.forget()
        emit("settle", section=self._section, runs=(run,), error=error)


@contextmanager
def _locked(runs: Sequence[CompletedRun]) -> Iterator[None]:
    locked = []
    try:
        for run in runs:
            run.task.lock.acquire()
            locked.append(run.task.lock)
        yield
    finally:
        for lock in locked:
            lock.release()
