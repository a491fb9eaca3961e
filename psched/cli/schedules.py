"""The commands on schedules: list, add, modify, show, delete; and init, for the queue's tables too."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import click

from psched.cli.formatting import (
    Shown,
    compact,
    exact_time,
    json_line,
    json_lines,
    number,
    printable,
    schedule_object,
    span,
    write,
    write_fields,
    write_table,
)
from psched.cli.options import DELAY, NO_BOUND, Chosen, Count, Seconds, UnixTime, common_options
from psched.cli.session import opened, opened_queue, parse_data
from psched.cli.unrouted_types import left_to_ruby, note_left_to_ruby, note_unrouted_types, warn_unless_routed
from psched.error_summary import error_summary
from psched.model import CATCH_UP, ScheduleRow
from psched.schedules.collection import ScheduleCollection
from psched.schedules.rules import Terms
from psched.schedules.schedule import RUNNING, ScheduleState


def policy_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options of a policy."""
    for option in (
        click.option(
            "--max-attempts",
            type=Count(none=True),
            metavar="N",
            help="Give an occurrence up after N failed attempts; none removes the limit.",
        ),
        click.option(
            "--alert-after",
            type=Seconds(none=True),
            metavar="SEC",
            help="Raise the alarm when an occurrence is not finished SEC seconds after its time.",
        ),
        click.option(
            "--max-lateness",
            type=Seconds(none=True),
            metavar="SEC",
            help="Skip an occurrence that would start more than SEC seconds late; none removes the limit.",
        ),
        click.option(
            "--catch-up",
            type=click.Choice(CATCH_UP),
            help="Of occurrences that are due together run all, the latest, or none that is late.",
        ),
    ):
        function = option(function)
    return function


_ORIGINALS = ("key", "type", "cron", "delay", "timezone", "next_time", "next_run_time", "data")
_ORIGINAL_WIDTHS = (30, 15, 18, 7, 11, 28, 28)
_COLUMNS = (*_ORIGINALS[:-1], "state", "data")
_WIDTHS = (*_ORIGINAL_WIDTHS, 30)
_UNCUT = (3, 5, 6)
"""The columns a terminal shows in full: delay and both times."""


@click.command()
@common_options()
def init(chosen: Chosen) -> None:
    """Create the tables of every section.

    Nothing happens when they are there already. Only this command, and `psched queue init`, create a SQLite file.
    """
    settings = chosen.settings()
    if settings.schedules is not None:
        with opened(chosen, check=False) as schedules:
            schedules.store.create_tables()
    if settings.queue is not None:
        with opened_queue(chosen, check=False) as queue:
            queue.store.create_tables()


@click.command("list")
@click.option(
    "--format",
    "layout",
    type=click.Choice(["psched", "perfectsched"]),
    default="psched",
    help="Print the columns of psched, or those of perfectsched alone.",
)
@common_options()
def list_(chosen: Chosen, layout: str) -> None:
    """List the schedules, those due first.

    Times are in this host's time zone. The state of a schedule is waiting, due (a worker is to take it), running,
    failing (with the last error; retrying without one), overdue (no worker has begun it), paused or broken, with which
    attempt runs, or is next, and how late it is. On rdb_compat, whose table does not tell a run from the wait for a
    retry, either is leased.

    --json prints one array of objects with key, type, cron, delay, timezone, next_time (unix seconds of the
    occurrence), next_run_time (when it is due, or when the lease of its run ends), both again as *_local in ISO 8601,
    data, status (waiting or running; rdb_compat knows only waiting and leased), state (as above), lateness (for how
    many seconds the occurrence has been due and not finished), overdue (whether that is more than 60 s and twice the
    longest retry_wait, and no first attempt is running), attempts (how many so far, with the one that runs),
    last_error, node, problem (why such a row cannot be run), catch_up, max_lateness, alert_after, max_attempts (null:
    as its type or the configuration says), paused and regular_time (while next_time is that of an extra run: the
    regular occurrence that comes after it).
    """
    with opened(chosen) as schedules:
        left = left_to_ruby(chosen, chosen.settings(), "schedules")
        rows = schedules.list() if left is None else left.seen(schedules.list())
        if chosen.json:
            now = schedules.store.now()
            write(json_lines(schedule_object(row, schedules.state(row, now)) for row in rows))
        elif layout == "perfectsched":
            write_table(_ORIGINALS, rows, _original_cells, _ORIGINAL_WIDTHS, _UNCUT)
        else:
            now = schedules.store.now()
            write_table(
                _COLUMNS,
                rows,
                lambda row, shown: _cells(row, schedules.state(row, now), shown),
                _WIDTHS,
                _UNCUT,
            )
        note_unrouted_types(schedules.store)
        note_left_to_ruby(left)


