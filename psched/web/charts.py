"""The geometry of charts: numbers in, rectangles and lines out, which the templates draw as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from psched.insight import RunsAt

MINUTE = 60
TROUBLED = ("failed", "retried", "lost")
"""Outcomes that are drawn as trouble."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar of a column chart, from the top: `good` above `bad`. In units of the drawing, `height` high at most."""

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

    bars: Sequence[Bar]
    width: int
    height: int
    highest: float


def columns(
    values: Sequence[tuple[float, float, str]], width: int = 600, height: int = 80, least: float = 1.0
) -> Columns:
    """Return a chart of (good, bad, title): one bar for each, which may be empty. `least`: of the full height."""
    highest = max(least, *(good + bad for good, bad, _ in values)) if values else least
    step = width / max(1, len(values))
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
    return Columns(bars, width, height, highest)


def by_minute(found: Sequence[RunsAt], now: float, minutes: int = 60) -> list[RunsAt | None]:
    """Return the runs of each of the last minutes, None for those without a run."""
    first = int(now) // MINUTE * MINUTE - (minutes - 1) * MINUTE
    known: Mapping[int, RunsAt] = {each.time: each for each in found}
    return [known.get(first + number * MINUTE) for number in range(minutes)]


def troubled(outcomes: Mapping[str, int]) -> int:
    """Return how many runs ended in trouble."""
    return sum(outcomes.get(name, 0) for name in TROUBLED)
