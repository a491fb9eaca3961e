"""Shows what ran in a span of time, and what runs and waits now: the data of a Gantt chart.

Past runs are from the ledger.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby, islice
from operator import attrgetter

from psched.insight.nodes import NodeState
from psched.insight.troubled_runs import BATCH, due_time
from psched.model import ScheduleRow
from psched.schedules.derived_state import RUNNING, WAITING, failed_attempts
from psched.store.ledger import PAUSED, SKIPPED, Definition, DefinitionTimes, Ledger, LedgerFilter, LedgerRow

MOST_RUNS = 3000
"""The maximum number of ledger entries in a timeline. For entries with `had_trouble` there is an equal, separate limit.
"""
_LEAST_OUTAGE = 120.0
"""The minimum length of an outage, in seconds. In an outage nothing runs, although an occurrence is due."""
_LEAST_OVERLAP = 0.5
"""Seconds. Shorter overlaps are ignored, because the ledger's times come from several clocks and transactions."""


@dataclass(frozen=True, slots=True)
class TimelineRun:
    """One occurrence, or several occurrences that were skipped together. All times are unix seconds.

    The occurrence waited from `due` to `began`, and ended at `ended`.

    - `began`: the start of the last attempt; None if no run started.
    - `ended`: None if the occurrence runs or waits now.
    - `outcome`: as in the ledger; None if the occurrence has not ended.
    - `overlap`: seconds during which another run of the schedule ran.
    - `count`: the number of occurrences; None if there are more than were counted.
    - `is_paused`: whether the occurrence was skipped because its schedule was paused.
    """

    key: str
    scheduled_time: int
    due: float
    began: float | None
    ended: float | None
    outcome: str | None
    attempts: int
    node: str | None
    overlap: float = 0.0
    count: int | None = 1
    is_paused: bool = False


