"""psched next: the next occurrences of a cron expression, with notes on clock changes. Needs no database."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from psched import cron as crons
from psched.cli.formatting import fitted, json_lines, write
from psched.cli.options import Chosen, UnixTime, common_options, count
from psched.cron.zones import load_zone


@click.command("next")
@click.argument("cron")
@click.option("-t", "--timezone", metavar="ZONE", help="Default: the config's, or UTC without one.")
@click.option("-n", "--number", type=count(1, 100_000), default=10, show_default=True)
@click.option("-s", "--start", type=UnixTime(whole=True), help="First time to show (default: now).")
@common_options()
def next_(chosen: Chosen, cron: str, timezone: str | None, number: int, start: int | None) -> None:
    """Show the next occurrences of a cron expression.

    In its zone and in UTC, with notes on clock changes. Needs no configuration. TIME is unix seconds, or a date with a
    time zone such as 2026-12-01T08:00+01:00.

    --json prints one array of objects with time (unix seconds), local and utc (ISO 8601) and note (often empty).
    """
    section = chosen.settings().schedules if chosen.config or chosen.file.exists() else None
    zone, dialect = ("UTC", "vixie") if section is None else (section.timezone, section.cron_dialect)
    zone = zone if timezone is None else timezone
    found = crons.occurrences(cron, int(time.time()) if start is None else start, zone, number, dialect)
    if chosen.json:
        write(json_lines(_object(occurrence, zone) for occurrence in found))
        return
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else 1000
    write(fitted(_rows(found, zone), width, rigid=(0, 1)))


def _rows(found: list[crons.Occurrence], zone: str) -> Iterator[tuple[str, str, str]]:
    yield zone, "UTC", "note"
    for occurrence in found:
        local, utc = _local_and_utc(occurrence, zone)
        yield f"{local:%a %Y-%m-%d %H:%M:%S %z}", f"{utc:%Y-%m-%d %H:%M:%S}", occurrence.note


def _object(occurrence: crons.Occurrence, zone: str) -> dict[str, Any]:
    local, utc = _local_and_utc(occurrence, zone)
    return {"time": occurrence.time, "local": local.isoformat(), "utc": utc.isoformat(), "note": occurrence.note}


def _local_and_utc(occurrence: crons.Occurrence, zone: str) -> tuple[datetime, datetime]:
    utc = datetime.fromtimestamp(occurrence.time, UTC)
    return utc.astimezone(load_zone(zone)), utc
