"""Plans: the changes that give a store the declared schedules. `plan` computes them, `apply_plan` makes them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Literal

from psched.errors import ConfigError, NotSupportedError, ScheduleError
from psched.model import NewSchedule, ScheduleFilter, ScheduleRow
from psched.schedules.collection import ScheduleCollection
from psched.schedules.rule_change import redefined
from psched.schedules_file.declared import DeclaredSchedules
from psched.schedules_file.definition_differences import OptionDifference, definition_of, differences
from psched.schedules_file.effect_on_runs import NO_EFFECT, Effect, PlannedCrowdedMinute, RunTimeComparison
from psched.store import RowChange, UnreadRow
from psched.time_text import local_time

PlannedAction = Literal["add", "modify", "delete"]
ADD: Final = "add"
MODIFY: Final = "modify"
DELETE: Final = "delete"
_TRIES = 20
"""The maximum number of tries to apply a plan while other processes add and delete its schedules."""
_NAMED = 5
"""How many keys a message names."""
_MOST_COUNTED = 100_000


class PlanConflictError(ScheduleError):
    """A plan was not applied, because schedules were changed after the plan was made. Nothing was changed.

    `keys`: the keys of those schedules.
    """

    def __init__(self, message: str, keys: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.keys = tuple(keys)


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One schedule to add, modify or delete.

    `version`: the version of the row to modify or delete. `definition`: the new definition, None for a schedule to
    delete.
    """

    key: str
    action: PlannedAction
    version: int | None
    definition: NewSchedule | None
    differences: tuple[OptionDifference, ...] = ()
    effect: Effect = NO_EFFECT


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that give a store the declared schedules, and their context.

    - `source`: the file or the application.
    - `at`: when the plan was made, in unix seconds by the database's clock.
    - `unchanged`: how many schedules are already as declared.
    - `undeclared`: schedules of `owners` that are not declared, but stay because `prune` was not given.
    - `others`: how many schedules have other owners or no owner (counted up to 100,000). These schedules do not change.
    - `rows`: the changes in the form that the store takes; empty for a plan that was read from a file.
    - `database`: the URL of the store without its password, if the caller has named it.
    """

    source: str
    owners: tuple[str, ...]
    at: float
    changes: tuple[PlannedChange, ...]
    unchanged: int = 0
    undeclared: tuple[str, ...] = ()
    others: int = 0
    crowded_minutes: tuple[PlannedCrowdedMinute, ...] = ()
    rows: tuple[RowChange, ...] = field(default=(), compare=False, repr=False)
    database: str = ""


def plan(
    schedules: ScheduleCollection,
    declared: Iterable[DeclaredSchedules],
    *,
    prune: bool = False,
    adopt: bool = False,
) -> Plan:
    """Return the changes that give the store the declared schedules. The store is not changed.

    `prune`: delete the schedules of the owners in `declared` that are not declared. `adopt`: take over schedules that
    have declared keys, but belong to another owner or have no owner.

    Raises:
        ConfigError: a schedule cannot be added, or it exists and belongs to another owner.
        NotSupportedError: the store keeps no owners.
    """
    check_keeps_owners(schedules)
    given = list(declared)
    wanted = [new._replace(owner=each.owner) for each in given for new in each.schedules]
    owners = tuple(dict.fromkeys(each.owner for each in given))
    owned = {row.key: row for owner in owners for row in schedules.store.list(ScheduleFilter(owner=owner))}
    present = owned | _present(schedules, [new.key for new in wanted if new.key not in owned])
    if not adopt:
        _refuse_others(given, present)
    undeclared = sorted(owned.keys() - {new.key for new in wanted})
    source = ", ".join(dict.fromkeys(each.source for each in given))
    return planned(
        schedules, source, owners, wanted, undeclared if prune else [], present, () if prune else tuple(undeclared)
    )


def planned(
    schedules: ScheduleCollection,
    source: str,
    owners: tuple[str, ...],
    wanted: Sequence[NewSchedule],
    gone: Sequence[str],
    present: Mapping[str, ScheduleRow],
    undeclared: tuple[str, ...] = (),
) -> Plan:
    """Return a plan that adds or modifies the schedules `wanted`, and deletes the schedules with the keys `gone`.

    `present`: the existing rows with the keys of `wanted`, `gone` and `undeclared`. Raises like `plan`.
    """
    now = schedules.store.now()
    comparison = RunTimeComparison(now, schedules.cron_dialect)
    changes: list[PlannedChange] = []
    rows: list[RowChange] = []
    after = [present[key] for key in undeclared]
    for new in schedules.rows_of(wanted):
        seen = present.get(new.key)
        if seen is not None and _is_defined_as(seen, new):
            after.append(seen)
            continue
        row = new if seen is None else redefined(seen, now, new, schedules.cron_dialect)
        after.append(row)
        definition = definition_of(new)
        differing: tuple[OptionDifference, ...] = ()
        if seen is not None:
            differing = tuple(differences(definition_of(seen), definition))
            if not differing:  # another process is writing a new version of a calendar
                continue
        effect = comparison.effect(seen, row)
        action: PlannedAction = ADD if seen is None else MODIFY
        version = None if seen is None else seen.version
        changes.append(PlannedChange(new.key, action, version, definition, differing, effect))
        rows.append(_row_change(seen, new, schedules))
    for key in gone:
        seen = present[key]
        changes.append(PlannedChange(key, DELETE, seen.version, None, (), comparison.effect(seen, None)))
        rows.append(RowChange(seen, None))
    total = schedules.store.reads.counts(_MOST_COUNTED)["total"].count
    concerned = {*(new.key for new in wanted), *gone}
    owned = sum(row.key in concerned or row.policy.owner in owners for row in present.values())
    crowded_minutes = comparison.crowded_minutes(present.values(), after) if changes else []
    unchanged = len(wanted) + len(gone) - len(changes)
    return Plan(
        source,
        owners,
        now,
        tuple(changes),
        unchanged,
        undeclared,
        max(0, total - owned),
        tuple(crowded_minutes),
        tuple(rows),
    )


def apply_plan(schedules: ScheduleCollection, found: Plan) -> None:
    """Make all changes of the plan in one transaction (on Redis in one script), or none of them.

    Workers may run the schedules at the same time. Raises PlanConflictError if one of the schedules was added or
    deleted, or its definition was changed, after the plan was made. Raises ScheduleError if the schedules change at
    each of 20 tries, ConfigError and ValueError for a schedule that cannot be stored, and NotSupportedError like
    `plan`.
    """
    check_keeps_owners(schedules)
    rows = found.rows if len(found.rows) == len(found.changes) else _unread_rows(schedules, found)
    for _ in range(_TRIES):
        if not schedules.store.apply(rows):
            return
        rows = _current_rows(schedules, found)
    raise ScheduleError(f"not applied: schedules were changed during each of {_TRIES} attempts; try again")


def apply_declared(schedules: ScheduleCollection, declared: Iterable[DeclaredSchedules]) -> Plan:
    """Call `plan` and `apply_plan`, and return the applied plan. Raises the errors of both.

    Repeats both calls if another process applies a plan at the same time.
    """
    given = list(declared)
    for _ in range(_TRIES - 1):
        found = plan(schedules, given)
        try:
            apply_plan(schedules, found)
        except PlanConflictError:
            continue
        return found
    found = plan(schedules, given)
    apply_plan(schedules, found)
    return found


def check_keeps_owners(schedules: ScheduleCollection) -> None:
    """Raise NotSupportedError if the store keeps no owners. A plan could then change schedules of other owners."""
    if not schedules.store.keeps_policies:
        raise NotSupportedError(
            "owner: the tables of rdb_compat keep no owners, so a plan cannot know which schedules it may change; "
            "use `type: rdb` or `type: redis`"
        )


def _present(schedules: ScheduleCollection, keys: Sequence[str]) -> dict[str, ScheduleRow]:
    return {row.key: row for row in schedules.store.get_many(keys)} if keys else {}


def _refuse_others(declared: Iterable[DeclaredSchedules], present: Mapping[str, ScheduleRow]) -> None:
    """Raise ConfigError if declared schedules belong to other owners. The error names these schedules."""
    found: list[str] = []
    for each in declared:
        for new in each.schedules:
            seen = present.get(new.key)
            if seen is None or seen.policy.owner == each.owner:
                continue
            owner = "no owner" if seen.policy.owner is None else f"the owner {seen.policy.owner!r}"
            place = each.place(new.key) if len(found) < _NAMED else ""
            found.append(f"{place}: the schedule exists and has {owner}, not {each.owner!r}")
    if found:
        more = [f"… and {len(found) - _NAMED} more"] if len(found) > _NAMED else []
        raise ConfigError(*found[:_NAMED], *more, "choose other keys, or take them over with --adopt")


def _is_defined_as(seen: ScheduleRow, new: ScheduleRow) -> bool:
    return (seen.type, seen.rule, seen.policy, seen.data) == (new.type, new.rule, new.policy, new.data)


def _row_change(
    seen: ScheduleRow | UnreadRow | None, wanted: ScheduleRow | None, schedules: ScheduleCollection
) -> RowChange:
    if seen is None or wanted is None:
        return RowChange(seen, wanted)
    return RowChange(seen, wanted, partial(redefined, wanted=wanted, dialect=schedules.cron_dialect))


def _unread_rows(schedules: ScheduleCollection, found: Plan) -> Sequence[RowChange]:
    """Return the changes of a plan without reading rows. The store compares the versions of the rows."""
    seen = {each.key: UnreadRow(each.key, each.version) for each in found.changes if each.version is not None}
    return _row_changes(schedules, found, seen)


def _current_rows(schedules: ScheduleCollection, found: Plan) -> Sequence[RowChange]:
    """Return the changes of a plan, based on the current rows. Raises PlanConflictError."""
    present = _present(schedules, [each.key for each in found.changes])
    changed = [
        each.key
        for each in found.changes
        if (None if (row := present.get(each.key)) is None else row.version) != each.version
    ]
    if changed:
        raise PlanConflictError("; ".join(_conflicts(schedules, changed, found)), changed)
    return _row_changes(schedules, found, present)


def _row_changes(
    schedules: ScheduleCollection, found: Plan, seen: Mapping[str, ScheduleRow | UnreadRow]
) -> Sequence[RowChange]:
    new = {row.key: row for row in schedules.rows_of(each.definition for each in found.changes if each.definition)}
    return [_row_change(seen.get(each.key), new.get(each.key), schedules) for each in found.changes]


def _conflicts(schedules: ScheduleCollection, changed: Sequence[str], found: Plan) -> Iterator[str]:
    for key in changed[:_NAMED]:
        last = next(reversed(schedules.ledger.changes(key)), None)
        what = "changed" if last is None else {"add": "added", "delete": "deleted"}.get(last.action, "changed")
        by = "" if last is None else f" ({last.action} at {local_time(last.at)} by {last.node})"
        yield f"{key!r} was {what} after the plan was made{by}"
    if len(changed) > _NAMED:
        yield f"… and {len(changed) - _NAMED} more"
    yield "nothing was applied; make a new plan"
