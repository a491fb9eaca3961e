"""Computes the rectangles and lines of charts from numbers. The templates draw them as SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from psched.insight import RunsAt

MINUTE = 60
TROUBLED = ("failed", "retried", "lost")
"""Outcomes that count as unsuccessful."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a column chart, with the part `good` above the part `bad`. Lengths are in units of the drawing.

    The height of the drawing is `Columns.height`.
    """

    x: float
    width: float
    good_y: float
    good: float
    bad_y: float
    bad: float
    title: str


@dataclass(frozen=True, slots=True)
class Columns:
    """A column chart. `highest`: the value of a bar of full height."""

    width: ClassVar[int] = 600
    height: ClassVar[int] = 80
    bars: Sequence[Bar]
    highest: float


def columns(values: Sequence[tuple[float, float, str]], least: float = 1.0) -> Columns:
    """Return a chart with one bar for each item of `values`: the good part, the bad part, and the title of a bar.

    `least`: the value of a bar of full height, if no bar has a higher value.
    """
    highest = max(least, *(good + bad for good, bad, _ in values)) if values else least
    step, height = Columns.width / max(1, len(values)), Columns.height
    bars = []
    for place, (good, bad, title) in enumerate(values):
        lower, upper = bad / highest * height, good / highest * height
        lower, upper = (max(lower, 1.5) if bad else 0.0), (max(upper, 1.5) if good else 0.0)
        bars.append(
            Bar(
                round(place * step, 2),
                round(max(step - 1, step * 0.7), 2),
                round(height - lower - upper, 2),
                round(upper, 2),
                round(height - lower, 2),
                round(lower, 2),
                title,
            )
        )
    return Columns(bars, highest)


def by_minute(found: Sequence[RunsAt], now: float) -> list[RunsAt | None]:
    """Return the runs of each of the last 60 minutes; None for minutes without runs."""
    last = int(now) // MINUTE * MINUTE
    known: Mapping[int, RunsAt] = {each.time: each for each in found}
    return [known.get(last - number * MINUTE) for number in reversed(range(60))]


def troubled(outcomes: Mapping[str, int]) -> int:
    return sum(outcomes.get(name, 0) for name in TROUBLED)


@dataclass(frozen=True, slots=True)
class Span:
    """A time from `begin` to `end` (unix seconds) that is drawn in the style `kind`, the name of a CSS class."""

    kind: str
    begin: float
    end: float
    title: Callable[[], str] = str
    """Returns the title. It is a function, because few bars need their title."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A bar of a Gantt chart, or several close bars drawn as one.

    `x` and `width` are percent; `y` and `height` are pixels.
    """

    kind: str
    x: float
    width: float
    y: float
    height: float
    title: str


@dataclass(frozen=True, slots=True)
class Tick:
    """A line of the time axis at `x` percent."""

    x: float
    time: float


_CLOSE = 1 / 400
"""Bars are drawn as one if the gap between them is less than this fraction of the chart."""
_NARROWEST = 0.25
"""The smallest width of a bar, in percent."""
_KINDS: Mapping[str, tuple[float, float]] = {
    "outage": (0, 1),
    "waiting": (0.36, 0.28),
    "paused": (0.36, 0.28),
    "retrying": (0.14, 0.72),
    "ran": (0.14, 0.72),
    "open": (0.14, 0.72),
    "skipped": (0.14, 0.72),
    "failed": (0, 1),
    "overlap": (0, 0.25),
    "proved": (0.2, 0.6),
    "unknown": (0.2, 0.6),
    "violation": (0, 1),
    "missing": (0, 1),
}
"""For each kind of bar: its top and its height, in a row of height 1. Later kinds are drawn over earlier ones."""
_MOST_TITLES = 60
"""In a row with more bars, no bar has a title."""


def marks(spans: Sequence[Span], since: float, until: float, y: float = 1, height: float = 14) -> list[Mark]:
    """Return the bars of one row of a chart from `since` to `until`. Close bars of one kind become one bar."""
    length = max(until - since, 1e-9)
    of_kind: dict[str, list[Span]] = {kind: [] for kind in _KINDS}
    for span in spans:
        of_kind[span.kind].append(span)
    found: list[tuple[str, float, float, list[Span]]] = []
    for kind, some in of_kind.items():
        joined: list[tuple[float, float, list[Span]]] = []
        for span in sorted(some, key=lambda each: each.begin):
            begin, end = max(span.begin, since), min(span.end, until)
            if end < begin:
                continue
            if joined and begin - joined[-1][1] < length * _CLOSE:
                first, last, together = joined[-1]
                together.append(span)
                joined[-1] = (first, max(last, end), together)
            else:
                joined.append((begin, end, [span]))
        found += [(kind, *each) for each in joined]
    drawn = []
    for kind, begin, end, together in found:
        top, share = _KINDS[kind]
        width = max((end - begin) / length * 100, _NARROWEST)
        x = min((begin - since) / length * 100, 100 - width)
        title = _title(together) if len(found) <= _MOST_TITLES else ""
        place = round(y + height * top, 1), round(height * share, 1)
        drawn.append(Mark(kind, round(x, 2), round(width, 2), *place, title))
    return drawn


def _title(together: Sequence[Span]) -> str:
    first, last = together[0].title(), together[-1].title()
    return first if len(together) == 1 else f"{len(together)} together: {first} … {last}"


def ticks(since: float, until: float, step: int, offset: int) -> list[Tick]:
    """Return the lines of a time axis, at each multiple of `step` seconds on a clock with this UTC offset (seconds)."""
    first = -(-(since + offset) // step) * step - offset
    found = []
    while first <= until:
        found.append(Tick(round((first - since) / (until - since) * 100, 2), first))
        first += step
    return found
