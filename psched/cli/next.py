"""psched next: shows the next occurrences of an expression or of a schedule, with notes on clock changes."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

import click

from psched import cron as crons
from psched.cli.completion import completed_keys
from psched.cli.formatting import KEPT, fitted, json_lines, write
from psched.cli.opened_sections import opened
from psched.cli.option_types import WHOLE_TIME, count
from psched.cli.options import Chosen, check_cron_or_key, common_options, dialect_and_zone
from psched.cron.zones import load_zone
from psched.schedules import rule_occurrences
from psched.schedules.skip_policy import overlap_note


@dataclass(frozen=True, slots=True)
class _Found:
    """Occurrences, their time zone, and the times of their runs. A mere cron expression has no runs."""

    timezone: str
    occurrences: Sequence[crons.Occurrence]
    run_times: Sequence[float] | None = None


@click.command("next")
@click.argument("cron", required=False)
@click.option(
    "-k",
    "--key",
    shell_complete=completed_keys("schedules"),
    help="Show the next occurrences of this schedule.",
)
@click.option("-t", "--timezone", metavar="ZONE", help="Zone of the expression (default: the configuration's, or UTC).")
@click.option(
    "-n", "--number", type=count(1, 100_000), default=10, show_default=True, help="Number of occurrences to show."
)
@click.option("-s", "--start", type=WHOLE_TIME, help="First time to show (default: now).")
@common_options()
def next_(
    chosen: Chosen, cron: str | None, key: str | None, timezone: str | None, number: int, start: int | None
) -> None:
    """Show the next occurrences of a cron expression, or of a schedule.

    Shows each time in its zone and in UTC, with notes on clock changes. Without --key no configuration is needed. With
    --key, the schedule's bounds and calendars are applied, and its delay and spread are shown. Pauses, extra runs and
    `modify --start` are ignored. With `overlap: skip`, a line says that occurrences may be skipped. TIME is unix
    seconds, or a date with a time zone such as 2026-12-01T08:00+01:00.

    --json prints one array of objects with time (unix seconds), local and utc (ISO 8601) and note (often empty); with
    --key also run_time (unix seconds).
    """
    check_cron_or_key(cron, key, timezone)
    found = (
        _of_expression(chosen, cron, timezone, number, start)
        if cron is not None
        else _of_schedule(chosen, str(key), number, start)
    )
    if len(found.occurrences) < number:
        click.echo("no further occurrence", err=True)
    zone = load_zone(found.timezone)
    runs = [None] * len(found.occurrences) if found.run_times is None else found.run_times
    listed = [
        (datetime.fromtimestamp(each.time, zone), datetime.fromtimestamp(each.time, UTC), each, run)
        for each, run in zip(found.occurrences, runs, strict=True)
    ]
    if chosen.json:
        write(
            json_lines(
                asdict(each)
                | {"local": local.isoformat(), "utc": utc.isoformat()}
                | ({} if run is None else {"run_time": run})
                for local, utc, each, run in listed
            )
        )
        return
    rows = [
        (f"{local:%a %Y-%m-%d %H:%M:%S %Z}", f"{utc:%Y-%m-%d %H:%M:%S}", _note(each, run))
        for local, utc, each, run in listed
    ]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
    write(fitted([(found.timezone, "UTC", "note"), *rows], width, (KEPT, KEPT, 0)))


def _of_expression(chosen: Chosen, cron: str, timezone: str | None, number: int, start: int | None) -> _Found:
    dialect, zone = dialect_and_zone(chosen, timezone)
    found = crons.occurrences(cron, int(time.time()) if start is None else start, zone, number, dialect)
    warning = crons.excessive_step(cron, dialect)
    if warning is not None:
        click.echo(f"warning: {warning}", err=True)
    return _Found(zone, found)


def _of_schedule(chosen: Chosen, key: str, number: int, start: int | None) -> _Found:
    with opened(chosen) as schedules:
        row, dialect = schedules[key].metadata(), schedules.cron_dialect
        begin = int(schedules.store.now()) if start is None else start
    if (note := overlap_note(row.policy)) is not None:
        click.echo(f"an occurrence is {note}", err=True)
    rule = row.rule
    most = number if rule.max_runs is None else min(number, max(0, rule.max_runs - (row.runs or 0)))
    times = list(rule_occurrences.times(rule, begin, most, dialect))
    found = [each for at in times for each in crons.occurrences(rule.cron, at, rule.timezone, 1, dialect)]
    return _Found(rule.timezone, found, [row.run_time(at) for at in times])


def _note(each: crons.Occurrence, run_time: float | None) -> str:
    later = 0 if run_time is None else run_time - each.time
    run = f"runs {abs(later):g} s {'later' if later > 0 else 'earlier'}" if later else ""
    return "; ".join(filter(None, (each.note, run)))
