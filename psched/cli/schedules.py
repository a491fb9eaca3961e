"""The commands on schedules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, fields
from typing import Any, TypedDict, Unpack, get_args

import click

from psched.cli.command_by_key import command_by_key
from psched.cli.completion import completed_keys, completed_types
from psched.cli.formatting import (
    Fields,
    ListColumns,
    fields_of,
    number,
    printable,
    write,
    write_fields,
    write_object,
    write_rows,
)
from psched.cli.json_input import read_data
from psched.cli.opened_sections import listed_schedules, opened
from psched.cli.option_types import (
    NO_BOUND,
    PLACE,
    UNIX_TIME,
    UNIX_TIME_OR_NONE,
    WAIT_OR_NONE,
    WHOLE_TIME,
    count,
    seconds,
)
from psched.cli.options import LIMIT, PREFIX, WIDE, Chosen, LimitedRows, common_options
from psched.cli.routing_warnings import warn_unless_routed
from psched.cli.rows_left_to_ruby import LeftToRuby
from psched.insight import ScheduleInsight
from psched.model import CATCH_UP, NEVER, OVERLAP, Policy, ScheduleRow
from psched.retry_wait import Backoff
from psched.schedule_options import LONGEST_SPREAD
from psched.schedules.collection import ScheduleCollection
from psched.schedules.derived_state import RUNNING, ScheduleState, StateWord
from psched.schedules.schedule_handle import Schedule
from psched.schedules.validation import LONGEST_DELAY, RULE_OPTIONS
from psched.stored_error_summary import error_summary
from psched.time_text import span


def rule_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option(
            "--tag",
            "tags",
            metavar="TEXT",
            multiple=True,
            help='Tag for `list --tag`; may be repeated. "" removes all tags.',
        ),
        click.option("--description", metavar="TEXT", help='What the schedule is for; "" removes it.'),
        click.option("--owner", metavar="TEXT", help='Owner of the schedule; "" removes it.'),
        click.option(
            "--spread",
            type=seconds(0, LONGEST_SPREAD, none=True),
            help="Delay each run by a fixed time from 0 to SEC seconds, computed from the key; SEC is at most 7 days.",
        ),
        click.option(
            "--exclude",
            metavar="NAME",
            multiple=True,
            help='Calendar of days without occurrences; may be repeated. "" removes all calendars.',
        ),
        click.option(
            "--on-failure",
            metavar="NAME",
            help='Hook for failed occurrences, a name in `hooks:`. "" means the hook in `on_failure:`.',
        ),
        click.option(
            "--timeout",
            type=seconds(none=True),
            help="Stop a run after SEC seconds; `none`: use the timeout of the type or of the configuration.",
        ),
        click.option(
            "--retry-wait",
            type=WAIT_OR_NONE,
            help="Wait after a failed attempt: SEC, or FIRST..LIMIT for a doubling wait; `none`: use the wait of the "
            "type or of the configuration.",
        ),
        click.option(
            "--pause-after",
            type=count(none=True),
            help="Pause the schedule when N occurrences have failed in a row; `none` removes the limit.",
        ),
        click.option(
            "--overlap",
            type=click.Choice(OVERLAP),
            help="If the previous occurrence has not ended yet: wait (the default), or skip the new one.",
        ),
        click.option(
            "--max-runs", type=count(none=True), help="End the schedule after N runs; `none` removes the limit."
        ),
        click.option(
            "--not-after", "end", type=UNIX_TIME_OR_NONE, help="No occurrence after TIME; `none` removes the limit."
        ),
        click.option(
            "--not-before", "start", type=UNIX_TIME_OR_NONE, help="No occurrence before TIME; `none` removes the limit."
        ),
        click.option(
            "--max-attempts",
            type=count(none=True),
            help="Give up an occurrence after N failed attempts; `none` removes the limit.",
        ),
        click.option(
            "--alert-after",
            type=seconds(none=True),
            help="Alert when an occurrence is not finished SEC seconds after its time; `none` removes the limit.",
        ),
        click.option(
            "--max-lateness",
            type=seconds(none=True),
            help="Skip an occurrence that would start more than SEC seconds late; `none` removes the limit.",
        ),
        click.option(
            "--catch-up",
            type=click.Choice(CATCH_UP),
            help="Which of several missed occurrences to run. `none`: only the latest, if at most --max-lateness "
            "(default: a minute) late.",
        ),
        click.option(
            "-a", "--at", "next_run_time", type=UNIX_TIME, help="Time of the next run. The occurrence stays the same."
        ),
        click.option(
            "-s", "--start", "next_time", type=WHOLE_TIME, help="Next occurrence: the first match at or after TIME."
        ),
        click.option("-t", "--timezone", metavar="ZONE", help="Read the cron expression in this zone."),
        click.option(
            "-d",
            "--delay",
            type=seconds(-LONGEST_DELAY, LONGEST_DELAY),
            help="Run SEC seconds after each occurrence (before it if negative); at most 366 days.",
        ),
    ):
        command = option(command)
    return command


_COLUMNS = {"key": 30, "type": 15, "cron": 18, "delay": 7, "timezone": 11, "next_time": 28, "next_run_time": 28}
_TABLE = ListColumns(
    brief={"key": 3, "type": 1, "cron": 3, "next_run": 2, "state": 0},
    own_time="next_run",
    wide=(*_COLUMNS, "state", "data"),
    original=_COLUMNS | {"data": 0},
)
_TIMES = ("next_time", "next_run_time")
_INSTANTS = ("start", "end")


@click.command("list")
@click.option(
    "--type", metavar="TYPE", shell_complete=completed_types("schedules"), help="Only schedules of this type."
)
@click.option("--state", type=click.Choice(get_args(StateWord)), help="Only schedules in this state.")
@click.option("--late", is_flag=True, help="Only overdue schedules, the most overdue first (at most 1,000).")
@PREFIX
@click.option("--owner", metavar="TEXT", help="Only schedules of this owner.")
@click.option("--tag", metavar="TEXT", help="Only schedules with this tag.")
@LIMIT
@click.option("--after", type=PLACE, help="Continue after PLACE, which the previous page (with --limit) printed.")
@WIDE
@click.option(
    "--format", "layout", type=click.Choice(["perfectsched"]), help="Print the columns of the program perfectsched."
)
@common_options()
def list_(
    chosen: Chosen, /, late: bool, limit: int | None, wide: bool, layout: str | None, **wanted: Unpack[_Wanted]
) -> None:
    """List the schedules by due time.

    On a terminal the columns are key, type, cron, next_run and state; --wide shows all. next_run is when the next
    attempt is due, or `now` while an attempt is running. Into a pipe or file, all columns are written as tab-separated
    text.

    Times are in this host's time zone. The state of a schedule is waiting, due, running, failing (with the last error),
    retrying (after an attempt without an error), overdue (no worker has started it), ended (it has no further
    occurrence), paused or broken. The number of the current or next attempt and the lateness are shown with the state.
    With `type: rdb_compat`, `leased` means running or waiting for a retry.

    --json prints one array of objects with key, type, cron, delay, timezone, next_time (unix seconds of the
    occurrence), next_run_time (when that occurrence is due, or when the lease of its run ends), both again as *_local
    in ISO 8601, data, status (waiting or running; rdb_compat knows only waiting and leased), state (as above), lateness
    (seconds since the occurrence became due, if not finished), overdue (true if lateness is more than 60 s and more
    than twice the longest retry_wait, unless the first attempt is running), attempts (so far, including the running
    one), last_error, node, problem (why the row cannot be run), catch_up, max_lateness, alert_after, max_attempts
    (null: use the limit of the type or of the configuration), owner, description, tags (a list), start, end (unix
    seconds, or null), spread, max_runs, exclude (names of calendars), paused, regular_time (the next regular
    occurrence, if next_time is an extra run), runs (those that count for max_runs, or null), overlap, pause_after,
    retry_wait (seconds, an object with first, factor, limit and jitter, or null), timeout, on_failure, failures (how
    many regular occurrences have failed in a row; null without pause_after or without failures). Rows of backfills also
    have backfill (the key of the schedule).
    """
    with listed_schedules(chosen) as insight:
        left = LeftToRuby(chosen, "schedules")
        found = _wanted(insight, late, wanted)
        page = LimitedRows(found, limit, lambda each: f"{number(each[0].next_run_time)}:{each[0].key}")
        write_rows(
            (_fields(left.seen(row), state) for row, state in page),
            _TIMES,
            _TABLE,
            listed=_listed,
            as_json=chosen.json,
            wide=wide,
            original=layout is not None,
        )
        page.note()
        left.note(insight)


class _Wanted(TypedDict):
    """The arguments of `ScheduleCollection.list`."""

    type: str | None
    state: StateWord | None
    prefix: str | None
    owner: str | None
    tag: str | None
    after: tuple[float, str] | None


def _wanted(insight: ScheduleInsight, late: bool, wanted: _Wanted) -> Iterator[tuple[ScheduleRow, ScheduleState]]:
    if not late:
        return insight.rows(**wanted)
    if wanted["state"] is not None or wanted["after"] is not None:
        raise click.UsageError("--late cannot be combined with --state or --after; remove one of them")
    type_, prefix, owner, tag = wanted["type"], wanted["prefix"] or "", wanted["owner"], wanted["tag"]
    return (
        (row, state)
        for row, state in insight.late()
        if type_ in (None, row.type)
        and row.key.startswith(prefix)
        and owner in (None, row.policy.owner)
        and (tag is None or tag in row.policy.tags)
    )


def _fields(row: ScheduleRow, state: ScheduleState) -> Fields:
    """Return the fields of `--json`. Later versions must keep the names and meanings of the fields."""
    fields = {"key": row.key, "type": row.type, **fields_of(row.rule)}
    fields |= {name: getattr(row, name) for name in ("next_time", "next_run_time", "data", "status")}
    fields |= {"state": state.word, "lateness": round(state.lateness, 3), "overdue": state.is_overdue}
    fields |= {name: getattr(row, name) for name in ("attempts", "last_error", "node", "problem")}
    fields["exclude"] = tuple(calendar.name for calendar in row.rule.exclude)
    del fields["backfill"]
    if row.rule.backfill is not None:
        fields["backfill"] = row.rule.backfill.schedule
    policy = fields_of(row.policy)
    if isinstance(row.policy.retry_wait, Backoff):
        policy["retry_wait"] = asdict(row.policy.retry_wait)
    return fields | policy | {name: getattr(row, name) for name in ("paused", "regular_time", "runs", "failures")}


def _listed(row: Fields) -> Fields:
    shown = _shown(row)
    is_running = row["state"] == RUNNING
    return shown | {"state": _state_text(row), "next_run": "now" if is_running else shown["next_run_time"]}


def _shown(row: Fields) -> Fields:
    """Return the fields for the terminal: `paused` or `ended` replaces a time that will not come."""
    never = {name: "ended" for name in ("next_time", "regular_time") if (row[name] or 0) >= NEVER}
    if row["paused"] or row["next_time"] >= NEVER:
        never["next_run_time"] = "paused" if row["paused"] else "ended"
    return row | never


def _state_text(row: Fields) -> str:
    """Return the state and its details, such as `failing (next: attempt 3, 2 h late): ValueError: it broke`."""
    facts = _attempt_text(row)
    if row["overdue"]:
        facts.append(f"{span(row['lateness'])} late")
    text = f"{row['state']} ({', '.join(facts)})" if facts else str(row["state"])
    if row["problem"] is not None:
        return f"{text}: {row['problem']}"
    return text if row["last_error"] is None else f"{text}: {error_summary(row['last_error'])}"


def _attempt_text(row: Fields) -> list[str]:
    """Return the running or the next attempt as text, with its number as in the log; [] for a first attempt."""
    attempts = row["attempts"]
    if row["state"] == RUNNING:
        return [f"attempt {attempts}"] if attempts > 1 else []
    if row["status"] == RUNNING:
        return [f"attempt {attempts} lost its lease"]
    return [f"next: attempt {attempts + 1}"] if attempts else []


@click.command()
@click.argument("key")
@click.argument("type", shell_complete=completed_types("schedules"))
@click.argument("cron")
@click.argument("data")
@rule_options
@common_options()
def add(chosen: Chosen, /, key: str, type: str, cron: str, data: str, **options: Any) -> None:
    """Add a schedule.

    KEY names the schedule. TYPE names the function or handler that runs it, and CRON is a cron expression, `@every 5m`
    or `@at 2027-03-01T09:00` (docs/cron.md). For example:

    psched add weekdays reports.report '0 9 * * mon-fri' '{"region": "north"}'

    The default delay is 0. The default time zone is `timezone` of the configuration. DATA is a JSON object, @FILE to
    read it from a file, or - for standard input. TIME is unix seconds, or a date with a time zone such as
    2026-12-01T08:00+01:00. SEC is seconds, or a duration such as 90s, 5m, 2h, 1d or 1w. --json prints the schedule as
    `list` does.
    """
    content = read_data(data)
    with opened(chosen) as schedules:
        schedules.add(key, type, cron=cron, data=content, **_given(options))
        warn_unless_routed(chosen, "schedules", schedules.store, type)
        _warn_of_hook(chosen, options["on_failure"])
        if chosen.json:
            write_object(_current(schedules, key), _TIMES)


def _given(options: dict[str, Any]) -> dict[str, Any]:
    """Return the given options as arguments of `ScheduleCollection.add`.

    The word `none` for a limit, and an empty string for an option of the policy or rule, become None.
    """
    terms = {*(field.name for field in fields(Policy)), *RULE_OPTIONS}
    return {
        name: None if name in terms and value in (NO_BOUND, "", ("",)) else value
        for name, value in options.items()
        if value is not None and value != ()
    }


def _warn_of_hook(chosen: Chosen, name: str | None) -> None:
    section = chosen.settings().schedules
    if name and section is not None and name not in section.hooks:
        known = ", ".join(sorted(section.hooks)) or "none"
        click.echo(f"warning: the configuration has no hook {name!r}; `hooks:` has {known}", err=True)


def _current(schedules: ScheduleCollection, key: str) -> Fields:
    row = schedules[key].metadata()
    return _fields(row, schedules.state(row, schedules.store.now()))


@click.command()
@click.argument("key", shell_complete=completed_keys("schedules"))
@click.option("--type", metavar="TYPE", shell_complete=completed_types("schedules"), help="The new type.")
@click.option("--cron", metavar="CRON", help="The new cron expression.")
@click.option(
    "--data", metavar="DATA", help="The new data, which replaces all old data: a JSON object, @FILE, or - for stdin."
)
@rule_options
@common_options()
def modify(chosen: Chosen, /, key: str, **options: Any) -> None:
    """Change a schedule.

    The change takes effect immediately. Options that are not given leave their values unchanged. A due occurrence stays
    due. A run in progress continues. When it has finished, the new rule decides the next occurrence. TIME is unix
    seconds, or a date with a time zone such as 2026-12-01T08:00+01:00. SEC is seconds, or a duration such as 90s, 5m,
    2h, 1d or 1w. --json prints the schedule as `list` does.
    """
    changes = _given(options)
    if not changes:
        raise click.UsageError("nothing to change; give at least one option")
    if "data" in changes:
        changes["data"] = read_data(changes["data"])
    with opened(chosen) as schedules:
        schedules[key].modify(**changes)
        _warn_of_hook(chosen, options["on_failure"])
        if chosen.json:
            write_object(_current(schedules, key), _TIMES)


@click.command()
@click.argument("key", shell_complete=completed_keys("schedules"))
@common_options()
def show(chosen: Chosen, key: str) -> None:
    """Show one schedule.

    --json prints one object as in `list`.
    """
    with opened(chosen) as schedules:
        row = _current(schedules, key)
    if chosen.json:
        write_object(row, _TIMES)
    else:
        lateness = span(row["lateness"]) if row["lateness"] >= 1 else None
        attempts = f"{row['attempts']} so far" if row["attempts"] else "0"
        write_fields(_shown(row) | {"lateness": lateness, "attempts": attempts}, (*_TIMES, *_INSTANTS, "regular_time"))


@command_by_key("schedules")
def delete(schedule: Schedule) -> None:
    """Delete a schedule. A run in progress loses its lease and is asked to stop."""
    schedule.delete()


@command_by_key("schedules")
def pause(schedule: Schedule) -> None:
    """Stop running a schedule until `psched resume`.

    A run in progress continues. If the schedule is already paused, a message says so.
    """
    if not schedule.pause():
        write([f"{printable(schedule.key)} was already paused"])


@command_by_key("schedules")
def resume(schedule: Schedule) -> None:
    """Run a paused schedule again.

    Occurrences that became due during the pause are skipped, and recorded as skipped. Occurrences that were due before
    the pause still run. If the schedule is not paused, a message says so.
    """
    if not schedule.resume():
        write([f"{printable(schedule.key)} was not paused"])


@command_by_key("schedules")
def run_now(schedule: Schedule) -> None:
    """Run a schedule as soon as a worker is free, even if the schedule is paused.

    If an occurrence is due, it runs now. Otherwise the schedule gets an extra run, and the regular occurrences keep
    their times.
    """
    schedule.run_now()
