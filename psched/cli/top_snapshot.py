"""Reads from the database what `psched top` shows: the rows of each panel, and the counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from psched.errors import NotSupportedError
from psched.insight import Insight, NodeState, RunRates, ScheduleInsight, TaskInsight
from psched.store.counts import Counted, TypeCounts
from psched.time_text import span

LATE = 60.0
"""Seconds after which a waiting task is shown as late."""
RATES = 300.0
"""The rates and percentiles on the screen are of the runs that ended in the last `RATES` seconds."""
_ROWS = 100
"""The maximum number of schedules in a panel, and the maximum number of tasks in a panel."""
_TYPES = 50
_COUNTED = 10_000
_COUNTED_OF_TYPE = 1000


class Row(NamedTuple):
    """A line of a panel: its cells, the value of each cell for sorting, and whether the line shows a fault."""

    cells: Sequence[str]
    values: Sequence[Any]
    is_bad: bool = False


class _Rows(NamedTuple):
    """The rows of one section in a panel. `more`: whether there may be further rows."""

    rows: Sequence[Row]
    more: bool = False


@dataclass(frozen=True, slots=True)
class ScreenData:
    """What `psched top` shows, read from the database at `now` (unix seconds by the database's clock).

    `lines`: for each title of a panel, the rows of the panel. `full`: the titles of panels that may have more rows.
    """

    now: float
    schedules: Mapping[str, Counted]
    tasks: Mapping[str, Counted]
    alive: int
    vanished: int
    lines: Mapping[str, Sequence[Row]]
    full: frozenset[str]


def read_snapshot(insight: Insight) -> ScreenData:
    """Read all data for the screen. Raises the driver's errors."""
    sections = {"schedules": insight.schedules, "queue": insight.tasks}
    opened = {name: section for name, section in sections.items() if section is not None}
    now = next(iter(opened.values())).now()
    nodes = insight.nodes()
    panels = {
        "RUNNING": [_Rows([*_running(nodes, now)])],
        "NEXT": [_next(insight.schedules, now)],
        "LATE": [_late_schedules(insight.schedules, now), _late_tasks(insight.tasks, now)],
        "TYPES": [_types(name, section) for name, section in opened.items()],
    }
    lines = {title: [row for part in parts for row in part.rows] for title, parts in panels.items()}
    full = frozenset(title for title, parts in panels.items() if any(part.more for part in parts))
    vanished = sum(node.vanished for node in nodes)
    schedules = {} if insight.schedules is None else insight.schedules.counts(_COUNTED)
    tasks = {} if insight.tasks is None else insight.tasks.counts(_COUNTED)
    return ScreenData(now, schedules, tasks, len(nodes) - vanished, vanished, lines, full)


def _running(nodes: Sequence[NodeState], now: float) -> Iterator[Row]:
    for node in nodes:
        for process in node.processes:
            for run in process.runs:
                seconds = max(0.0, now - run.since)
                cells = (run.key, run.type, node.name, process.name, span(seconds))
                yield Row(cells, (*cells[:4], seconds), node.vanished)


def _next(schedules: ScheduleInsight | None, now: float) -> _Rows:
    if schedules is None:
        return _Rows([])
    page, rows = schedules.page(limit=_ROWS), list[Row]()
    for row, state in page.rows:
        if row.paused or row.ended:
            continue
        wait = row.next_run_time - now
        cells = (row.key, row.type, row.rule.cron, state.word, span(wait) if wait >= 1 else "now")
        rows.append(Row(cells, (*cells[:4], wait), row.problem is not None))
    return _Rows(rows, page.after is not None)


def _late_schedules(schedules: ScheduleInsight | None, now: float) -> _Rows:
    found = [] if schedules is None else list(schedules.overdue(_ROWS))
    rows = [_late_row(row.key, row.type, "schedules", row.status, now - row.next_time - row.delay) for row in found]
    return _Rows(rows, len(found) == _ROWS)


def _late_tasks(tasks: TaskInsight | None, now: float) -> _Rows:
    found = [] if tasks is None else tasks.late(LATE, limit=_ROWS)
    rows = [_late_row(task.key, task.type, "queue", task.status, now - (task.due or now)) for task in found]
    return _Rows(rows, len(found) == _ROWS)


def _late_row(key: str, type_: str, section: str, state: str, late: float) -> Row:
    cells = (key, type_, section, state, span(late))
    return Row(cells, (*cells[:4], late), True)


def _types(name: str, section: ScheduleInsight | TaskInsight) -> _Rows:
    """Return the types with recent runs or waiting rows.

    Returns no types for rdb_compat, because it does not support this query.
    """
    try:
        rates: dict[str, RunRates] = {each.type: each for each in section.run_report(RATES).types}
        counts: dict[str, TypeCounts] = {each.type: each for each in section.types(_TYPES, _COUNTED_OF_TYPE)}
    except NotSupportedError:
        return _Rows([])
    rows = []
    for type_ in [*rates, *(each for each in counts if each not in rates)]:
        rate, count = rates.get(type_), counts.get(type_)
        failed = 0 if rate is None else rate.outcomes.get("failed", 0)
        seconds = [None] * 3 if rate is None else [rate.duration.p50, rate.duration.p95, rate.wait.p95]
        per_minute = 0.0 if rate is None else rate.per_minute
        oldest = None if count is None else count.oldest
        due, running = (Counted(0), Counted(0)) if count is None else (count.due, count.running)
        label = f"{type_} ({name})"
        numbers = (f"{per_minute:.1f}", str(failed), *map(_short, seconds), str(due), str(running))
        cells = (label, *numbers, "" if oldest is None else span(oldest))
        values = (label, per_minute, failed, *seconds, due.count, running.count, oldest)
        rows.append(Row(cells, values, failed > 0))
    return _Rows(rows, len(counts) == _TYPES)


def _short(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return f"{seconds:.2g}" if seconds < 10 else f"{seconds:.0f}"
