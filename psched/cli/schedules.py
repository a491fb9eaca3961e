"""The commands on schedules: init, list, add, modify, show, delete."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from typing import Any

import click

from psched.cli.options import Chosen, common_options
from psched.cli.rows import (
    compact,
    fitted,
    fixed,
    json_lines,
    local_time,
    number,
    printable,
    schedule_object,
    short_time,
    write,
)
from psched.cli.session import opened, parse_data
from psched.model import ScheduleRow

_COLUMNS = ("key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "data")
_WIDTHS = (30, 15, 18, 7, 11, 28, 28)
_UNCUT = (3, 5, 6)
"""The columns a terminal shows in full: delay and both times."""


@click.command()
@common_options()
def init(chosen: Chosen) -> None:
    """Create the tables, or upgrade them.

    Nothing happens when they are there already. Only this command creates a SQLite file.
    """
    with opened(chosen, check=False) as schedules:
        schedules.store.create_tables()


@click.command("list")
@common_options()
def list_(chosen: Chosen) -> None:
    """List the schedules, those due first.

    Times are in this host's time zone. --json prints one array of objects with key, type, cron, delay, timezone,
    next_time (unix seconds of the occurrence), next_run_time (when it is due, or when the lease of its run ends),
    both again as *_local in ISO 8601, data, status (waiting or running; rdb_compat knows only waiting and leased),
    attempts, last_error, node and problem (why such a row cannot be run).
    """
    with opened(chosen) as schedules:
        if chosen.json:
            write(json_lines(schedule_object(row) for row in schedules.list()))
        else:
            _write_table(schedules.list())


def _write_table(rows: Iterator[ScheduleRow]) -> None:
    count = 0

    def counted() -> Iterator[ScheduleRow]:
        nonlocal count
        for count, row in enumerate(rows, 1):  # noqa: B007 - read by the enclosing function
            yield row

    if sys.stdout.isatty():
        cells = (_cells(row, short_time(row.next_time), short_time(row.next_run_time)) for row in counted())
        write(fitted(_with_header(cells), shutil.get_terminal_size().columns, _UNCUT))
    else:
        cells = (_cells(row, local_time(row.next_time), local_time(row.next_run_time)) for row in counted())
        write(fixed(_WIDTHS, _with_header(cells)))
    write([f"{count} entries."])


def _with_header(cells: Iterator[tuple[str, ...]]) -> Iterator[tuple[str, ...]]:
    yield _COLUMNS
    yield from cells


def _cells(row: ScheduleRow, next_time: str, next_run_time: str) -> tuple[str, ...]:
    rule = row.rule
    return (
        row.key,
        row.type,
        rule.cron,
        number(rule.delay),
        rule.timezone,
        next_time,
        next_run_time,
        compact(row.data),
    )


@click.command()
@click.argument("key")
@click.argument("type")
@click.argument("cron")
@click.argument("data")
@click.option(
    "-d", "--delay", type=float, default=0, metavar="SEC", help="Run this long after each occurrence (default: 0)."
)
@click.option("-t", "--timezone", metavar="ZONE", help="Read the cron expression in this zone (default: the config's).")
@click.option("-s", "--start", type=int, metavar="UNIXTIME", help="First occurrence: the first match from then on.")
@click.option("-a", "--at", type=float, metavar="UNIXTIME", help="First run: then, whatever the occurrence.")
@common_options()
def add(chosen: Chosen, /, key: str, type: str, cron: str, data: str, **when: Any) -> None:
    """Add a schedule. DATA is a JSON object; --json prints the schedule as `list` does."""
    content = parse_data(data)
    start, at = when["start"], when["at"]
    with opened(chosen) as schedules:
        schedule = schedules.add(
            key,
            type,
            cron=cron,
            delay=_whole(when["delay"]),
            timezone=when["timezone"],
            next_time=start,
            next_run_time=at,
            data=content,
        )
        if chosen.json:
            write([_json(schedule.metadata())])


@click.command()
@click.argument("key")
@click.option("--type", metavar="TYPE")
@click.option("--cron", metavar="CRON")
@click.option("--data", metavar="JSON", help="The whole data, not merged.")
@click.option("-d", "--delay", type=float, metavar="SEC", help="Run this long after each occurrence.")
@click.option("-t", "--timezone", metavar="ZONE", help="Read the cron expression in this zone.")
@click.option("-s", "--start", type=int, metavar="UNIXTIME", help="Next occurrence: the first match from then on.")
@click.option("-a", "--at", type=float, metavar="UNIXTIME", help="Next run: then, whatever the occurrence.")
@common_options()
def modify(chosen: Chosen, /, key: str, **changes: Any) -> None:
    """Change a schedule, at once.

    What is not given stays. An occurrence that is due already stays due. A run in progress goes on, and is finished
    by the new rule. --json prints the schedule as `list` does.
    """
    wanted = {name: value for name, value in changes.items() if value is not None}
    if not wanted:
        raise click.UsageError("nothing to change; give at least one option")
    if "data" in wanted:
        wanted["data"] = parse_data(wanted["data"])
    if "delay" in wanted:
        wanted["delay"] = _whole(wanted["delay"])
    for option, name in (("start", "next_time"), ("at", "next_run_time")):
        if option in wanted:
            wanted[name] = wanted.pop(option)
    with opened(chosen) as schedules:
        schedules[key].modify(**wanted)
        if chosen.json:
            write([_json(schedules[key].metadata())])


@click.command()
@click.argument("key")
@common_options()
def show(chosen: Chosen, key: str) -> None:
    """Show one schedule.

    --json prints one object as in `list`.
    """
    with opened(chosen) as schedules:
        row = schedules[key].metadata()
    write([_json(row)] if chosen.json else _description(row))


def _description(row: ScheduleRow) -> Iterator[str]:
    """Yield what is known of a schedule, one line each; what is not set is left out."""
    lines = {
        "key": row.key,
        "type": row.type,
        "cron": row.rule.cron,
        "timezone": row.rule.timezone,
        "delay": number(row.rule.delay),
        "next_time": f"{row.next_time}  {local_time(row.next_time)}",
        "next_run_time": f"{number(row.next_run_time)}  {local_time(row.next_run_time)}",
        "status": row.status,
        "attempts": str(row.attempts),
        "node": row.node,
        "last_error": row.last_error,
        "problem": row.problem,
        "data": compact(row.data),
    }
    for name, text in lines.items():
        if text is not None:
            yield f"{name:<14} {printable(text)}"


@click.command()
@click.argument("key")
@common_options()
def delete(chosen: Chosen, key: str) -> None:
    """Delete a schedule. A run in progress is told that it was preempted."""
    with opened(chosen) as schedules:
        schedules[key].delete()


def _json(row: ScheduleRow) -> str:
    return json.dumps(schedule_object(row), ensure_ascii=False)


def _whole(value: float) -> float:
    return int(value) if value.is_integer() else value
