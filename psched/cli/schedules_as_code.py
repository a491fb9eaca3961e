"""psched plan, apply, diff, export and rollback: schedules as code."""

from __future__ import annotations

import gc
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import click

from psched.application import ApplicationSpec, load
from psched.atomic_write import write_atomically
from psched.cli.formatting import json_line, local_iso, printable, short_time, with_local_times, write, write_file
from psched.cli.json_input import read_source
from psched.cli.opened_sections import opened, required_section
from psched.cli.option_types import MOMENT, When, count
from psched.cli.options import PREFIX, Chosen, common_options
from psched.errors import ConfigError
from psched.keys import check_key
from psched.model import NewSchedule, ScheduleRow
from psched.schedules.collection import ScheduleCollection
from psched.schedules_file.declared import DeclaredSchedules
from psched.schedules_file.definition_differences import definition_of
from psched.schedules_file.effect_on_runs import DAYS, Effect, RunTimes
from psched.schedules_file.plan import (
    ADD,
    DELETE,
    MODIFY,
    Plan,
    PlanConflictError,
    PlannedChange,
    apply_plan,
    check_keeps_owners,
    plan,
)
from psched.schedules_file.plan_file import plan_object, read_plan
from psched.schedules_file.reader import options, parse_schedules
from psched.schedules_file.rollback_plans import rollback_to_time, rollback_to_version
from psched.schedules_file.writer import duration, schedules_text

CHANGES = 3
"""The exit code of plan, diff and rollback if they have found changes or differences."""
_SIGNS = {ADD: "+", MODIFY: "~", DELETE: "-"}
_KEYS_SHOWN = 10

F = TypeVar("F", bound=Callable[..., Any])


def _opened(chosen: Chosen) -> AbstractContextManager[ScheduleCollection]:
    """Open the schedules. From now on Python does not search for cyclic garbage.

    The commands of this module make no cyclic garbage, and the search took a fifth of the processor time of psched plan
    with 10,000 schedules (2026-11-28).
    """
    gc.disable()
    return opened(chosen)


def _declaration(function: F) -> F:
    for option in (
        click.option("--app", metavar="MODULE:NAME", help="Use the schedules that an App declares."),
        click.argument("file", required=False),
    ):
        function = option(function)
    return function


_PRUNE = click.option("--prune", is_flag=True, help="Delete schedules of the owner that are not declared.")
_ADOPT = click.option("--adopt", is_flag=True, help="Take over declared schedules that have another owner or no owner.")


@click.command("plan")
@_declaration
@_PRUNE
@_ADOPT
@click.option("--out", metavar="PLAN", help="Write the plan to a file, for psched apply --plan.")
@common_options(loading=True)
def plan_(chosen: Chosen, file: str | None, app: str | None, prune: bool, adopt: bool, out: str | None) -> int:
    """Show what psched apply would change.

    FILE is a file of schedules, or - for standard input. The first line of the output names the database. The other
    lines show each schedule to be added (+), modified (~) or deleted (-) with its changes, the runs that it gains and
    loses in the next 7 days, the effect of a clock change on these runs, and a warning if the schedule would run
    immediately or never. Schedules of other owners are not compared. Nothing is changed.

    The exit code is 0 if there is nothing to change, 3 if there are changes, and 1 for an error.

    --json prints the same object that --out writes. It has source, database (its URL without the password), owners, at
    (unix seconds), unchanged (a number of schedules), undeclared (keys of schedules that are not declared, and stay),
    others (the number of schedules of other owners), crowded_minutes (minutes in which many of the schedules start) and
    changes. A crowded minute has time, starts, before (starts without the plan) and more (how many more such minutes
    there are). A change has action (add, modify or delete), key, version (of the row), definition, differences (name,
    before and after), gained and lost (runs: count, first, exact), notes and warnings.
    """
    with _opened(chosen) as schedules:
        found = _planned(chosen, schedules, file, app, prune=prune, adopt=adopt)
    if out is not None:
        write_atomically(Path(out), [json_line(plan_object(found)), "\n"])
    write([json_line(plan_object(found))] if chosen.json else _plan_lines(found))
    return CHANGES if found.changes else 0


