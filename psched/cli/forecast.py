"""psched forecast: shows how many runs of schedules start in each coming hour."""

from __future__ import annotations

import shutil
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date

import click

from psched.cli.formatting import (
    Fields,
    ListColumns,
    fields_of,
    json_line,
    short_time,
    with_local_times,
    write,
    write_rows,
)
from psched.cli.opened_sections import opened_section
from psched.cli.option_types import count
from psched.cli.options import Chosen, common_options
from psched.insight import Forecast, HourForecast, ScheduleInsight
from psched.insight.forecast import short_number
from psched.time_text import local_datetime

_TABLE = ListColumns(brief={}, wide=("time", "starts", "busy"))
_COLOURS = (None, 22, 28, 64, 136, 130, 124)
"""Colours for few to many runs, from the 256 colours of a terminal."""
_LABEL = len("Mon 2026-11-23")
_HOURS = range(24)

Cells = Mapping[date, Mapping[int, float]]
"""A value for each hour of each day."""


@click.command("forecast")
@click.option("--days", type=count(1, 31), default=7, show_default=True, help="Number of days, from now on.")
@common_options()
def forecast(chosen: Chosen, days: int) -> None:
    """Show how many runs of schedules start in each hour.

    On a terminal, the command draws two heatmaps of the next days: the runs, and the workers that these runs keep busy.
    Each run is assumed to take as long as the last runs of its type in the ledger. Into a pipe or file, hours are
    written as tab-separated text. Paused schedules, retries, extra runs and occurrences that are already late are not
    counted. Runs that `overlap: skip` may skip are counted. Times are in this host's time zone.

    --json prints one object with schedules (the number of counted schedules), unusable (the number of schedules whose
    rule cannot be used), may_skip (the number of schedules with overlap: skip), unmeasured (types without a run in the
    ledger; their runs are not counted in busy) and hours: an array of objects with time (unix seconds, and as
    time_local), starts and busy (the mean number of busy workers, or null).
    """
    with opened_section(chosen, "schedules", read_only=True) as schedules:
        found = ScheduleInsight(schedules).forecast(days * 24)
    if chosen.json:
        hours = [with_local_times(fields_of(hour), ("time",)) for hour in found.hours]
        write([json_line(fields_of(found) | {"hours": hours, "unmeasured": list(found.unmeasured)})])
        return
    if sys.stdout.isatty():
        _write_heatmaps(found)
    else:
        write_rows(map(fields_of, found.hours), ("time",), _TABLE, listed=_listed, as_json=False)
    _write_notes(found)


def _listed(hour: Fields) -> Fields:
    return hour | {"busy": None if hour["busy"] is None else f"{hour['busy']:.2f}"}


def _write_heatmaps(found: Forecast) -> None:
    counted = "1 schedule" if found.schedules == 1 else f"{found.schedules:,} schedules"
    click.echo(f"starts of {counted} by hour{_peak(found.hours, lambda hour: hour.starts)}")
    _write_heatmap(_cells(found.hours, lambda hour: hour.starts, sum))
    if any(hour.busy for hour in found.hours):
        click.echo(f"\nbusy workers{_peak(found.hours, lambda hour: hour.busy or 0)}")
        _write_heatmap(_cells(found.hours, lambda hour: hour.busy or 0, max))


def _peak(hours: Sequence[HourForecast], value: Callable[[HourForecast], float]) -> str:
    highest = max(hours, key=value)
    return f"; the most is {short_number(value(highest))} from {short_time(highest.time)}" if value(highest) else ""


def _cells(
    hours: Sequence[HourForecast],
    value: Callable[[HourForecast], float],
    join: Callable[[Sequence[float]], float],
) -> Cells:
    """Return the values by day and hour. `join`: combines the two values of an hour that a clock change repeats."""
    found: dict[date, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
    for hour in hours:
        moment = local_datetime(hour.time)
        assert moment is not None
        found[moment.date()][moment.hour].append(value(hour))
    return {day: {hour: join(values) for hour, values in of_day.items()} for day, of_day in found.items()}


def _write_heatmap(cells: Cells) -> None:
    width = max(3, min(6, (shutil.get_terminal_size().columns - _LABEL) // 24))
    highest = max(value for of_day in cells.values() for value in of_day.values())
    click.echo(" " * _LABEL + "".join(f"{hour:>{width}}" for hour in _HOURS))
    for day, of_day in cells.items():
        click.echo(f"{day:%a %Y-%m-%d}" + "".join(_coloured(of_day, highest, width)))


def _coloured(of_day: Mapping[int, float], highest: float, width: int) -> Iterator[str]:
    for hour in _HOURS:
        value = of_day.get(hour)
        text = f"{'' if value is None else short_number(value):>{width}}"
        level = 0 if not value else 1 + int((len(_COLOURS) - 2) * value / highest)
        yield text if level == 0 else click.style(text, bg=_COLOURS[level], fg="bright_white")


def _write_notes(found: Forecast) -> None:
    if found.unusable:
        have = "1 schedule has" if found.unusable == 1 else f"{found.unusable:,} schedules have"
        click.echo(f"{have} a rule that cannot be used; see: psched list --state broken", err=True)
    if found.may_skip:
        have = "1 schedule has" if found.may_skip == 1 else f"{found.may_skip:,} schedules have"
        note = "runs that become due during the previous run are also counted, although they are skipped"
        click.echo(f"{have} overlap: skip; {note}", err=True)
    if found.unmeasured:
        names = ", ".join(found.unmeasured[:10]) + (" and more" if len(found.unmeasured) > 10 else "")
        why = "because the ledger has no run of them"
        click.echo(f"runs of these types are not counted in the busy workers, {why}: {names}", err=True)
