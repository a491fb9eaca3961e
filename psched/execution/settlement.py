"""Runs that went well and are not settled yet, or not logged, which is done together. In children, one per lane.

A transaction costs about as much for a hundred runs as for one. Until it is done nothing says that they ran: when the
process dies before, they run again, as at-least-once allows. Their leases are kept alive like those of what runs.
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
from psched.source.source import Source
from psched.task import Task, finish_many
from psched.telemetry import emit

log = logging.getLogger(__name__)

LONGEST = 0.2
"""Seconds for which a run waits for others to be settled with, give or take a handler; longer while that is slow."""
_LAST_MOMENT = 1.0
"""Runs whose leases end within so many seconds of one another are given up together."""


class CompletedRun(NamedTuple):
    """A run that went well, and how many seconds it took."""

    task: Task
    seconds: float


class SettlementBuffer:
    """Collects and settles. `add` and `make_way` are for the lane's thread, all else is for any."""

    def __init__(self, section: str, source: Source, clock: Clock = boottime) -> None:
        self._section = section
        self._source = source
        self._clock = clock
        self._collected: deque[CompletedRun] = deque()
        self._since = math.inf
        self._worth = BatchBudget()

    def add(self, done: CompletedRun, now: float) -> None:
        """Collect a run that is concluded, or finished already and only to be logged."""
        if not self._collected:
            self._since = now
        self._collected.append(done)

    def flush_if_slow(self, now: float, seconds: float | None) -> None:
        """Settle what would wait too long for a run that is expected to take `seconds`; None: nobody knows."""
        if self._collected and (seconds is None or now + seconds > self._since + self._longest()):
            self.settle()

    def settle(self) -> None:
        """Settle all; while the database does not answer, try until their leases end."""
        left = self._take()
        while left:
            until = min(done.task.deadline for done in left)
            left = [done for done, error in self._try(left, until) if self._outlasts(done, until, error)]

    def flush_overdue(self) -> None:
        """Settle what has waited too long, as somebody is busy. What fails is tried again next time, or by `settle`."""
        if self._clock() <= self._since + self._longest():
            return
        unsettled = self._try(self._take(), self._clock())
        if unsettled:
            error = unsettled[0][1]
            log.debug("section=%s %d runs are not settled yet: %s", self._section, len(unsettled), error)
            self._since = self._clock()
            self._collected.extendleft(done for done, _ in reversed(unsettled))

    def _longest(self) -> float:
        return self._worth.at_least(LONGEST)

    def _take(self) -> list[CompletedRun]:
        """Take all out, log those that are settled and return the others."""
        taken = []
        while self._collected:
            try:
                taken.append(self._collected.popleft())
            except IndexError:  # somebody else was faster
                break
        settled = [done for done in taken if done.task.settled]
        if settled:
            emit("settle", section=self._section, runs=settled, error=None)
        return [done for done in taken if not done.task.settled] if settled else taken

    def _settle(self, runs: Sequence[CompletedRun], until: float) -> None:
        """Settle them, each under its lock, so that no renewal comes between. Raises whatever the driver does."""
        with _locked(runs):
            left = [done for done in runs if not done.task.settled]
            errors = self._finish([done.task for done in left], until) if left else []
        refused = [(done, error) for done, error in zip(left, errors, strict=True) if error is not None]
        settled = [done for done in runs if done.task.settled] if refused else runs
        if settled:
            emit("settle", section=self._section, runs=settled, error=None)
        for done, error in refused:
            emit("settle", section=self._section, runs=(done,), error=error)

    def _finish(self, tasks: Sequence[Task], until: float) -> Sequence[ScheduleError | None]:
        begun = self._clock()
        errors = finish_many(tasks, until)
        self._worth.learn(self._clock() - begun)
        return errors

    def _try(self, runs: Sequence[CompletedRun], until: float) -> list[tuple[CompletedRun, Exception]]:
        """Settle them, each by itself if they cannot be settled together for another reason than an outage.

        Returns those that an outage kept from it.
        """
        try:
            self._settle(runs, until)
        except Exception as error:  # noqa: BLE001 – no fault of a database ends the work
            if self._source.store.is_unavailable(error):
                return [(done, error) for done in runs]
            if len(runs) > 1:  # what somebody has spoilt of one harms no other
                return [left for done in runs for left in self._try([done], until)]
            self._give_up(runs[0], error)
        return []

    def _outlasts(self, done: CompletedRun, until: float, error: Exception) -> bool:
        """Tell whether its lease goes on, as the database may answer yet; give it up otherwise."""
        if done.task.deadline > until + _LAST_MOMENT:
            return True
        self._give_up(done, error)
        return False

    def _give_up(self, done: CompletedRun, error: Exception) -> None:
        done.task.forget()
        emit("settle", section=self._section, runs=(done,), error=error)


@contextmanager
def _locked(runs: Sequence[CompletedRun]) -> Iterator[None]:
    locked = []
    try:
        for done in runs:
            done.task.lock.acquire()
            locked.append(done.task.lock)
        yield
    finally:
        for lock in locked:
            lock.release()