def _cells(row: ScheduleRow, state: ScheduleState, shown: Shown) -> tuple[str, ...]:
    *cells, data = _original_cells(row, shown)
    return (*cells, _state_text(row, state), data)


def _state_text(row: ScheduleRow, state: ScheduleState) -> str:
    """Return a state in a few words: `failing (next: attempt 3, 2 h late): ValueError: it broke`."""
    facts = _attempt_text(row, state)
    if state.is_overdue:
        facts.append(f"{span(state.lateness)} late")
    text = f"{state.word} ({', '.join(facts)})" if facts else state.word
    if row.problem is not None:
        return f"{text}: {row.problem}"
    return text if row.last_error is None else f"{text}: {error_summary(row.last_error)}"


def _attempt_text(row: ScheduleRow, state: ScheduleState) -> list[str]:
    """Return which attempt runs, or is next: the number that the log says with it. Nothing of a first one."""
    if state.word == RUNNING:
        return [f"attempt {row.attempts}"] if row.attempts > 1 else []
    if row.status == RUNNING:
        return [f"attempt {row.attempts} lost its lease"]
    return [f"next: attempt {row.attempts + 1}"] if row.attempts else []


def _original_cells(row: ScheduleRow, shown: Shown) -> tuple[str, ...]:
    rule = row.rule
    return (
        row.key,
        row.type,
        rule.cron,
        number(rule.delay),
        rule.timezone,
        shown(row.next_time),
        "paused" if row.paused else shown(row.next_run_time),
        compact(row.data),
    )


@click.command()
@click.argument("key")
@click.argument("type")
@click.argument("cron")
@click.argument("data")
@click.option(
    "-d",
    "--delay",
    type=DELAY,
    default=0,
    metavar="SEC",
    help="Run this long after each occurrence, or before it if negative: at most 366 days (default: 0).",
)
@click.option("-t", "--timezone", metavar="ZONE", help="Read the cron expression in this zone (default: the config's).")
@click.option(
    "-s", "--start", type=UnixTime(whole=True), metavar="TIME", help="First occurrence: the first match from then on."
)
@click.option("-a", "--at", type=UnixTime(), metavar="TIME", help="First run: then, whatever the occurrence.")
@policy_options
@common_options()
def add(chosen: Chosen, /, key: str, type: str, cron: str, data: str, **when: Any) -> None:
    """Add a schedule.

    DATA is a JSON object. TIME is unix seconds, or a date with a time zone such as 2026-12-01T08:00+01:00. --json
    prints the schedule as `list` does.
    """
    content = parse_data(data)
    start, at = when["start"], when["at"]
    with opened(chosen) as schedules:
        schedule = schedules.add(
            key,
            type,
            cron=cron,
            delay=when["delay"],
            timezone=when["timezone"],
            next_time=start,
            next_run_time=at,
            data=content,
            **terms_of(when),
        )
        warn_unless_routed(chosen, chosen.settings(), "schedules", schedules.store, type)
        if chosen.json:
            write([_json_of(schedules, schedule.metadata())])


