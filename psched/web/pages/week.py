"""The page Week ahead: how many runs start in each hour, minutes with many starts, and clock changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import date

from starlette.requests import Request
from starlette.responses import Response

from psched.insight import HourForecast
from psched.insight.forecast import short_number
from psched.time_text import local_datetime
from psched.web.pages.schedules import schedules_of
from psched.web.rendering import page
from psched.web.shared_state import SharedState

_KEPT = 120.0
"""Seconds for which a forecast is kept, because computing a forecast reads the rules of all schedules."""
LEVELS = 6
"""Number of colours of a heatmap, not counting the colour for 0."""


@dataclass(frozen=True, slots=True)
class Cell:
    """An hour of a heatmap. `level`: 0 for nothing, up to `LEVELS` for the highest value."""

    text: str
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Heatmap:
    """One row of cells for each hour of the day; None instead of a cell for an hour outside of the week.

    `days`: the columns. `highest`: the highest value and its time.
    """

    days: Sequence[date]
    rows: Sequence[tuple[int, Sequence[Cell | None]]]
    highest: str
    highest_time: float


def week(request: Request, shared: SharedState) -> Response:
    table = schedules_of(shared)
    found = shared.slow_answer("week ahead", _KEPT, table.week_ahead)
    if found is None:
        return page(request, "computing.html", title="Week ahead", headers={"Refresh": "1"})
    hours = found.forecast.hours
    has_busy = any(hour.busy is not None for hour in hours)
    return page(
        request,
        "week.html",
        found=found,
        forecast=found.forecast,
        starts=_heatmap(hours, lambda hour: hour.starts, sum, "starts"),
        busy=_heatmap(hours, lambda hour: hour.busy or 0.0, max, "workers busy") if has_busy else None,
        now=request.state.status.snapshot.taken,
    )


def _heatmap(
    hours: Sequence[HourForecast],
    value: Callable[[HourForecast], float],
    join: Callable[[Sequence[float]], float],
    unit: str,
) -> Heatmap:
    """Return a heatmap in the shown zone. `join`: combines the values of an hour that a clock change repeats."""
    found: dict[tuple[date, int], list[float]] = defaultdict(list)
    for hour in hours:
        moment = local_datetime(hour.time)
        assert moment is not None
        found[moment.date(), moment.hour].append(value(hour))
    values = {place: join(each) for place, each in found.items()}
    highest = max(hours, key=value)
    top = max(values.values())
    days = sorted({day for day, _ in values})
    rows = []
    for clock in range(24):
        cells = [_cell(day, clock, values[day, clock], top, unit) if (day, clock) in values else None for day in days]
        rows.append((clock, cells))
    return Heatmap(days, rows, short_number(top), highest.time)


def _cell(day: date, clock: int, value: float, top: float, unit: str) -> Cell:
    level = 0 if not value else 1 + int((LEVELS - 1) * value / top)
    return Cell(short_number(value), level, f"{day:%a %d %b} {clock:02}:00: {value:,.4g} {unit}")