@click.command("apply")
@_declaration
@_PRUNE
@_ADOPT
@click.option("--plan", "planned", metavar="PLAN", help="Apply exactly this plan from psched plan --out, or nothing.")
@common_options(loading=True)
def apply_(chosen: Chosen, file: str | None, app: str | None, prune: bool, adopt: bool, planned: str | None) -> int:
    """Change the schedules in the database to match the declared ones.

    FILE is a file of schedules, or - for standard input. The command makes all changes or none: if another process has
    changed a schedule meanwhile, the error names that schedule, and nothing is changed. Only schedules of the owner are
    changed. Schedules that are not declared stay, unless --prune is given.

    --plan applies a plan from psched plan --out. The plan is refused if one of its schedules has changed since. With
    FILE or --app, the plan is also refused if the file or application now declares something else.

    The exit code is 0, or 1 for an error. --json prints the applied plan, as psched plan does.
    """
    if planned is not None and (prune or adopt) and file is None and app is None:
        raise click.UsageError("--plan alone takes no --prune and no --adopt; give them to psched plan instead")
    with _opened(chosen) as schedules:
        if planned is None:
            found = _planned(chosen, schedules, file, app, prune=prune, adopt=adopt)
        else:
            name, text = read_source(planned)
            found = _placed(chosen, read_plan(text, name))
            if file is not None or app is not None:
                now = _planned(chosen, schedules, file, app, prune=prune, adopt=adopt)
                _refuse_another(found, now, name)
        apply_plan(schedules, found)
    _write_applied(chosen, found, brief=planned is not None)
    return 0


def _refuse_another(found: Plan, now: Plan, name: str) -> None:
    if _written(found) != _written(now):
        raise PlanConflictError(
            f"{name}: the plan is out of date: a plan of {now.source} would now make other changes; "
            "nothing was applied; make a new plan"
        )


def _written(found: Plan) -> list[str]:
    """Return the changes of a plan as sorted JSON texts, so that a plan from a file can be compared with a new plan."""
    names = ("action", "key", "version", "definition")
    return sorted(json_line({name: each[name] for name in names}) for each in plan_object(found)["changes"])


@click.command("diff")
@_declaration
@click.option("--adopt", is_flag=True, help="Compare declared schedules even if they have another owner or no owner.")
@common_options(loading=True)
def diff(chosen: Chosen, file: str | None, app: str | None, adopt: bool) -> int:
    """Show where the database differs from the declared schedules.

    FILE is a file of schedules, or - for standard input. Shows each schedule of the owner that is only declared (-),
    only in the database (+), or different (~), with the differences and the author of the last change. psched apply
    --prune removes all these differences.

    The exit code is 0 if there is no difference, 3 if there are some, and 1 for an error.

    --json prints an array of objects with key, state (missing, undeclared or changed), differences (name, declared and
    database) and, about the last change, changed (unix seconds), by (the node) and action.
    """
    with _opened(chosen) as schedules:
        found = _planned(chosen, schedules, file, app, prune=True, adopt=adopt)
        drifts = [_drift(schedules, each) for each in found.changes]
    if chosen.json:
        write([json_line([with_local_times(each, ("changed",)) for each in drifts])])
    else:
        write(line for each in drifts for line in _drift_lines(each))
        write([f"{len(drifts)} differ, {found.unchanged} are as declared in {found.source}"])
    return CHANGES if drifts else 0


_STATES = {ADD: "missing", MODIFY: "changed", DELETE: "undeclared"}
_DRIFT_SIGNS = {"missing": "-", "changed": "~", "undeclared": "+"}


