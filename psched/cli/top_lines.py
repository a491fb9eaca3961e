"""The lines of `psched top`: formats a snapshot, so that it fits the terminal, and handles keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from psched.cli.formatting import KEPT, cut, fitted, printable
from psched.cli.top_snapshot import Row, ScreenData
from psched.time_text import local_datetime


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


@dataclass(slots=True)
class View:
    """The choices of a user of `psched top`.

    `only`: the title of the panel that fills the screen. `typing`: whether the user is typing a filter.
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
    """Divide `room` rows among panels, one row at a time to each panel that wants more. Return how many each gets."""
    given = [0] * len(wanted)
    while room and any(has < wants for has, wants in zip(given, wanted, strict=True)):
        for place, wants in enumerate(wanted):
            if room and given[place] < wants:
                given[place] += 1
                room -= 1
    return given
