"""psched backfill: starts, lists and changes backfills. A backfill runs past occurrences of a schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import click

from psched.cli.completion import completed_keys
from psched.cli.formatting import KEPT, Fields, ListColumns, fields_of, printable, write, write_object, write_rows
from psched.cli.opened_sections import listed_schedules, opened
from psched.cli.option_types import MOMENT, When, count
from psched.cli.options import Chosen, common_options
from psched.schedules.backfills import MOST_RUNNING, BackfillMode, BackfillPlan, BackfillState
from psched.schedules.collection import ScheduleCollection
from psched.stored_error_summary import error_summary
from psched.time_text import local_time

_COLUMNS = ("name", "state", "done", "failed", "left", "max_running", "first", "last", "last_error")
_TABLE = ListColumns(
    brief={
        "name": 3,
        "state": KEPT,
        "done": KEPT,
        "failed": KEPT,
        "left": KEPT,
        "first": 2,
        "last": 2,
        "last_error": 0,
    },
    wide=_COLUMNS,
)
_TIMES = ("first", "last")
_SHOWN = 20
"""The maximum number of time ranges that --dry-run shows."""


@click.command()
@click.argument("key", required=False, shell_complete=completed_keys("schedules"))
@click.option("--from", "since", type=MOMENT, help="Run the occurrences from this time on.")
@click.option("--to", "until", type=MOMENT, help="Run the occurrences up to this time (default: now).")
@click.option(
    "--only-missing",
    is_flag=True,
    help="Run occurrences without an entry in the ledger, and occurrences skipped as too late (the default).",
)
@click.option("--failed", is_flag=True, help="Also run occurrences that failed for good.")
@click.option("--all", is_flag=True, help="Run all occurrences, including those that have run.")
@click.option(
    "--max-running",
    type=count(1, MOST_RUNNING),
    help=f"Run at most N occurrences at a time, N from 1 to {MOST_RUNNING} (default: 1).",
)
@click.option("--reverse", is_flag=True, help="Run the last occurrence first.")
@click.option("--dry-run", is_flag=True, help="Show what would run, and start nothing.")
@click.option(
    "--pause", is_flag=True, help="Pause the schedule's backfills: start no more of their runs until --resume."
)
@click.option("--resume", is_flag=True, help="Continue paused backfills.")
@click.option("--cancel", is_flag=True, help="Cancel the schedule's backfills. Runs in progress continue.")
@click.option("--number", type=count(), help="Pause, resume or cancel only the backfill KEY:N of the schedule.")
@common_options()
def backfill(
    chosen: Chosen,
    /,
    key: str | None,
    since: When | None,
    until: When | None,
    max_running: int | None,
    reverse: bool,
    dry_run: bool,
    number: int | None,
    **flags: bool,
) -> None:
    """Run past occurrences of a schedule, or list backfills.

    With --from: start a backfill of the schedule KEY. By default a backfill runs the missing occurrences: those that
    have no entry in the ledger, and those that were skipped as too late. Occurrences that another backfill still has to
    run are left out, so repeating the command starts nothing. The schedule's regular runs go on. Times are unix
    seconds, dates, or spans such as 2d (ago).

    Without --from: list the backfills of KEY, or of all schedules, with their progress. --pause, --resume and --cancel
    act on the backfills of KEY.

    --json prints one array of backfills: the new backfill; the backfills that were paused, resumed or cancelled; or the
    listed backfills. Each is an object with name, schedule, number, state (waiting, running, failing, retrying, paused,
    finished or cancelled), first and last (occurrences, in unix seconds and again as *_local), reverse, max_running,
    done (occurrences that have ended), failed (how many of them failed), left (still to run), and last_error. With
    --dry-run, --json prints an object with schedule, count (occurrences that would run), total (occurrences in the
    range) and spans (first and last occurrence of each time range that would run).
    """
    mode = _only_flag(flags, _MODES)
    action = _only_flag(flags, _ACTIONS)
    if since is not None:
        _refuse_together("--from", {f"--{action}": action, "--number": number})
        if key is None:
            raise click.UsageError("name the schedule: psched backfill KEY --from TIME")
        with opened(chosen) as schedules:
            kind = _MODES["only_missing" if mode is None else mode]
            _start(chosen, schedules, key, since, until, kind, max_running or 1, reverse, dry_run)
        return
    given = {"--to": until, "--max-running": max_running, "--reverse": reverse, "--dry-run": dry_run}
    _refuse_without("--from", given | ({} if mode is None else {_flag(mode): mode}))
    if action is None:
        _refuse_without("--pause, --resume or --cancel", {"--number": number})
        with listed_schedules(chosen) as insight:
            states = list(insight.backfills(key))
            if key is not None and not states:
                insight.row(key)  # raises NotFoundError if there is no such schedule
            _write(chosen, states)
        return
    if key is None:
        raise click.UsageError(f"name the schedule: psched backfill KEY --{action}")
    with opened(chosen) as schedules:
        change = getattr(schedules.backfills, action)
        names = change(key, number)
        if chosen.json:
            _write(chosen, (each for each in schedules.backfills.list(key) if each.name in names))
        else:
            write([f"{printable(name)} {_ACTIONS[action]}" for name in names] or [f"nothing to {action}"])


_MODES: Mapping[str, BackfillMode] = {"only_missing": "missing", "failed": "failed", "all": "all"}
_ACTIONS = {"pause": "paused", "resume": "resumed", "cancel": "cancelled"}


def _only_flag(flags: Mapping[str, bool], names: Iterable[str]) -> str | None:
    """Return the flag that was given, or None if no flag was given. Raises UsageError if several were given."""
    given = [name for name in names if flags[name]]
    if len(given) > 1:
        _refuse_together(_flag(given[0]), {_flag(given[1]): True})
    return given[0] if given else None


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _refuse_together(name: str, given: dict[str, object]) -> None:
    for other, value in given.items():
        if value:
            raise click.UsageError(f"{name} cannot be combined with {other}; remove one of them")


def _refuse_without(name: str, given: dict[str, object]) -> None:
    for other, value in given.items():
        if value:
            raise click.UsageError(f"{other} needs {name}")


def _start(
    chosen: Chosen,
    schedules: ScheduleCollection,
    key: str,
    since: When,
    until: When | None,
    mode: BackfillMode,
    max_running: int,
    reverse: bool,
    dry_run: bool,
) -> None:
    now = schedules.store.now()
    first, last = since(now), now if until is None else until(now)
    if last < first:
        raise click.UsageError(f"--to{' (now)' if until is None else ''} is before --from")
    span = math.ceil(first), math.floor(last)
    if dry_run:
        _write_plan(chosen, schedules.backfills.plan(key, *span, mode))
        return
    state = schedules.backfills.start(key, *span, mode, max_running=max_running, reverse=reverse)
    if chosen.json:
        _write(chosen, [] if state is None else [state])
    elif state is None:
        write(["nothing to run: each occurrence in the range has already run, was skipped, or belongs to a backfill"])
    else:
        times = f"{local_time(state.first)} … {local_time(state.last)}"
        occurrences = "1 occurrence" if state.left == 1 else f"{state.left} occurrences"
        write([f"{printable(state.name)}: {occurrences} to run, {times}"])


def _write_plan(chosen: Chosen, plan: BackfillPlan) -> None:
    if chosen.json:
        write_object(fields_of(plan), ())
        return
    write([f"{plan.count} of {plan.total} occurrences would run"])
    for first, last in plan.spans[:_SHOWN]:
        write([f"  {local_time(first)}" + (f" … {local_time(last)}" if last > first else "")])
    if len(plan.spans) > _SHOWN:
        write([f"  and {len(plan.spans) - _SHOWN} more time ranges, up to {local_time(plan.spans[-1][1])}"])


def _write(chosen: Chosen, states: Iterable[BackfillState]) -> None:
    write_rows(map(fields_of, states), _TIMES, _TABLE, listed=_listed, as_json=chosen.json)


def _listed(row: Fields) -> Fields:
    error = row["last_error"]
    return row | {"last_error": "" if error is None else error_summary(error)}
