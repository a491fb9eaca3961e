"""Counts the runs of this node for `psched_stats`, and writes the counts once a minute.

A telemetry listener counts each settled run in the process that ran it. A handler child sends its counts to the
fetching child every second. The child that polls writes the counts of each minute after the end of the minute. If a
handler child is killed, its counts of one second are lost. If the child that polls is killed, its node loses up to a
minute of counts.

For the exporter, `psched.metrics.event_counters` counts the same runs in a file of counters. The file outlives the
process. Its counts are those of one host, and are not separated by minute. Both modules add up the runs of an event by
`psched.metrics.group_settled_runs`.
"""

from __future__ import annotations

import logging
import random
import socket
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple

from psched.clock import Clock, boottime
from psched.error_messages import one_line
from psched.execution.opened_stores import OpenSection
from psched.execution.periodic_thread import PeriodicThread
from psched.metrics.group_settled_runs import SettledRuns, group_runs, settled_runs
from psched.store import LeaseStore
from psched.store.run_stats import (
    DURATION,
    DURATIONS,
    MINUTE,
    MOST_TYPES,
    NUMBERS,
    OTHER,
    OUTCOMES,
    RUNS,
    WAIT,
    WAITS,
    RunKind,
    RunSums,
)
from psched.task import Task, store_of
from psched.telemetry import Event

log = logging.getLogger(__name__)

_REPORT_INTERVAL = 1.0
"""Seconds between two reports of a handler child."""
_GRACE = 1.5
"""For this many seconds after the end of a minute, handler children may still send counts of that minute."""
_SPREAD = 3.0
"""Seconds over which the nodes of a database spread their writes."""
_MOST_MINUTES = 30
"""The maximum number of minutes whose counts are kept while they cannot be written. The counts of earlier minutes are
dropped."""

Counted = Sequence[tuple[RunKind, Sequence[int]]]


class RunCounts:
    """The counts of one section that were not yet written or sent. Safe to use from several threads."""

    def __init__(self, store: LeaseStore, retention: float, clock: Clock = boottime) -> None:
        """`retention`: for how many seconds the hourly statistics are kept."""
        self.store = store
        self.retention = retention
        self.offset = 0.0
        """The database's clock minus `clock`, computed from the last lease."""
        self._clock = clock
        self._lock = threading.Lock()
        self._minutes: dict[int, dict[tuple[str, OUTCOMES], list[int]]] = {}
        """For each minute, and each type and outcome: the numbers of `RunSums`. They are in a plain list, because
        Python changes a list in half the time of a `RunSums`."""
        self._types: dict[int, set[str]] = {}

    @property
    def is_empty(self) -> bool:
        return not self._minutes

    def now(self) -> float:
        """Return the time of the database's clock, computed from the last lease."""
        return self._clock() + self.offset

    def count(self, fields: dict[str, Any]) -> None:
        """Count the runs of a `settle` event with these fields.

        The tasks of the event are in the order in which the runs ended.
        """
        tasks: Sequence[Task] = fields["tasks"]
        last = tasks[-1]
        offset = last.lease.expires_at - last.deadline
        minute = _minute_of(last, offset)
        if len(tasks) == 1 or _minute_of(tasks[0], offset) == minute:
            minutes = [(minute, settled_runs(fields))]
        else:
            is_lost = fields["error"] is not None
            by_minute = groupby(tasks, lambda task: _minute_of(task, offset))
            minutes = [(minute, group_runs(of_minute, is_lost)) for minute, of_minute in by_minute]
        with self._lock:
            self.offset = offset
            for minute, runs in minutes:
                self._count(minute, runs)

    def _count(self, minute: int, runs: SettledRuns) -> None:
        for type_, outcome, number, durations, waits in runs:
            sums = self._sums(minute, type_, outcome)
            sums[RUNS] += number
            for (seconds, buckets), sum_at, buckets_at in (durations, DURATION, DURATIONS), (waits, WAIT, WAITS):
                sums[sum_at] += round(seconds * 1_000_000)
                for index, count in buckets:
                    sums[buckets_at + index] += count

    def add(self, counted: Counted, offset: float) -> None:
        """Add the counts of a handler child, or counts that could not be written or sent."""
        with self._lock:
            for (minute, type_, outcome), numbers in counted:
                sums = self._sums(minute, type_, outcome)
                sums[:] = [mine + theirs for mine, theirs in zip(sums, numbers, strict=True)]
            self.offset = offset

    def take(self, before: float | None = None) -> list[tuple[RunKind, RunSums]]:
        """Remove and return the counts of all minutes, or of the minutes that ended before `before`."""
        with self._lock:
            over = [minute for minute in self._minutes if before is None or minute + MINUTE <= before]
            found = [(minute, self._minutes.pop(minute)) for minute in over]
            for minute in over:
                del self._types[minute]
        return [
            (RunKind(minute, type_, outcome), RunSums(sums))
            for minute, of_minute in found
            for (type_, outcome), sums in of_minute.items()
        ]

    def _sums(self, minute: int, type_: str, outcome: OUTCOMES) -> list[int]:
        of_minute = self._minutes.get(minute)
        if of_minute is None:
            if len(self._minutes) >= _MOST_MINUTES:
                oldest = min(self._minutes)
                del self._minutes[oldest], self._types[oldest]
            of_minute = self._minutes[minute] = {}
            self._types[minute] = set()
        sums = of_minute.get((type_, outcome))
        if sums is None:
            types = self._types[minute]
            if type_ not in types and len(types) >= MOST_TYPES:
                type_ = OTHER
            types.add(type_)
            sums = of_minute.setdefault((type_, outcome), [0] * NUMBERS)
        return sums


