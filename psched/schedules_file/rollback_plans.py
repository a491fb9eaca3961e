"""Rollback: plans that give schedules earlier definitions from the ledger."""

from __future__ import annotations

from collections.abc import Sequence

from psched.error_messages import did_you_mean
from psched.errors import NotFoundError, ScheduleError
from psched.model import NewSchedule, ScheduleFilter
from psched.schedules.collection import ScheduleCollection
from psched.schedules_file.definition_differences import recorded_definition
from psched.schedules_file.plan import Plan, check_keeps_owners, planned
from psched.store.ledger import DELETE, UPGRADE, Change
from psched.time_text import local_time

_NAMED = 10
"""How many owners a message names."""


def rollback_to_time(schedules: ScheduleCollection, owner: str, time: float) -> Plan:
    """Return the plan that gives an owner's schedules the definitions that they had just before `time`.

    Schedules that were added after `time` are deleted. Schedules that were deleted after `time` are added again.
    Schedules that were adopted after `time` return to their previous owners. Schedules that now belong to another owner
    do not change, nor do pauses. Raises NotFoundError for an unknown owner, NotSupportedError and ScheduleError.
    """
    check_keeps_owners(schedules)
    changes = {key: schedules.ledger.changes(key) for key in schedules.ledger.changed_since(time)}
    if not any(change.policy.owner == owner for of_key in changes.values() for change in of_key):
        _check_owner_exists(schedules, owner)
    present = {row.key: row for row in schedules.store.get_many(list(changes))}
    wanted: list[NewSchedule] = []
    gone: list[str] = []
    for key, of_key in changes.items():
        then = next((change for change in reversed(of_key) if change.at < time), None)
        if then is None and of_key[0].action not in ("add", UPGRADE):
            raise ScheduleError(f"{key!r}: the ledger does not reach back to {local_time(time)}; name a later time")
        existed = then is not None and then.action != DELETE
        now = present.get(key)
        if now is not None and now.policy.owner != owner:
            continue
        if existed and then is not None:
            if now is not None or then.policy.owner == owner:  # a schedule that another owner deleted stays deleted
                wanted.append(_definition(then))
        elif now is not None and then is None and of_key[0].action == UPGRADE:
            raise ScheduleError(
                f"{key!r} is older than the ledger, which begins after {local_time(time)}; name a later time"
            )
        elif now is not None:
            gone.append(key)
    return planned(schedules, f"rollback to {local_time(time)}", (owner,), wanted, gone, present)


def rollback_to_version(schedules: ScheduleCollection, key: str, version: int) -> Plan:
    """Return the plan that gives one schedule the definition of a version.

    Raises NotFoundError, NotSupportedError, and ScheduleError if the version has no definition.
    """
    check_keeps_owners(schedules)
    changes: Sequence[Change] = schedules.ledger.changes(key)
    then = next((change for change in changes if change.version == version), None)
    if then is None:
        known = ", ".join(str(change.version) for change in changes[-10:]) or "none"
        raise NotFoundError(f"{key!r} has no version {version} in the ledger; the last ones are {known}")
    if then.action == DELETE:
        raise ScheduleError(
            f"{key!r}: version {version} is the schedule's deletion; run psched delete, or name another version"
        )
    definition = _definition(then)
    owners = () if definition.owner is None else (definition.owner,)
    present = {row.key: row for row in schedules.store.get_many([key])}
    return planned(schedules, f"rollback to version {version}", owners, [definition], [], present)


def _check_owner_exists(schedules: ScheduleCollection, owner: str) -> None:
    """Raise NotFoundError, with the owners that exist, if no schedule has this owner."""
    if next(iter(schedules.store.list(ScheduleFilter(owner=owner, page=1))), None) is not None:
        return
    owners = sorted({row.policy.owner for row in schedules.store.list() if row.policy.owner is not None})
    named = f"the owners are {', '.join(map(repr, owners[:_NAMED]))}" if owners else "no schedule has an owner"
    more = f" and {len(owners) - _NAMED} more" if len(owners) > _NAMED else ""
    raise NotFoundError(
        f"no schedule has the owner {owner!r}{did_you_mean(owner, owners, more_follows=True)}; {named}{more}"
    )


def _definition(change: Change) -> NewSchedule:
    found = recorded_definition(change)
    if found is None:
        raise ScheduleError(f"{change.key!r}: the ledger has no data of version {change.version}")
    return found
