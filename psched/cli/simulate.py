"""psched simulate: shows what an outage, or too few workers, would do to the schedules."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

from psched.cli.formatting import (
    KEPT,
    Fields,
    ListColumns,
    fields_of,
    json_line,
    short_time,
    with_local_times,
    write,
    write_fields,
    write_rows,
)
from psched.cli.opened_sections import opened_section
from psched.cli.option_types import MOMENT, NO_BOUND, When, count, seconds
from psched.cli.options import Chosen, common_options
from psched.error_messages import shown
from psched.insight import Lateness, ScheduleInsight, SimulatedHour, SimulatedOutage, Simulation
from psched.time_text import parse_seconds, span

_BEFORE, _AFTER = 3600, 86400
"""Default seconds to simulate before and after an outage."""
_SPAN_AHEAD = re.compile(r"\+\d+(\.\d+)?[smhdw]")
_TABLE = ListColumns(
    brief={"key": 1, "type": 0, **dict.fromkeys(("runs", "late", "worst", "skipped", "waiting"), KEPT)},
    wide=("key", "type", "runs", "late", "worst", "worst_time", "skipped", "reasons", "waiting"),
)
_SHOWN = 20
"""The maximum number of schedules in the table on a terminal."""


Moment = Callable[[float, float], float]
"""Returns the unix seconds of a time. Takes the current time, and the time from which a span such as `+2h` is counted.
"""


def _moment(text: str) -> Moment:
    """Return a function for `now`, for a span such as `+2h`, or for any text that `MOMENT` parses.

    Raises ValueError.
    """
    if text == "now":
        return lambda now, _: now
    if _SPAN_AHEAD.fullmatch(text):
        ahead = parse_seconds(text[1:])
        return lambda _, base: base + ahead
    try:
        found: When = MOMENT.parse(text)
    except ValueError as error:
        raise ValueError(f"{error}; also valid: a span ahead like +2h, or now") from None
    return lambda now, _: found(now)


class _TimeOption(click.ParamType):  # type: ignore[type-arg]  # not generic before click 8.4
    name = "when"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        try:
            return _moment(value)
        except ValueError as error:
            self.fail(str(error), parameter, context)


class _OutageType(click.ParamType):  # type: ignore[type-arg]  # as above
    name = "from..to"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        begin, dots, end = value.partition("..")
        if not (begin and dots and end):
            self.fail(f"expected FROM..TO such as 2026-12-01T02:00..+90m, got {shown(value)}", parameter, context)
        try:
            return _moment(begin), _moment(end)
        except ValueError as error:
            self.fail(str(error), parameter, context)


class _HandlerTime(click.ParamType):  # type: ignore[type-arg]  # as above
    name = "ledger|sec"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Any:
        return NO_BOUND if value in ("ledger", NO_BOUND) else seconds().convert(value, parameter, context)


@click.command("simulate")
@click.option("--outage", type=_OutageType(), metavar="FROM..TO", help="No worker runs from FROM to TO.")
@click.option(
    "--workers", type=count(1, 100_000), required=True, help="Number of workers; each runs one occurrence at a time."
)
@click.option(
    "--handler-time",
    type=_HandlerTime(),
    default=NO_BOUND,
    metavar="ledger|SEC",
    help="Seconds that each run takes; `ledger` (the default): the mean of the schedule's last runs, or else of the "
    "runs of its type.",
)
@click.option(
    "--from",
    "since",
    type=_TimeOption(),
    metavar="WHEN",
    help="Start of the range. Default: now. With --outage: FROM if it is past, else now or an hour before "
    "FROM, whichever is later.",
)
@click.option(
    "--to",
    "until",
    type=_TimeOption(),
    metavar="WHEN",
    help="End of the range (default: a day after the outage, or else a day after the start).",
)
@click.option(
    "--late",
    type=seconds(),
    default="60",
    show_default=True,
    metavar="SEC",
    help="Count runs as late that start more than SEC seconds after their time.",
)
@common_options()
def simulate(
    chosen: Chosen,
    outage: tuple[Moment, Moment] | None,
    workers: int,
    handler_time: float,
    since: Moment | None,
    until: Moment | None,
    late: float,
) -> None:
    """Show what an outage or too few workers would do to the schedules.

    Runs the current schedules on a virtual clock, by the rules of the workers (catch_up, max_lateness, overlap and so
    on). Prints which occurrences start late and by how much, which are skipped and why, when the backlog is gone, and
    the busiest hour. Nothing is written. A run in progress when the outage begins is lost, and runs again after its
    lease has ended. Handlers do not fail, paused schedules do not run, and the queue is left out. If the range begins
    now, the simulation begins with the schedules that are late now.

    Times are unix seconds, dates like 2026-12-01T02:00 (in this host's time zone unless they have an offset), now,
    spans like 2d (two days ago), and spans like +2h (in two hours; for TO and --to: after FROM and --from).

    --json prints one object: begin, end, caught_up (unix seconds, and as NAME_local), workers, outage (begin and end,
    or null), schedules, paused, unusable, runs, late, late_after, lateness (p50, p95, p99 and worst in seconds),
    skipped (numbers by reason), interrupted, missed (occurrences that wait when the outage ends), waiting (occurrences
    that wait at the end), hours (time, starts, late, skipped, busy, worst), busiest (one of the hours, or null),
    affected (key, type, runs, late, worst, worst_time, skipped, waiting; the worst first) and unmeasured (types without
    a run in the ledger).
    """
    with opened_section(chosen, "schedules", read_only=True, long_reads=True) as schedules:
        insight = ScheduleInsight(schedules)
        begin, end, out = _times(insight.now(), outage, since, until)
        seconds_each = None if handler_time == NO_BOUND else handler_time
        found = insight.simulate(begin, end, workers=workers, handler_time=seconds_each, outage=out, late_after=late)
    if chosen.json:
        write([json_line(_json(found))])
        return
    write_fields(dict(_summary(found)), ())
    most = _SHOWN if sys.stdout.isatty() else None
    if found.affected:
        write([""])
        rows = map(fields_of, found.affected[:most])
        write_rows(rows, ("worst_time",), _TABLE, listed=_listed, as_json=False)
    _write_notes(found, most)


def _times(
    now: float, outage: tuple[Moment, Moment] | None, since: Moment | None, until: Moment | None
) -> tuple[float, float, SimulatedOutage | None]:
    """Return start and end of the range, and the outage.

    A span such as `+2h` is counted from the start of the range, if a start is given.
    """
    begin, out = now, None
    if outage is not None:
        begin = outage[0](now, now)
        out = SimulatedOutage(begin, outage[1](now, begin))
        begin = max(begin - _BEFORE, min(begin, now))
    if since is not None:
        begin = since(now, now)
    end = until(now, begin) if until is not None else (begin if out is None else out.end) + _AFTER
    return begin, end, out


def _summary(found: Simulation) -> Iterator[tuple[str, str]]:
    left_out = [f"{number} {word}" for number, word in ((found.paused, "paused"), (found.unusable, "broken")) if number]
    yield "schedules", f"{found.schedules:,}" + (f" ({', '.join(left_out)} left out)" if left_out else "")
    yield "range", f"{short_time(found.begin)} to {short_time(found.end)}"
    yield "workers", f"{found.workers:,}"
    if found.outage is not None:
        begin, end = found.outage.begin, found.outage.end
        yield "outage", f"{short_time(begin)} to {short_time(end)} ({span(end - begin)})"
        yield "missed", f"{found.missed:,} occurrences wait at its end; {found.interrupted:,} runs were interrupted"
    yield "runs", f"{found.runs:,}; {found.late:,} start more than {span(found.late_after)} late"
    yield "lateness", _lateness(found.lateness)
    skipped = ", ".join(f"{number:,} {reason}" for reason, number in found.skipped.items())
    yield "skipped", skipped or "none"
    yield "backlog", _backlog(found)
    if found.busiest is not None:
        busy = f"{found.busiest.busy:.1f} of {found.workers:,} workers busy"
        yield "busiest hour", f"{short_time(found.busiest.time)}: {found.busiest.starts:,} starts, {busy}"


def _lateness(lateness: Lateness) -> str:
    if lateness.worst is None:
        return ""
    shares = ", ".join(
        f"{name} within {_seconds(value)}"
        for name, value in (("half", lateness.p50), ("95 %", lateness.p95), ("99 %", lateness.p99))
        if value is not None
    )
    return f"{shares}; the worst {_seconds(lateness.worst)}"


def _backlog(found: Simulation) -> str:
    if found.caught_up is None:
        return f"never gone; {found.waiting:,} occurrences wait at the end"
    after = found.caught_up - (found.begin if found.outage is None else found.outage.end)
    return f"gone {short_time(found.caught_up)}" + (f", {span(after)} after the outage" if found.outage else "")


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 10 else span(value)


def _listed(row: Fields) -> Fields:
    reasons = ", ".join(f"{number} {reason}" for reason, number in row["skipped"].items())
    return row | {"worst": span(row["worst"]), "skipped": sum(row["skipped"].values()), "reasons": reasons}


def _write_notes(found: Simulation, most: int | None) -> None:
    if most is not None and len(found.affected) > most:
        click.echo(f"affected schedules not shown: {len(found.affected) - most:,}; --json lists all of them", err=True)
    if found.unmeasured:
        names = ", ".join(found.unmeasured[:10]) + (" and more" if len(found.unmeasured) > 10 else "")
        why = "because the ledger has no run of them"
        click.echo(
            f"runs of these types are assumed to take the mean time of the other types, {why}: {names}", err=True
        )


def _json(found: Simulation) -> Fields:
    fields = fields_of(found) | {
        "outage": found.outage and fields_of(found.outage),
        "lateness": fields_of(found.lateness),
        "hours": [_hour(hour) for hour in found.hours],
        "busiest": found.busiest and _hour(found.busiest),
        "affected": [with_local_times(fields_of(each), ("worst_time",)) for each in found.affected],
        "unmeasured": list(found.unmeasured),
    }
    return with_local_times(fields, ("begin", "end", "caught_up"))


def _hour(hour: SimulatedHour) -> Fields:
    return with_local_times(fields_of(hour), ("time",))
