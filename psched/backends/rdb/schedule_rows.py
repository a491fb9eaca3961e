"""Between a schedule and its row in `rdb`: reading the one, and what is to be written of the other. Any process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psched.backends.rdb.leases import storable
from psched.backends.rdb.tables import AHEAD_AGAIN, CLAIMED_OF_SCHEDULE, RUNNING, WAITING, milliseconds
from psched.backends.sql.fields import LAST_SECOND, Fields
from psched.error_summary import shortened
from psched.ledger import FAILED, PAUSED, SKIPPED, Entry
from psched.model import CATCH_UP, Claim, Lease, Policy, Rule, ScheduleRow
from psched.payload import MAX_DATA_SIZE, decode, pack, type_from_key

_LONGEST_ERROR = 2000
"""Characters kept of an error: the row of the schedule itself has more of it."""

_LAST_MS = LAST_SECOND * 1000
_ERRORS = {str, type(None)}
_AHEAD = CLAIMED_OF_SCHEDULE.index("taken_ahead")
_NOT_APART = [None] * 7
"""What stands in the columns from `extra` to `extra_waits` of most rows."""
DEFINITION = ("cron", "timezone", "delay_ms", "version")
"""What tells one definition from another: the version, and the rule, which somebody may have changed by hand."""
_POLICIES = {catch_up: Policy(catch_up) for catch_up in CATCH_UP}
"""The policies without bounds."""


def claimed_schedule(holder: str, max_data_size: int, row: Sequence[Any]) -> Claim:
    """Return a schedule that `holder` has just leased, read with the columns `CLAIMED_OF_SCHEDULE`.

    A row that is as psched writes most of them is read without looking at each column by itself.
    """
    schedule = _plain_schedule(holder, max_data_size, row)
    if schedule is None:
        values = {"status": RUNNING, "node": holder}
        schedule = read_schedule({**dict(zip(CLAIMED_OF_SCHEDULE, row, strict=True)), **values}, max_data_size)
    lease = Lease(row[0], row[2], row[3] / 1000, False, row[4], row[5])
    return Claim(schedule, lease, records_begin=row[_AHEAD] == AHEAD_AGAIN)


def _plain_schedule(holder: str, max_data_size: int, row: Sequence[Any]) -> ScheduleRow | None:
    """Return the schedule of a row that is as it should be, never paused nor run besides; None for any other."""
    key, _, fence, due, _, _, type_, data, attempts, error, cron, timezone, delay, time, last, *rest = row
    *apart, catch_up, lateness, alert, most, version, _, _ = rest
    texts = key.__class__ is type_.__class__ is data.__class__ is cron.__class__ is timezone.__class__ is str
    numbers = attempts.__class__ is delay.__class__ is time.__class__ is version.__class__ is int
    if not (texts and numbers and type_ and apart == _NOT_APART and catch_up in CATCH_UP):
        return None
    if "\0" in key or not key or fence.__class__ is not int:
        return None
    times = 0 <= time <= _LAST_MS and (last is None or (last.__class__ is int and 0 <= last <= _LAST_MS))
    bounds = lateness is alert is most is None and 0 <= delay <= _LAST_MS
    if not (times and bounds and error.__class__ in _ERRORS):
        return None
    try:
        content = decode(data, max_data_size)
    except (ValueError, RecursionError):
        return None
    return ScheduleRow(
        key,
        type_,
        content,
        RUNNING,
        attempts,
        error,
        holder,
        rule=Rule(cron, timezone, delay / 1000 if delay % 1000 else delay // 1000),
        next_time=time // 1000,
        next_run_time=due / 1000 if due % 1000 else due // 1000,
        settled=False,
        policy=_POLICIES[catch_up],
        previous=None if last is None else last // 1000,
        version=version,
    )


def read_schedule(row: Mapping[Any, Any], max_data_size: int = MAX_DATA_SIZE) -> ScheduleRow:
    """Return a stored schedule; what cannot be used of it is its `problem`."""
    fields = Fields(row, max_data_size)
    key = fields.key("key")
    fields.number("fence")
    status = fields.text("status")
    attempts = fields.number("attempts")
    return ScheduleRow(
        key=key,
        type=fields.text("type") or type_from_key(key),
        data=fields.json("data"),
        status=status,
        attempts=attempts,
        last_error=fields.optional_text("last_error"),
        node=fields.optional_text("node"),
        rule=read_rule(fields),
        next_time=int(fields.seconds("next_time", 1000)),
        next_run_time=fields.seconds("due", 1000),
        settled=status == WAITING and attempts == 0,
        policy=read_policy(fields),
        previous=optional_whole(fields, "last_time"),
        extra=optional_whole(fields, "extra"),
        regular_time=optional_whole(fields, "regular_time"),
        regular_run_time=fields.optional_seconds("regular_due", 1000),
        paused_from=fields.optional_seconds("paused_from", 1000),
        paused_until=fields.optional_seconds("paused_until", 1000),
        earlier_pauses=fields.spans("earlier_pauses", 1000),
        extra_waits=bool(fields.optional_number("extra_waits")),
        version=fields.number("version"),
        problem=fields.problem,
    )


def read_rule(fields: Fields) -> Rule:
    """Return the rule in a row."""
    return Rule(fields.text("cron"), fields.text("timezone"), fields.seconds("delay_ms", 1000))


def read_policy(fields: Fields) -> Policy:
    """Return the policy in a row."""
    return Policy(
        fields.one_of("catch_up", CATCH_UP),
        fields.optional_seconds("max_lateness_ms", 1000),
        fields.optional_seconds("alert_after_ms", 1000),
        fields.optional_number("max_attempts"),
    )


def optional_whole(fields: Fields, name: str) -> int | None:
    """Return an occurrence, in whole seconds, or None for NULL."""
    seconds = fields.optional_seconds(name, 1000)
    return None if seconds is None else int(seconds)


def rule_columns(rule: Rule) -> dict[str, Any]:
    """Return the columns of a rule."""
    return {"cron": rule.cron, "timezone": rule.timezone, "delay_ms": milliseconds(rule.delay)}


def definition_columns(row: ScheduleRow) -> dict[str, Any]:
    """Return the columns `DEFINITION`: what must be as it was seen for that to hold which was computed from it."""
    return {**rule_columns(row.rule), "version": row.version}


def policy_columns(policy: Policy) -> dict[str, Any]:
    """Return the columns of a policy."""
    return {
        "catch_up": policy.catch_up,
        "max_lateness_ms": optional_milliseconds(policy.max_lateness),
        "alert_after_ms": optional_milliseconds(policy.alert_after),
        "max_attempts": policy.max_attempts,
    }


def alert_at(row: ScheduleRow) -> int | None:
    """Return when the next regular occurrence is too late, in milliseconds; None for never."""
    if row.policy.alert_after is None or row.paused:
        return None
    return milliseconds(regular_time(row) + row.rule.delay + row.policy.alert_after)


def regular_time(row: ScheduleRow) -> int:
    """Return the next regular occurrence, be there an extra run before it or not."""
    return row.next_time if row.regular_time is None else row.regular_time


def settled_time(row: ScheduleRow, entry: Entry) -> int | None:
    """Return the regular occurrence that is the last one settled when `entry` is entered, in milliseconds."""
    if entry.extra:
        return optional_milliseconds(row.previous)
    return milliseconds(row.next_time if entry.last is None else entry.last)


def changed_columns(seen: ScheduleRow, wanted: ScheduleRow, max_data_size: int) -> dict[str, Any]:
    """Return what differs between the two, by column."""
    before, after = _columns(seen), _columns(wanted)
    changes = {name: value for name, value in after.items() if value != before[name]}
    if wanted.data != seen.data:
        text, size = pack(wanted.data, max_size=max_data_size)
        changes |= {"data": text, "size": size}
    if wanted.rule != seen.rule:
        changes |= rule_columns(wanted.rule)
    return changes


def entry_columns(row: ScheduleRow, entry: Entry) -> dict[str, Any]:
    """Return the columns of an entry that are known before it is made."""
    error = storable(row.last_error)
    went_wrong = entry.outcome == FAILED or (entry.outcome == SKIPPED and entry.detail != PAUSED)
    return {
        "outcome": entry.outcome,
        "detail": entry.detail,
        "last_time": optional_milliseconds(entry.last),
        "occurrences": entry.count,
        "extra": int(entry.extra),
        "previous": optional_milliseconds(row.previous),
        "attempts": row.attempts,
        "trouble": int(went_wrong or row.attempts > 1 or error is not None),
        "error": None if error is None else shortened(error, _LONGEST_ERROR),
    }


def optional_milliseconds(seconds: float | None) -> int | None:
    """Return seconds as the table keeps them."""
    return None if seconds is None else milliseconds(seconds)


def all_columns(row: ScheduleRow) -> dict[str, Any]:
    """Return the columns of what stands in `row`, all but its key and its data."""
    return _columns(row) | rule_columns(row.rule)


def pause_columns(row: ScheduleRow) -> dict[str, Any]:
    """Return the columns of its pauses."""
    return {
        "paused_from": optional_milliseconds(row.paused_from),
        "paused_until": optional_milliseconds(row.paused_until),
        "earlier_pauses": _spans(row.earlier_pauses),
        "extra_waits": 1 if row.extra_waits else None,
    }


def _spans(pauses: Sequence[tuple[float, float]]) -> str | None:
    return " ".join(f"{milliseconds(begin)}-{milliseconds(end)}" for begin, end in pauses) or None


def _columns(row: ScheduleRow) -> dict[str, Any]:
    return {
        "type": row.type,
        "next_time": milliseconds(row.next_time),
        "due": milliseconds(row.next_run_time),
        "last_time": optional_milliseconds(row.previous),
        "extra": optional_milliseconds(row.extra),
        "regular_time": optional_milliseconds(row.regular_time),
        "regular_due": optional_milliseconds(row.regular_run_time),
        "alert_at": alert_at(row),
        **pause_columns(row),
        **policy_columns(row.policy),
    }
