"""Claims as JSON values, for messages between processes of one master."""

from __future__ import annotations

from dataclasses import astuple, fields
from typing import Any

from psched.model import Claim, Lease, Policy, Rule, ScheduleRow, TaskRow

_SCHEDULE_FIELDS = tuple(each.name for each in fields(ScheduleRow))


def encode_claim(claim: Claim) -> list[Any]:
    """Return lists of JSON values: named tuples are written as lists, a schedule as the values of its fields."""
    row = claim.row
    if isinstance(row, ScheduleRow):
        values = {name: getattr(row, name) for name in _SCHEDULE_FIELDS}
        written: Any = values | {"rule": astuple(row.rule), "policy": astuple(row.policy)}
    else:
        written = row
    return [written, claim.lease, claim.started, claim.records_begin]


def decode_claim(message: list[Any]) -> Claim:
    written, lease, started, records_begin = message
    if isinstance(written, dict):
        pauses = tuple((begin, end) for begin, end in written["earlier_pauses"])
        nested = {"rule": Rule(*written["rule"]), "policy": Policy(*written["policy"]), "earlier_pauses": pauses}
        return Claim(ScheduleRow(**(written | nested)), Lease(*lease), started, records_begin)
    return Claim(TaskRow(*written), Lease(*lease), started, records_begin)
