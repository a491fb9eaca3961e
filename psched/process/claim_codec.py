"""Claims as plain values, for messages between processes of one master."""

from __future__ import annotations

from dataclasses import astuple, fields, replace
from functools import lru_cache
from typing import Any

from psched.model import Calendar, Claim, Lease, Policy, Progress, Rule, ScheduleRow, TaskRow

_SCHEDULE_FIELDS = tuple(each.name for each in fields(ScheduleRow))
_HEADERS = TaskRow._fields.index("headers")
_PROGRESS = TaskRow._fields.index("progress")


def encode_claim(claim: Claim) -> tuple[Any, ...]:
    """Return tuples, dicts, lists, numbers and text: a schedule as a dict of its fields, a task as a list."""
    row = claim.row
    written: Any
    if isinstance(row, ScheduleRow):
        written = {name: getattr(row, name) for name in _SCHEDULE_FIELDS}
        written |= {"rule": _rule_values(row.rule), "policy": astuple(row.policy)}
    else:
        written = list(row)
        written[_HEADERS] = dict(row.headers)
        if row.progress is not None:
            written[_PROGRESS] = tuple(row.progress)
    return (written, tuple(claim.lease), claim.started, claim.records_begin)


def decode_claim(message: tuple[Any, ...]) -> Claim:
    written, lease, started, records_begin = message
    row: ScheduleRow | TaskRow
    if isinstance(written, dict):
        row = ScheduleRow(**written | {"rule": _rule(written["rule"]), "policy": Policy(*written["policy"])})
    else:
        if written[_PROGRESS] is not None:
            written[_PROGRESS] = Progress(*written[_PROGRESS])
        row = TaskRow._make(written)
    return Claim(row, Lease._make(lease), started, records_begin)


@lru_cache(maxsize=1024)  # many schedules have the same few rules
def _rule_values(rule: Rule) -> tuple[Any, ...]:
    return astuple(rule)


@lru_cache(maxsize=1024)
def _rule(values: tuple[Any, ...]) -> Rule:
    rule = Rule(*values)
    return replace(rule, exclude=tuple(Calendar(*each) for each in rule.exclude)) if rule.exclude else rule  # type: ignore[misc]
