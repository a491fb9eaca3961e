"""psched next: the next occurrences of an expression, with notes on clock changes. Needs no database."""

from __future__ import annotations

import shutil
import sys
import time
from dataclasses import asdict
from datetime import UTC, datetime

import click

from psched import cron as crons
from psched.cli.formatting import KEPT, fitted, json_lines, write
from psched.cli.options import WHOLE_TIME, Chosen, common_options, count
from psched.cron.zones import load_zone


@click.command("next")
@click.argument("cron")
@click.option("-t", "--timezone", metavar="ZONE", help="Default: the config's, or UTC without one.")
@click.option("-n", "--number", type=count(1, 100_000), default=10, show_default=True)
@click.option("-s", "--start", type=WHOLE_TIME, help="First time to show (default: now).")
@common_options()
def next_(chosen: Chosen, cron: str, timezone: str | None, number: int, start: int | None) -> None:
    """Show the next occurrences of a cron expression.

    In its zone and in UTC, with notes on clock changes. Needs no configuration. TIME is unix seconds, or a date with a
    time zone such as 2026-12-01T08:00+01:00.

    --json prints one array of objects with time (unix seconds), local and utc (ISO 8601) and note (often empty).
    """
    section = chosen.settings().schedules if chosen.config or chosen.file.exists() else None
    dialect = crons.DIALECTS[0] if section is None else section.cron_dialect
    configured = "UTC" if section is None else section.timezone
    zone = configured if timezone is None else timezone
    begin = int(time.time()) if start is None else start
    found = [
        (datetime.fromtimestamp(each.time, load_zone(zone)), datetime.fromtimestamp(each.time, UTC), each)
        for each in crons.occurrences(cron, begin, zone, number, dialect)
    ]
    warning = crons.excessive_step(cron, dialect)
    if warning is not None:
        click.echo(f"warning: {warning}", err=True)
    if len(found) < number:
        click.echo("no further occurrence", err=True)
    if chosen.json:
        objects = (asdict(each) | {"local": local.isoformat(), "utc": utc.isoformat()} for local, utc, each in found)
        write(json_lines(objects))
        return
    rows = [(f"{local:%a %Y-%m-%d %H:%M:%S %Z}", f"{utc:%Y-%m-%d %H:%M:%S}", each.note) for local, utc, each in found]
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
    write(fitted([(zone, "UTC", "note"), *rows], width, (KEPT, KEPT, 0)))