def _drift(schedules: ScheduleCollection, change: PlannedChange) -> dict[str, Any]:
    last = next(reversed(schedules.ledger.changes(change.key)), None)
    return {
        "key": change.key,
        "state": _STATES[change.action],
        "differences": [
            {"name": each.name, "declared": each.after, "database": each.before} for each in change.differences
        ],
        "changed": None if last is None else last.at,
        "by": None if last is None else last.node,
        "action": None if last is None else last.action,
    }


def _drift_lines(drift: Mapping[str, Any]) -> Iterator[str]:
    yield f"{_DRIFT_SIGNS[drift['state']]} {printable(drift['key'])}: {drift['state']}"
    for each in drift["differences"]:
        name = each["name"]
        yield f"    {name}: declared {_value(name, each['declared'])}, database {_value(name, each['database'])}"
    if drift["changed"] is not None:
        yield f"    last change: {drift['action']}, {short_time(drift['changed'])}, by {printable(drift['by'] or '?')}"


@click.command("export")
@click.option("--owner", metavar="TEXT", help='Only schedules of this owner; "" for schedules without owner.')
@click.option("--type", metavar="TYPE", help="Only schedules of this type.")
@PREFIX
@click.option("--tag", metavar="TEXT", help="Only schedules with this tag.")
@click.option(
    "--as", "new_owner", metavar="NAME", help="Owner to write into the file (default: the owner of the schedules)."
)
@click.option("-o", "--output", default="-", metavar="FILE", help="File to write (default: standard output).")
@click.option("--force", is_flag=True, help="Replace FILE if it exists.")
@common_options()
def export(
    chosen: Chosen,
    /,
    owner: str | None,
    type: str | None,
    prefix: str | None,
    tag: str | None,
    new_owner: str | None,
    output: str,
    force: bool,
) -> None:
    """Write the schedules of the database into a file of schedules.

    The file has one owner: choose the schedules by --owner, or name an owner by --as. For the unchanged file, psched
    plan finds nothing to change. If --as names another owner, psched plan --adopt finds only the change of the owner.

    --json prints an object with owner and schedules: an array of definitions.
    """
    with _opened(chosen) as schedules:
        rows = schedules.list(type=type, prefix=prefix, owner=owner or None, tag=tag)
        found = sorted(
            (row for row in rows if not row.is_backfill and (owner != "" or row.policy.owner is None)),
            key=attrgetter("key"),
        )
    broken = [row for row in found if row.problem is not None]
    if broken:
        remedy = "repair the schedule, or choose others with --owner, --type, --prefix or --tag"
        raise ValueError(f"{broken[0].key!r} cannot be exported: {broken[0].problem}; {remedy}")
    name = _owner_of(found) if new_owner is None else check_key(new_owner, "--as")
    definitions = [definition_of(row) for row in found]
    if chosen.json:
        write([json_line({"owner": name, "schedules": [_plain(each) for each in definitions]})])
        return
    lines = schedules_text(name, definitions)
    if output == "-":
        write(lines)
        return
    write_file(Path(output), (f"{line}\n" for line in lines), force)


def _plain(definition: NewSchedule) -> dict[str, Any]:
    return {"key": definition.key, **{name: getattr(definition, name) for name in options()}}


def _owner_of(rows: Sequence[ScheduleRow]) -> str:
    """Return the owner that all rows have in common. Raises ConfigError if there is no such owner."""
    owners = Counter(row.policy.owner for row in rows)
    if len(owners) == 1:
        [owner] = owners
        if owner is not None:
            return owner
    names = ", ".join(sorted(owner for owner in owners if owner is not None)[:_KEYS_SHOWN])
    found = "no schedule was chosen" if not rows else f"the schedules have {names or 'no owner'}"
    if names and None in owners:
        found += ", and some have no owner"
    raise ConfigError(
        f"a file must have one owner, but {found}; choose schedules with --owner, or name an owner with --as"
    )