@dataclass(frozen=True, slots=True)
class Outage:
    """A time in which no run was in progress, although up to `waiting` occurrences were due."""

    begin: float
    end: float
    waiting: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Occurrences settled from `since` to `until` (unix seconds).

    If `until` is now, occurrences that run or wait are included. If the ledger has too many entries, the oldest are
    left out.

    - `troubles_from`: from this time on, all entries with `had_trouble` are included.
    - `complete_from`: from this time on, all other entries are included.
    - `outages`: the outages after `complete_from`.
    """

    since: float
    until: float
    runs: Sequence[TimelineRun]
    outages: Sequence[Outage]
    complete_from: float
    troubles_from: float


def timeline(
    ledger: Ledger, since: float, until: float, now: float, nodes: Sequence[NodeState], waiting: Iterable[ScheduleRow]
) -> Timeline:
    """Return the timeline from `since` to `until`. `waiting`: schedules that are late or failing now.

    If `until` is not now, `waiting` and `nodes` must be empty.
    """
    last, complete_from = _last(ledger, LedgerFilter(since=since, until=until, last=MOST_RUNS + 1), since)
    wanted = LedgerFilter(failed=True, since=since, until=until, last=MOST_RUNS + 1)
    troubles, troubles_from = _last(ledger, wanted, since)
    rows = {(row.key, row.scheduled_time, row.fence): row for row in (*troubles, *last)}
    runs = list(_settled(ledger, list(rows.values())))
    runs += _unsettled(nodes, waiting, now)
    runs = _with_overlaps(runs, now)
    outages = [] if not runs else list(_outages(runs, complete_from, min(until, now)))
    return Timeline(since, until, runs, outages, complete_from, min(troubles_from, complete_from))


def _last(ledger: Ledger, wanted: LedgerFilter, since: float) -> tuple[Sequence[LedgerRow], float]:
    """Return the last entries that match `wanted`, and the time since which they are complete."""
    rows = list(ledger.rows(wanted))
    is_cut = wanted.last is not None and len(rows) >= wanted.last
    return rows, rows[0].ended if is_cut else since


def _settled(ledger: Ledger, rows: Sequence[LedgerRow]) -> Iterator[TimelineRun]:
    definitions: dict[Definition, DefinitionTimes] = {}
    names = iter({Definition(row.key, row.version) for row in rows})
    while batch := list(islice(names, BATCH)):
        definitions |= ledger.run_times(batch)
    for row in rows:
        yield _of_entry(row, definitions)


def _of_entry(row: LedgerRow, definitions: Mapping[Definition, DefinitionTimes]) -> TimelineRun:
    due = due_time(row, definitions)
    due = float(row.scheduled_time) if due is None else due
    return TimelineRun(
        row.key,
        row.scheduled_time,
        due if row.started is None else min(due, row.started),
        row.started,
        row.ended,
        row.outcome,
        row.attempts,
        row.node,
        count=row.count,
        is_paused=row.outcome == SKIPPED and row.detail == PAUSED,
    )


def _unsettled(nodes: Sequence[NodeState], waiting: Iterable[ScheduleRow], now: float) -> Iterator[TimelineRun]:
    running: set[str] = set()
    for node in nodes:
        for process in node.processes:
            for run in process.runs:
                if run.section == "schedules" and not node.vanished:
                    running.add(run.key)
                    name = f"{node.host}/{node.pid}/{process.name}"
                    yield TimelineRun(run.key, int(run.since), run.since, run.since, None, None, 1, name)
    for row in waiting:
        if row.key not in running and not (row.status == RUNNING and row.next_run_time > now) and not row.paused:
            is_new = row.status == WAITING and not row.attempts
            due = min(row.next_run_time if is_new else row.next_time + (0 if row.is_extra else row.delay), now)
            yield TimelineRun(row.key, row.next_time, due, None, None, None, 1 + failed_attempts(row), row.node)


def _with_overlaps(runs: Iterable[TimelineRun], now: float) -> list[TimelineRun]:
    """Return the runs sorted by time. Runs that overlap an earlier run of their schedule are marked."""
    ends: dict[str, float] = {}
    marked = []
    for run in sorted(runs, key=lambda each: (each.due if each.began is None else each.began, each.key)):
        if run.began is not None:
            ended = now if run.ended is None else run.ended
            overlap = min(ends.get(run.key, run.began), ended) - run.began
            ends[run.key] = max(ends.get(run.key, ended), ended)
            marked.append(replace(run, overlap=overlap) if overlap > _LEAST_OVERLAP else run)
        else:
            marked.append(run)
    return marked


def _outages(runs: Sequence[TimelineRun], since: float, until: float) -> Iterator[Outage]:
    """Yield the times in which no run was in progress although an occurrence was due.

    A run with several attempts is ignored, because the times of its earlier attempts are not recorded. An occurrence
    that a later one overtakes is ignored from then on: workers run, so it waits for something else, such as a handler.
    """
    overtaken = _overtaken(runs)
    events: list[tuple[float, int, int]] = []  # time, change in running, change in waiting
    for run in runs:
        end = until if run.ended is None else run.ended
        if run.began is not None:
            events += [(run.began, 1, 0), (end, -1, 0)]
        if run.attempts <= 1 and not run.is_paused:
            waited_until = min(overtaken[run.due], end if run.began is None else run.began)
            events += [(run.due, 0, 1), (waited_until, 0, -1)]
    running = waiting = most = 0
    begin: float | None = None
    for time, runs_more, waits_more in [*sorted(events), (until, 1, 0)]:
        running, waiting = running + runs_more, waiting + waits_more
        if begin is not None and (running or not waiting):
            first, last = max(begin, since), min(time, until)
            if last - first >= _LEAST_OUTAGE:
                yield Outage(first, last, most)
            begin = None
        if not running and waiting:
            begin, most = (time, waiting) if begin is None else (begin, max(most, waiting))


def _overtaken(runs: Sequence[TimelineRun]) -> Mapping[float, float]:
    """Return, for each due time, when the first run that was due later began; infinity without such a run."""
    found: dict[float, float] = {}
    earliest, due_of = math.inf, attrgetter("due")
    for due, together in groupby(sorted(runs, key=due_of, reverse=True), due_of):
        found[due] = earliest
        earliest = min([earliest, *(run.began for run in together if run.began is not None)])
    return found
