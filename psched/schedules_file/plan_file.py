"""A plan as JSON: for display, and to keep it until it is applied."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import cache
from typing import Any

from psched.error_messages import shown
from psched.errors import ConfigError
from psched.keys import check_key
from psched.model import NewSchedule
from psched.payload import object_of
from psched.schedules.validation import check_distinct
from psched.schedules_file.effect_on_runs import RunTimes
from psched.schedules_file.plan import ADD, DELETE, MODIFY, Plan, PlannedChange
from psched.time_text import local_datetime

FORMAT = 1
"""The number of the file format. Files with another number are refused."""
_REMEDY = "make a new plan with `psched plan --out`"
_TEXTS = ("key", "type", "cron")


def plan_object(plan: Plan) -> dict[str, Any]:
    """Return the plan as a JSON object. Later versions must keep the names in this object, and their meanings."""
    runs = cache(_runs_object)  # many schedules gain and lose the same runs
    return {
        "format": FORMAT,
        "source": plan.source,
        "database": plan.database,
        "owners": list(plan.owners),
        "at": plan.at,
        "at_local": _local(plan.at),
        "unchanged": plan.unchanged,
        "undeclared": list(plan.undeclared),
        "others": plan.others,
        "crowded_minutes": [asdict(crowded) for crowded in plan.crowded_minutes],
        "changes": [_change_object(each, runs) for each in plan.changes],
    }


def _change_object(change: PlannedChange, runs: Callable[[RunTimes], dict[str, Any]]) -> dict[str, Any]:
    definition = change.definition
    return {
        "action": change.action,
        "key": change.key,
        "version": change.version,
        "definition": None if definition is None else {**definition._asdict(), "data": object_of(definition.data)},
        "differences": [{"name": each.name, "before": each.before, "after": each.after} for each in change.differences],
        "gained": runs(change.effect.gained),
        "lost": runs(change.effect.lost),
        "notes": list(change.effect.notes),
        "warnings": list(change.effect.warnings),
    }


def _runs_object(runs: RunTimes) -> dict[str, Any]:
    return {
        "count": runs.count,
        "exact": runs.exact,
        "first": list(runs.first),
        "first_local": list(map(_local, runs.first)),
    }


def _local(time: float) -> str | None:
    moment = local_datetime(time)
    return None if moment is None else moment.isoformat(timespec="seconds")


def read_plan(text: str, name: str) -> Plan:
    """Parse the text of a plan file. Raises ConfigError whose text begins with `name`."""
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name}: not valid JSON: {error}; name a file that `psched plan --out` wrote") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        found = shown(content.get("format")) if isinstance(content, dict) else shown(content)
        raise ConfigError(f"{name}: format: expected {FORMAT}, got {found}; name a file that `psched plan --out` wrote")
    try:
        changes = tuple(map(_read_change, content["changes"]))
        check_distinct([change.key for change in changes], "change")
        return Plan(
            str(content["source"]),
            tuple(map(str, content["owners"])),
            float(content["at"]),
            changes,
            database=str(content["database"]),
        )
    except KeyError as error:
        raise ConfigError(f"{name}: not usable: the field {error} is missing; {_REMEDY}") from None
    except ValueError as error:
        raise ConfigError(f"{name}: not usable: {error}; {_REMEDY}") from None
    except (TypeError, AttributeError):
        raise ConfigError(f"{name}: not usable: a value has the wrong type; {_REMEDY}") from None


def _read_change(found: Mapping[str, Any]) -> PlannedChange:
    key, action, version, given = found["key"], found["action"], found["version"], found["definition"]
    check_key(key)
    if (
        action not in (ADD, MODIFY, DELETE)
        or (version is None) != (action == ADD)
        or (given is None) != (action == DELETE)
    ):
        raise ValueError(f"the change of {shown(key)} has an unknown action, or the wrong fields for its action")
    if given is None:
        return PlannedChange(key, action, version, None)
    unknown = [name for name in given if name not in NewSchedule._fields]
    if unknown:
        raise ValueError(f"the definition of {shown(key)} has the unknown option {unknown[0]!r}")
    definition = NewSchedule(**{name: _tuple(value) for name, value in given.items()})
    if definition.key != key or not all(isinstance(getattr(definition, name), str) for name in _TEXTS):
        raise ValueError(f"the definition of {shown(key)} must have the same key, and text in {', '.join(_TEXTS)}")
    return PlannedChange(key, action, version, definition)


def _tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