@click.command("rollback")
@click.argument("key", required=False)
@click.option("--version", type=count(0, 2**62), help="With KEY: the version to go back to.")
@click.option("--owner", metavar="TEXT", help="Roll back the schedules of this owner.")
@click.option(
    "--before", type=MOMENT, help="Restore the definitions from just before this time: a date, or 2h (two hours ago)."
)
@click.option("--yes", is_flag=True, help="Apply the plan; without --yes it is only shown.")
@click.option("--out", metavar="PLAN", help="Write the plan to a file, for psched apply --plan.")
@common_options()
def rollback(
    chosen: Chosen,
    /,
    key: str | None,
    version: int | None,
    owner: str | None,
    before: When | None,
    yes: bool,
    out: str | None,
) -> int:
    """Restore earlier definitions of schedules.

    With --owner and --before: schedules that were added since then are deleted, schedules that were deleted since then
    are added again, and all others get their definitions of that time. With KEY and --version: one schedule gets the
    definition of that version. psched rollback KEY lists the versions, and so does the schedule's web page.

    A definition can be restored as long as the ledger has entries of that time. Pauses stay as they are, and runs are
    not undone.

    Without --yes the plan is only shown, with the output and the exit codes of psched plan.
    """
    is_one = key is not None and owner is None and before is None
    is_all = key is None and version is None and owner is not None and before is not None
    if not (is_one or is_all):
        raise click.UsageError("give --owner and --before, or KEY and --version")
    with _opened(chosen) as schedules:
        if key is not None and version is None:
            write(_versions(schedules, key))
            return 0
        if key is not None and version is not None:
            found = rollback_to_version(schedules, key, version)
        else:
            assert owner is not None
            assert before is not None
            found = rollback_to_time(schedules, owner, before(schedules.store.now()))
        found = _placed(chosen, found)
        if out is not None:
            write_atomically(Path(out), [json_line(plan_object(found)), "\n"])
        if yes:
            apply_plan(schedules, found)
    if yes:
        _write_applied(chosen, found)
        return 0
    write([json_line(plan_object(found))] if chosen.json else _plan_lines(found))
    return CHANGES if found.changes else 0


def _versions(schedules: ScheduleCollection, key: str) -> Iterator[str]:
    """Yield a line for each change of a schedule: version, time, action, rule and node."""
    changes = schedules.ledger.changes(key)
    if not changes:
        raise ConfigError(f"the ledger has no versions of {key!r}; psched list shows all keys")
    for each in changes:
        rule = f"{each.type}, {each.rule.cron} {each.rule.timezone}"
        yield f"{each.version}\t{short_time(each.at)}\t{each.action}\t{printable(rule)}\t{printable(each.node or '?')}"


def _planned(
    chosen: Chosen, schedules: ScheduleCollection, file: str | None, app: str | None, prune: bool, adopt: bool
) -> Plan:
    if (file is None) == (app is None):
        raise click.UsageError("give either FILE or --app MODULE:NAME")
    check_keeps_owners(schedules)
    if file is None:
        return _placed(chosen, plan(schedules, _declared_by(chosen, schedules, str(app)), prune=prune, adopt=adopt))
    name, text = read_source(file)
    declared = parse_schedules(text, name)
    try:
        return _placed(chosen, plan(schedules, [declared], prune=prune, adopt=adopt))
    except (ConfigError, ValueError):
        parse_schedules(text, name, schedules.check)  # raises an error with the line of each fault
        raise


def _placed(chosen: Chosen, found: Plan) -> Plan:
    """Return the plan with the configured database as its `database`. Warn if this was another database."""
    database = required_section(chosen.settings("schedules"), "schedules").masked_url
    if found.database not in ("", database):
        click.echo(f"warning: the plan was made for {found.database}; this database is {database}", err=True)
    return replace(found, database=database)