@click.command()
@click.argument("key")
@click.option("--type", metavar="TYPE")
@click.option("--cron", metavar="CRON")
@click.option("--data", metavar="JSON", help="The whole data, not merged.")
@click.option(
    "-d", "--delay", type=DELAY, metavar="SEC", help="Run this long after each occurrence, or before it if negative."
)
@click.option("-t", "--timezone", metavar="ZONE", help="Read the cron expression in this zone.")
@click.option(
    "-s", "--start", type=UnixTime(whole=True), metavar="TIME", help="Next occurrence: the first match from then on."
)
@click.option("-a", "--at", type=UnixTime(), metavar="TIME", help="Next run: then, whatever the occurrence.")
@policy_options
@common_options()
def modify(chosen: Chosen, /, key: str, **changes: Any) -> None:
    """Change a schedule, at once.

    What is not given stays. An occurrence that is due already stays due. A run in progress goes on, and is finished
    by the new rule. TIME is unix seconds, or a date with a time zone such as 2026-12-01T08:00+01:00. --json prints the
    schedule as `list` does.
    """
    wanted: dict[str, Any] = {**terms_of(changes)}
    wanted |= {name: value for name, value in changes.items() if value is not None}
    if not wanted:
        raise click.UsageError("nothing to change; give at least one option")
    if "data" in wanted:
        wanted["data"] = parse_data(wanted["data"])
    for option, name in (("start", "next_time"), ("at", "next_run_time")):
        if option in wanted:
            wanted[name] = wanted.pop(option)
    with opened(chosen) as schedules:
        schedules[key].modify(**wanted)
        if chosen.json:
            write([_json_of(schedules, schedules[key].metadata())])


@click.command()
@click.argument("key")
@common_options()
def show(chosen: Chosen, key: str) -> None:
    """Show one schedule.

    --json prints one object as in `list`.
    """
    with opened(chosen) as schedules:
        row = schedules[key].metadata()
        if chosen.json:
            write([_json_of(schedules, row)])
        else:
            write_fields(_fields(row, schedules.state(row, schedules.store.now())))


def _json_of(schedules: ScheduleCollection, row: ScheduleRow) -> str:
    return json_line(schedule_object(row, schedules.state(row, schedules.store.now())))


def _fields(row: ScheduleRow, state: ScheduleState) -> Iterable[tuple[str, str | None]]:
    """Return the name and the text of what is known of a schedule."""
    return {
        "key": row.key,
        "type": row.type,
        "cron": row.rule.cron,
        "timezone": row.rule.timezone,
        "delay": number(row.rule.delay),
        "next_time": exact_time(row.next_time),
        "next_run_time": "paused" if row.paused else exact_time(row.next_run_time),
        "regular_time": None if row.regular_time is None else exact_time(row.regular_time),
        "catch_up": row.policy.catch_up,
        "max_lateness": _optional(row.policy.max_lateness),
        "alert_after": _optional(row.policy.alert_after),
        "max_attempts": _optional(row.policy.max_attempts),
        "status": row.status,
        "state": state.word,
        "lateness": span(state.lateness) if state.lateness >= 1 else None,
        "attempts": f"{row.attempts} so far" if row.attempts else "0",
        "node": row.node,
        "last_error": row.last_error,
        "problem": row.problem,
        "data": compact(row.data),
    }.items()


@click.command()
@click.argument("key")
@common_options()
def delete(chosen: Chosen, key: str) -> None:
    """Delete a schedule. A run in progress is told that it was preempted."""
    with opened(chosen) as schedules:
        schedules[key].delete()


@click.command()
@click.argument("key")
@common_options()
def pause(chosen: Chosen, key: str) -> None:
    """Stop running a schedule until `psched resume`.

    A run in progress goes on. Nothing happens when it was paused already, which is told.
    """
    with opened(chosen) as schedules:
        if not schedules[key].pause():
            write([f"{printable(key)} was paused already"])


@click.command()
@click.argument("key")
@common_options()
def resume(chosen: Chosen, key: str) -> None:
    """Let a paused schedule run again.

    Occurrences of the time of the pause are skipped, and recorded as skipped; those that were due before it are caught
    up. Nothing happens when the schedule was not paused, which is told.
    """
    with opened(chosen) as schedules:
        if not schedules[key].resume():
            write([f"{printable(key)} was not paused"])


@click.command("run-now")
@click.argument("key")
@common_options()
def run_now(chosen: Chosen, key: str) -> None:
    """Run a schedule as soon as a worker is free, paused or not.

    An occurrence that has come runs now; otherwise this is an extra run, and the regular ones stay where they are.
    """
    with opened(chosen) as schedules:
        schedules[key].run_now()


def terms_of(options: dict[str, Any]) -> Terms:
    """Return what the options say of a policy, and take them out."""
    given = {name: options.pop(name) for name in ("catch_up", "max_lateness", "alert_after", "max_attempts")}
    terms = {name: None if value == NO_BOUND else value for name, value in given.items() if value is not None}
    return cast("Terms", terms)


def _optional(seconds: float | None) -> str | None:
    return None if seconds is None else number(seconds)
