"""Claims as plain values, for messages between processes of one master."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any

from psched.model import Calendar, Claim, Lease, Policy, Progress, Rule, ScheduleRow, TaskRow
from psched.retry_wait import Backoff

_PLAIN_FIELDS = [each.name for each in fields(ScheduleRow) if each.name not in ("rule", "policy")]
_HEADERS = TaskRow._fields.index("headers")
_PROGRESS = TaskRow._fields.index("progress")


def encode_claim(claim: Claim) -> tuple[Any, ...]:
    """Return what a message can hold: a schedule as a dict of its fields, a task as a list."""
    row = claim.row
    written: Any
    if isinstance(row, ScheduleRow):
        written = {name: getattr(row, name) for name in _PLAIN_FIELDS}
        written["definition"] = _write_definition(row.rule, row.policy)
    else:
        written = list(row)
        written[_HEADERS] = dict(row.headers)
        if row.progress is not None:
            written[_PROGRESS] = tuple(row.progress)
    return (written, claim.lease, claim.started, claim.records_begin)


def decode_claim(message: Sequence[Any]) -> Claim:
    written, lease, started, records_begin = message
    row: ScheduleRow | TaskRow
    if isinstance(written, dict):
        written["rule"], written["policy"] = _read_definition(written.pop("definition"))
        written["earlier_pauses"] = tuple((begin, end) for begin, end in written["earlier_pauses"])
        row = ScheduleRow(**written)
    else:
        if written[_PROGRESS] is not None:
            written[_PROGRESS] = Progress(*written[_PROGRESS])
        row = TaskRow._make(written)
    return Claim(row, Lease._make(lease), started, records_begin)


@lru_cache(maxsize=1024)  # many schedules have the same few rules
def _write_definition(rule: Rule, policy: Policy) -> str:
    return json.dumps([asdict(rule), asdict(policy)])


@lru_cache(maxsize=1024)
def _read_definition(text: str) -> tuple[Rule, Policy]:
    rule, policy = json.loads(text)
    rule["exclude"] = tuple(
        Calendar(each["name"], each["version"], tuple(each["dates"]), tuple(each["weekdays"]))
        for each in rule["exclude"]
    )
    policy["tags"] = tuple(policy["tags"])
    if isinstance(policy["retry_wait"], dict):
        policy["retry_wait"] = Backoff(**policy["retry_wait"])
    return Rule(**rule), Policy(**policy)