def _declared_by(chosen: Chosen, schedules: ScheduleCollection, app: str) -> list[DeclaredSchedules]:
    section = required_section(chosen.settings("schedules", (app,)), "schedules")
    application = load(ApplicationSpec(section.app, section.include, section.require))
    declared = application.declared_schedules()
    if not declared:
        raise ConfigError(f"--app {app} declares no schedules; add @app.schedule(...) to a task")
    for each in declared:
        for new in each.schedules:
            try:
                schedules.check(new)
            except ValueError as error:
                raise ConfigError(f"{each.place(new.key)}: {error}") from error
    return [replace(each, source=app) for each in declared]


def _write_applied(chosen: Chosen, found: Plan, brief: bool = False) -> None:
    if chosen.json:
        write([json_line(plan_object(found))])
        return
    lines = [f"{_SIGNS[each.action]} {printable(each.key)}" for each in found.changes]
    end = f"applied to {printable(found.database)}: {_summary(found, done=True)}"
    write([*(lines if brief else _change_lines(found)), end])


def _plan_lines(found: Plan) -> Iterator[str]:
    owners = ", ".join(map(repr, found.owners)) or "none"
    yield f"{printable(found.source)}: schedules of the owner {owners} in {printable(found.database)}"
    yield from _change_lines(found)
    for crowded in found.crowded_minutes:
        more = f"; {crowded.more} more such minutes" if crowded.more else ""
        begin = f"{crowded.starts:,} runs begin in the minute {short_time(crowded.time)}"
        yield f"crowded minute: {begin}, {crowded.before:,} before the change{more}"
    if found.undeclared:
        shown = ", ".join(map(printable, found.undeclared[:_KEYS_SHOWN]))
        more = ", …" if len(found.undeclared) > _KEYS_SHOWN else ""
        yield f"not declared, kept ({len(found.undeclared)}; --prune deletes them): {shown}{more}"
    yield f"plan: {_summary(found, done=False)}"


def _summary(found: Plan, done: bool) -> str:
    counts: Counter[str] = Counter(each.action for each in found.changes)
    words = ("added", "modified", "deleted") if done else ("to add", "to modify", "to delete")
    parts = [f"{counts[action]:,} {word}" for action, word in zip((ADD, MODIFY, DELETE), words, strict=True)]
    if found.unchanged or not done:
        parts.append(f"{found.unchanged:,} unchanged")
    others = f"; {found.others:,} of other owners stay unchanged" if found.others else ""
    return f"{', '.join(parts)}{others}"


def _change_lines(found: Plan) -> Iterator[str]:
    runs = cache(_runs)  # many schedules gain and lose the same runs
    for each in found.changes:
        new = each.definition
        what = f": {new.type}, {new.cron} {new.timezone}" if new is not None and each.action == ADD else ""
        yield printable(f"{_SIGNS[each.action]} {each.key}{what}")
        for difference in each.differences:
            name = difference.name
            yield f"    {name}: {_value(name, difference.before)} → {_value(name, difference.after)}"
        yield from _effect_lines(each.effect, runs)


def _effect_lines(effect: Effect, runs: Callable[[RunTimes], str]) -> Iterator[str]:
    if not (effect.gained.exact and effect.lost.exact):
        yield f"    runs in {DAYS} days: {effect.lost.count:,} before, {effect.gained.count:,} after"
    else:
        for verb, times in (("gains", effect.gained), ("loses", effect.lost)):
            if times.count:
                yield f"    {verb} {runs(times)}"
    yield from (f"    note: {note}" for note in effect.notes)
    yield from (f"    warning: {warning}" for warning in effect.warnings)


def _runs(runs: RunTimes) -> str:
    more = ", …" if runs.count > len(runs.first) else ""
    return f"{runs.count:,} runs in {DAYS} days: {', '.join(map(short_time, runs.first))}{more}"


def _value(name: str, value: Any) -> str:
    """Return the value of an option in the form of a file of schedules."""
    kind = options().get(name)
    if value is None or value == ():
        return "none"
    if kind == "instant":
        return str(local_iso(value))
    if isinstance(value, Mapping):
        value = dict(value)
    elif kind in ("seconds", "wait"):
        return str(duration(value))
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
