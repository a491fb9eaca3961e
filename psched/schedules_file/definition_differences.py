"""Converts rows and recorded changes to definitions of schedules (`NewSchedule`), and compares definitions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any

from psched.model import NewSchedule, Policy, Rule, ScheduleRow
from psched.payload import decode
from psched.store.ledger import Change

_OF_RULE = tuple(field.name for field in fields(Rule) if field.name in NewSchedule._fields)
_OF_POLICY = tuple(field.name for field in fields(Policy) if field.name in NewSchedule._fields)
_rule_values, _policy_values = attrgetter(*_OF_RULE), attrgetter(*_OF_POLICY)
_NOT_COMPARED = ("key", "next_time", "next_run_time")


@dataclass(frozen=True, slots=True)
class OptionDifference:
    name: str
    before: Any
    after: Any


def definition_of(row: ScheduleRow) -> NewSchedule:
    return _definition(row, row.data)


def recorded_definition(change: Change) -> NewSchedule | None:
    """Return the definition after a change in the ledger; None if the ledger kept no data of the schedule."""
    return None if change.data is None else _definition(change, decode(change.data))


def differences(before: NewSchedule, after: NewSchedule) -> Iterator[OptionDifference]:
    for name, was, becomes in zip(NewSchedule._fields, before, after, strict=True):
        if was != becomes and name not in _NOT_COMPARED:
            yield OptionDifference(name, was, becomes)


def _definition(source: ScheduleRow | Change, data: Mapping[str, Any]) -> NewSchedule:
    values: dict[str, Any] = dict(zip(_OF_RULE, _rule_values(source.rule), strict=True))
    values |= zip(_OF_POLICY, _policy_values(source.policy), strict=True)
    values["exclude"] = tuple(calendar.name for calendar in source.rule.exclude)
    return NewSchedule(key=source.key, type=source.type, data=data, **values)
