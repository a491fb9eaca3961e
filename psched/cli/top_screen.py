"""The screen of `psched top`: formats a snapshot from insight as lines that fit the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psched.cli.formatting import KEPT, cut, fitted, printable
from psched.errors import NotSupportedError
from psched.insight import Insight, NodeState, RunRates, ScheduleInsight, TaskInsight
from psched.store.counts import Counted, TypeCounts
from psched.time_text import local_datetime, span

LATE = 60.0
"""Seconds after which a waiting task is shown as late."""
RATES = 300.0
"""The rates and percentiles on the screen are of the runs that ended in the last `RATES` seconds."""
_ROWS = 100
"""The maximum number of schedules, and the maximum number of tasks, of a panel."""
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
class Panel:
    """A list on the screen. `columns`: names and ranks, see `fitted`.

    The title of the panel stands before the name of the first column.

    `sort`: the initial column to sort by. `descending`: whether the greatest value comes first.
    """

    key: str
    title: str
    columns: Mapping[str, int]
    sort: str
    descending: bool = False


PANELS = (
    Panel("r", "RUNNING", {"key": 2, "type": 3, "node": 1, "process": 0, "since": KEPT}, "since", True),
    Panel("n", "NEXT", {"key": 2, "type": 3, "cron": 1, "state": 8, "in": KEPT}, "in"),
    Panel("l", "LATE", {"key": 2, "type": 3, "section": 1, "state": 8, "late": KEPT}, "late", True),
    Panel(
        "t",
        "TYPES",
        {
            "type": 2,
            **dict.fromkeys(("run/min", "failed", "p50", "p95", "wait95", "due", "running", "oldest"), KEPT),
        },
        "run/min",
        True,
    ),
)


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


@dataclass(slots=True)
class View:
    """The user's choices.

    `only`: the title of the panel that fills the screen. `typing`: whether a filter is being typed.
    """

    focus: str = "RUNNING"
    only: str | None = None
    filter: str = ""
    typing: bool = False
    frozen: bool = False
    sorts: dict[str, tuple[str, bool]] = field(
        default_factory=lambda: {panel.title: (panel.sort, panel.descending) for panel in PANELS}
    )

    def press(self, key: str) -> bool:
        """Handle a key. Return whether to quit."""
        if self.typing:
            self._type(key)
            return False
        if key == "q":
            return True
        panels = {panel.key: panel.title for panel in PANELS}
        if key in panels:
            self.focus = self.only = panels[key]
        elif key in {"a", "\x1b"}:
            self.only = None
            self.filter = "" if key == "\x1b" else self.filter
        elif key == "\t":
            titles = [panel.title for panel in PANELS]
            self.focus = titles[(titles.index(self.focus) + 1) % len(titles)]
            self.only = self.only and self.focus
        elif key in {"s", "S"}:
            self._sort(key == "S")
        elif key == "/":
            self.typing, self.filter = True, ""
        elif key == " ":
            self.frozen = not self.frozen
        return False

    def _type(self, key: str) -> None:
        if key in {"\r", "\n", "\x1b"}:
            self.typing = False
            self.filter = "" if key == "\x1b" else self.filter
        elif key in {"\x7f", "\b"}:
            self.filter = self.filter[:-1]
        elif key.isprintable():
            self.filter += key

    def _sort(self, reverses: bool) -> None:
        column, descending = self.sorts[self.focus]
        names = [*next(panel for panel in PANELS if panel.title == self.focus).columns]
        if reverses:
            self.sorts[self.focus] = column, not descending
        else:
            self.sorts[self.focus] = names[(names.index(column) + 1) % len(names)], descending


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
    """Return the types with recent runs or waiting rows; no types if the store cannot tell (rdb_compat)."""
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


class ScreenLine(NamedTuple):
    """A line that fits the screen, and its look: a name in `STYLES`."""

    text: str
    style: str = ""


STYLES = {"": "", "title": "reverse", "head": "bold", "focus": "bold underline", "bad": "red", "keys": "dim"}


def screen(
    snapshot: ScreenData | None, view: View, width: int, height: int, *, name: str, interval: float, problem: str | None
) -> list[ScreenLine]:
    """Return at most `height` lines of at most `width` cells. `problem`: why there is no newer snapshot."""
    lines = [ScreenLine(_title(snapshot, view, name, interval).ljust(width), "title")]
    if problem is not None:
        lines.append(ScreenLine(printable(problem), "bad"))
    if snapshot is not None:
        lines += [ScreenLine(text) for text in _numbers(snapshot)]
        lines += _panels(snapshot, view, width, height - len(lines) - 1)
    elif problem is None:
        lines.append(ScreenLine("asking the database …"))
    lines = lines[: height - 1] + [ScreenLine("")] * (height - 1 - len(lines))
    return [ScreenLine(cut(line.text, width), line.style) for line in (*lines, ScreenLine(_keys(view), "keys"))][
        -height:
    ]


def _title(snapshot: ScreenData | None, view: View, name: str, interval: float) -> str:
    moment = None if snapshot is None else local_datetime(snapshot.now)
    time = "" if moment is None else f"  {moment:%H:%M:%S}"
    chosen = f"  filter: {printable(view.filter)}" if view.filter else ""
    return f" psched top  {printable(name)}{time}  every {interval:g} s{'  FROZEN' if view.frozen else ''}{chosen}"


def _numbers(snapshot: ScreenData) -> Iterator[str]:
    for name, counts in (("schedules", snapshot.schedules), ("tasks", snapshot.tasks)):
        shown = (f"{number} {state}" for state, number in counts.items() if number.count or state in {"total", "due"})
        if counts:
            yield f"{name}: {' · '.join(shown)}"
    gone = f" · {snapshot.vanished} vanished" if snapshot.vanished else ""
    yield f"nodes: {snapshot.alive} alive{gone} · {len(snapshot.lines['RUNNING'])} running"


def _keys(view: View) -> str:
    if view.typing:
        return f"/{printable(view.filter)}_   Enter applies the filter, Esc removes it"
    return "q quit  r n l t one list  a all  Tab next list  s S sort  / filter  space freeze"


def _panels(snapshot: ScreenData, view: View, width: int, room: int) -> Iterator[ScreenLine]:
    shown = [panel for panel in PANELS if view.only in (None, panel.title)]
    rows = {panel.title: _chosen(snapshot.lines[panel.title], panel, view) for panel in shown}
    heights = _shares([len(rows[panel.title]) for panel in shown], max(0, room - len(shown)))
    for panel, count in zip(shown, heights, strict=True):
        found = rows[panel.title]
        column, descending = view.sorts[panel.title]
        more = "+" if panel.title in snapshot.full else ""
        names = [f"{name}{'▼' if descending else '▲'}" if name == column else name for name in panel.columns]
        header = (f"{panel.title} {len(found)}{more}: {names[0]}", *names[1:])
        cells = [header, *(row.cells for row in found[:count])]
        styles = ["focus" if panel.title == view.focus else "head", *("bad" if row.is_bad else "" for row in found)]
        for text, style in zip(fitted(cells, width, [*panel.columns.values()]), styles, strict=False):
            yield ScreenLine(text, style)


def _chosen(rows: Sequence[Row], panel: Panel, view: View) -> list[Row]:
    """Return the rows that pass the filter, sorted. Rows without a value in the sort column come last."""
    word = view.filter.casefold()
    found = [row for row in rows if not word or any(word in cell.casefold() for cell in row.cells)]
    column, descending = view.sorts[panel.title]
    place = [*panel.columns].index(column)
    with_value = [row for row in found if row.values[place] is not None]
    by_value: Callable[[Row], Any] = lambda row: row.values[place]  # noqa: E731
    with_value.sort(key=by_value, reverse=descending)
    return [*with_value, *(row for row in found if row.values[place] is None)]


def _shares(wanted: Sequence[int], room: int) -> list[int]:
    """Return how many rows each panel gets: as many as it wants, or an equal share of the remaining room."""
    given = [0] * len(wanted)
    while room and any(has < wants for has, wants in zip(given, wanted, strict=True)):
        for place, wants in enumerate(wanted):
            if room and given[place] < wants:
                given[place] += 1
                room -= 1
    return given