def _minute_of(task: Task, offset: float) -> int:
    """Return the start of the minute, by the database's clock, in which a run ended."""
    return int(task.begun_at + task.duration + offset) // MINUTE * MINUTE


class RunCounter:
    """A telemetry listener for `settle` that counts the runs of each section."""

    def __init__(self, sections: Mapping[str, RunCounts]) -> None:
        self.sections = sections
        self.wake: Callable[[], None] = lambda: None
        """Called after runs were counted."""

    def __call__(self, event: Event, fields: dict[str, Any]) -> None:
        counts = self.sections.get(fields["section"])
        if counts is not None and store_of(fields["tasks"][0]) is counts.store:  # a process may have several schedulers
            counts.count(fields)
            self.wake()

    def add(self, section: str, counted: Counted, offset: float) -> None:
        counts = self.sections.get(section)
        if counts is not None:
            counts.add(counted, offset)
            self.wake()

    @property
    def is_empty(self) -> bool:
        return all(counts.is_empty for counts in self.sections.values())


class CountedTable(NamedTuple):
    """A table whose runs may be counted. `retention`: how many seconds the counts are kept; 0 counts no runs."""

    section: str
    store: LeaseStore
    retention: float


def counted_tables(sections: Iterable[OpenSection]) -> list[CountedTable]:
    return [CountedTable(opened.name, opened.source.store, opened.section.stats_retention) for opened in sections]


def run_counter(tables: Iterable[CountedTable]) -> RunCounter:
    """Return a counter for those tables that have statistics and keep counts for more than 0 seconds."""
    wanted = (table for table in tables if table.retention > 0 and table.store.stats is not None)
    return RunCounter({table.section: RunCounts(table.store, table.retention) for table in wanted})


def write_counts(counts: RunCounts, before: float | None = None) -> None:
    """Write the counts of all minutes, or of the minutes that ended before `before`. Raises the driver's errors."""
    counted = counts.take(before)
    stats = counts.store.stats
    if not counted or stats is None:
        return
    try:
        stats.add(socket.gethostname()[:120], counted, counts.retention)
    except BaseException:
        counts.add(counted, counts.offset)
        raise


def write_rest(counter: RunCounter) -> None:
    """Write all counts, in a process that is exiting."""
    for section, counts in counter.sections.items():
        try:
            write_counts(counts)
        except Exception as error:  # noqa: BLE001 – the process is exiting
            log.info("section=%s the statistics of the last minute were not written: %s", section, one_line(error))


class StatsWriter(PeriodicThread):
    """Writes the counts of each minute after its end, and the rest when the thread ends. Sleeps while idle."""

    def __init__(self, counter: RunCounter) -> None:
        self._counter = counter
        self._delay = _GRACE + random.uniform(0, _SPREAD)
        super().__init__("run statistics", self.tick, MINUTE + self._delay, partial(write_rest, counter))
        counter.wake = self.wake_if_idle

    def tick(self) -> bool:
        """Write the counts of the minutes that have ended. Return whether counts are left."""
        sections = self._counter.sections.values()
        pauses = [MINUTE - (counts.now() - self._delay) % MINUTE for counts in sections if not counts.is_empty]
        self.interval = min(pauses, default=MINUTE + self._delay)
        for counts in sections:
            write_counts(counts, counts.now() - _GRACE)
        return not self._counter.is_empty


class CountReporter(PeriodicThread):
    """Sends the counts of a handler child to the fetching child. Sleeps while idle."""

    def __init__(self, counter: RunCounter, send: Callable[..., bool]) -> None:
        """`send`: sends a message; returns False if there is no fetching child."""
        self._counter = counter
        self._send = send
        super().__init__("run statistics", self.tick, _REPORT_INTERVAL)
        counter.wake = self.wake_if_idle

    def tick(self) -> bool:
        """Send the counts. Return whether there were counts to send."""
        was_empty = self._counter.is_empty
        self.send_all()
        return not was_empty

    def send_all(self) -> None:
        """Send all counts, or keep them while there is no fetching child."""
        for section, counts in self._counter.sections.items():
            counted = counts.take()
            if counted and not self._send("counted", section, counted, counts.offset):
                counts.add(counted, counts.offset)
