"""Converts stored rows to the model, and the model to columns."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Any, Final, TypeVar, cast

from psched.keys import type_from_key
from psched.model import (
    CATCH_UP,
    NEVER,
    SCHEDULE_STATUSES,
    TASK_STATUSES,
    Claim,
    Lease,
    Policy,
    Progress,
    Rule,
    ScheduleRow,
    TaskOutcome,
    TaskRow,
    spread_offset,
)
from psched.payload import MAX_DATA_SIZE, decode, decode_value, is_compressed, pack
from psched.quick_replace import quick_replace
from psched.schedule_options import decode_options, encode_options
from psched.store.alert_store import Overdue, UnreportedFailure
from psched.store.counts import RuleUse
from psched.store.ledger import ACTIONS, OUTCOMES, Change, Definition, DefinitionTimes, Entry, KeptOutput, LedgerRow
from psched.stored_error_summary import shortened

LAST_SECOND = 253_402_300_799
"""Unix seconds at the end of the year 9999."""
BATCH = 500
"""The maximum number of rows that one statement or script extends, settles, reads, or acquires for several threads."""
LAST_ERROR_LENGTH = 8000
"""The maximum number of characters of an error in the row of a schedule or task."""
_LEDGER_ERROR_LENGTH = 2000
"""The maximum number of characters of an error in the ledger. The schedule's row keeps a longer text."""

_LEASED = ("key", "ready", "fence", "due", "claim", "nonce")
_SHARED = ("type", "data", "attempts", "last_error")
POLICY_COLUMNS = ("catch_up", "max_lateness_ms", "alert_after_ms", "max_attempts")
"""Columns of the first fields of a `Policy`, in the order of the fields. All columns but the first hold numbers."""
OPTION_COLUMNS = ("options", "owner")
"""Text columns: the options of `psched.schedule_options` as JSON, and the owner."""
CLAIMED_OF_TASK = (
    *_LEASED,
    *_SHARED,
    *("cancel_requested", "run_at", "created", "user_name", "max_running", "priority", "max_attempts", "headers"),
    *("size", "taken_ahead"),
)
CLAIMED_OF_SCHEDULE = (
    *_LEASED,
    *_SHARED,
    *("cron", "timezone", "delay_ms", "next_time", "last_time", "extra", "regular_time", "regular_due"),
    *("paused_from", "paused_until", "earlier_pauses", "extra_waits", "runs"),
    *("failures", "previous_ended"),
    *POLICY_COLUMNS,
    *OPTION_COLUMNS,
    *("version", "size"),
    "taken_ahead",
)
"""The columns that an acquire reads from a schedule, in this order."""
AHEAD = 1
"""Value of `taken_ahead` for a prefetched row. Its run is not recorded as started."""
AHEAD_AGAIN = 2
"""Value of `taken_ahead` for a prefetched row whose previous lease expired. The start of its run is recorded before the
handler is called."""
EXPIRED = 3
"""Value of `taken_ahead` for a waiting row whose last lease expired."""
WAITING: Final = "waiting"
RUNNING: Final = "running"
TASK_FINISHED: Final = "finished"
TASK_FAILED: Final = "failed"
TASK_CANCELLED: Final = "cancelled"

Word = TypeVar("Word", bound=str)

_LAST_MS = LAST_SECOND * 1000
_TEXT_OR_NONE = {str, type(None)}
_SCHEDULE_AHEAD = CLAIMED_OF_SCHEDULE.index("taken_ahead")
_NOT_APART = [None] * 10
"""The values of the columns from `extra` to `previous_ended` in a usual row; see `_usual_schedule`."""
DEFINITION = ("cron", "timezone", "delay_ms", "version")
"""The columns that identify the definition of a schedule. The version alone does not, because people may change a rule
by hand."""
_SPANS = re.compile(r"[0-9]{1,15}-[0-9]{1,15}( [0-9]{1,15}-[0-9]{1,15})*")


class UndecodableText(bytes):
    """Stored text of SQLite that is not UTF-8. It is unequal to a BLOB of the same bytes."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UndecodableText) and super().__eq__(other)

    __hash__ = bytes.__hash__


def text_or_bytes(stored: bytes) -> str | bytes:
    """Return a stored text, or its bytes if they are not UTF-8.

    The driver's own decoder would raise an error, and so one such text would make the whole answer fail. This function
    is as fast as that decoder (3.2 against 4.0 microseconds for a row of five texts, 2026-11-22).
    """
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return UndecodableText(stored)


class RowReader:
    """Reads the columns of one row and checks them. `problem` describes the first invalid column."""

    def __init__(self, row: Mapping[Any, Any], max_data_size: int = MAX_DATA_SIZE) -> None:
        """`max_data_size`: the maximum number of bytes of data as JSON."""
        self._row = row
        self._max_data_size = max_data_size
        self.problem: str | None = None

    def text(self, name: str) -> str:
        value = self._row[name]
        if isinstance(value, str):
            return value
        self._complain(name, "text", value)
        return value.decode(errors="replace") if isinstance(value, bytes) else str(value)

    def key(self, name: str) -> str:
        """Return the key in a column. If it is empty or contains NUL, `problem` names the column."""
        value = self.text(name)
        if not value or "\0" in value:
            self._complain(name, "text that is not empty and has no NUL", value)
        return value

    def optional_text(self, name: str) -> str | None:
        return None if self._row[name] is None else self.text(name)

    def one_of(self, name: str, words: Collection[Word]) -> Word:
        """Return the stored text. If it is not one of `words`, `problem` names the column."""
        value = self.text(name)
        if value not in words:
            self._complain(name, " or ".join(words), value)
        return cast("Word", value)

    def number(self, name: str) -> int:
        """Return the integer in a column; 0 if the column holds anything else."""
        value = self._row[name]
        if isinstance(value, int):
            return value
        self._complain(name, "an integer", value)
        return 0

    def optional_number(self, name: str) -> int | None:
        return None if self._row[name] is None else self.number(name)

    def limit(self, name: str) -> int | None:
        """Return the limit in a column; None for NULL and for a limit below 1."""
        value = self.optional_number(name)
        if value is None or value >= 1:
            return value
        self._complain(name, "a whole number, 1 or more", value)
        return None

    def seconds(self, name: str, per_second: int = 1) -> float:
        """Return a stored time in seconds; 0 for a time after the year 9999.

        `per_second`: how many stored units a second has (1000 for milliseconds).
        """
        units = self.number(name)
        seconds = units // per_second if units % per_second == 0 else units / per_second
        if abs(seconds) <= LAST_SECOND:
            return seconds
        self._complain(name, "a time before the year 10000", self._row[name])
        return 0

    def optional_seconds(self, name: str, per_second: int = 1) -> float | None:
        """Return a time in seconds as `seconds` does, or None for NULL."""
        return None if self._row[name] is None else self.seconds(name, per_second)

    def spans(self, name: str, per_second: int = 1) -> tuple[tuple[float, float], ...]:
        """Return the spans in a column, `<from>-<until> …`, as pairs of seconds; () for NULL.

        `per_second`: see `seconds`.
        """
        text = self.optional_text(name)
        if text is None:
            return ()
        if not _SPANS.fullmatch(text):
            self._complain(name, "spans like 10-20 30-40", text)
            return ()
        times = [int(time) / per_second for time in re.split("[- ]", text)]
        if max(times) > LAST_SECOND:
            self._complain(name, "spans before the year 10000", text)
            return ()
        return tuple(zip(times[::2], times[1::2], strict=True))

    def json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a column. For anything else, return {} and set `problem`."""
        try:
            return decode(self.text(name), self._max_data_size)
        except (ValueError, RecursionError) as error:
            self._complain(name, f"a JSON object ({error})", self._row[name])
            return {}

    def json_value(self, name: str) -> Any:
        """Return the JSON value in a column; None for NULL. For invalid JSON, return None and set `problem`."""
        text = self.optional_text(name)
        try:
            return None if text is None else decode_value(text)
        except (ValueError, RecursionError) as error:
            self._complain(name, f"JSON ({error})", text)
            return None

    def optional_json(self, name: str) -> dict[str, Any]:
        """Return the JSON object in a column; {} for NULL. For anything else, return {} and set `problem`."""
        return {} if self._row[name] is None else self.json(name)

    def options(self, name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of the rule and the options of the policy, as `psched.schedule_options` encodes them."""
        text = self.optional_text(name)
        try:
            return ({}, {}) if text is None else decode_options(text)
        except (ValueError, RecursionError) as error:
            self._complain(name, f"options of a schedule as JSON ({error})", text)
            return {}, {}

    def _complain(self, name: str, expected: str, found: object) -> None:
        if self.problem is None:
            self.problem = f"column {name} should hold {expected}, found {str(found)[:60]!r}"


def claimed_schedule(holder: str, max_data_size: int, row: Sequence[Any]) -> Claim:
    """Return a schedule that `holder` has just leased. `row`: the values of the columns `CLAIMED_OF_SCHEDULE`."""
    schedule = _usual_schedule(RUNNING, holder, max_data_size, (row[0], *row[2:4], *row[6:-2]))
    if schedule is None:
        values = {"status": RUNNING, "node": holder}
        schedule = _any_schedule({**dict(zip(CLAIMED_OF_SCHEDULE, row, strict=True)), **values}, max_data_size)
    lease = Lease(row[0], row[2], row[3] / 1000, False, row[4], row[5])
    return Claim(schedule, lease, records_begin=row[_SCHEDULE_AHEAD] == AHEAD_AGAIN)


def read_schedule(row: Mapping[Any, Any], max_data_size: int = MAX_DATA_SIZE) -> ScheduleRow:
    """Return a stored schedule. If a column is invalid, `problem` describes it."""
    schedule = _usual_schedule(row["status"], row["node"], max_data_size, _usual_values(row))
    return _any_schedule(row, max_data_size) if schedule is None else schedule


def _usual_schedule(status: Any, node: Any, max_data_size: int, values: Sequence[Any]) -> ScheduleRow | None:
    """Return the schedule of a usual row, or None for any other row. `values`: the values of the columns `_USUAL`.

    A usual row is valid, was never paused, has no extra run, and its rule has no options. One pass checks it in less
    than half the time (12 instead of 27 µs, 2026-11-29). Any other row is read column by column, so that `problem`
    names the column.
    """
    key, fence, due, type_, data, attempts, error, cron, timezone, delay, time, last, *rest = values
    *apart, catch_up, lateness, alert, most, options, owner, version = rest
    texts = key.__class__ is type_.__class__ is data.__class__ is cron.__class__ is timezone.__class__ is str
    numbers = attempts.__class__ is delay.__class__ is time.__class__ is due.__class__ is version.__class__ is int
    if not (texts and numbers and type_ and apart == _NOT_APART and status in SCHEDULE_STATUSES):
        return None
    if "\0" in key or not key or fence.__class__ is not int or node.__class__ not in _TEXT_OR_NONE:
        return None
    times = 0 <= time <= _LAST_MS and 0 <= due <= _LAST_MS and 0 <= delay <= _LAST_MS
    if not (times and (last is None or (last.__class__ is int and 0 <= last <= _LAST_MS))):
        return None
    if not (error.__class__ in _TEXT_OR_NONE and owner.__class__ in _TEXT_OR_NONE):
        return None
    policy = _usual_policy(catch_up, lateness, alert, most, owner, options)
    if policy is None:
        return None
    try:
        content = decode(data, max_data_size)
    except (ValueError, RecursionError):
        return None
    return quick_replace(
        _BLANK,
        key=key,
        type=type_,
        data=content,
        status=status,
        attempts=attempts,
        last_error=error,
        node=node,
        rule=_usual_rule(cron, timezone, delay),
        next_time=time // 1000,
        next_run_time=due / 1000 if due % 1000 else due // 1000,
        settled=status == WAITING and attempts == 0,
        policy=policy,
        previous=None if last is None else last // 1000,
        version=version,
    )


_USUAL = (CLAIMED_OF_SCHEDULE[0], *CLAIMED_OF_SCHEDULE[2:4], *CLAIMED_OF_SCHEDULE[6:-2])
_usual_values = itemgetter(*_USUAL)
_BLANK = ScheduleRow("", "", {}, WAITING, rule=Rule("", ""), next_time=0, next_run_time=0)


@lru_cache(maxsize=4096)
def _usual_rule(cron: str, timezone: str, delay_ms: int) -> Rule:
    return Rule(cron, timezone, delay_ms / 1000 if delay_ms % 1000 else delay_ms // 1000)


@lru_cache(maxsize=1024, typed=True)
def _usual_policy(
    catch_up: object, lateness_ms: object, alert_ms: object, most: object, owner: str | None, options: object
) -> Policy | None:
    """Return the policy of a row; None if a value is not valid, or if the rule has options."""
    values = (catch_up, lateness_ms, alert_ms, most, options, owner)
    fields = RowReader(dict(zip((*POLICY_COLUMNS, *OPTION_COLUMNS), values, strict=True)))
    of_rule, of_policy = fields.options("options")
    policy = read_policy(fields, of_policy)
    return None if of_rule or fields.problem else policy


def _any_schedule(row: Mapping[Any, Any], max_data_size: int) -> ScheduleRow:
    fields = RowReader(row, max_data_size)
    key = fields.key("key")
    fields.number("fence")
    status = fields.one_of("status", SCHEDULE_STATUSES)
    attempts = fields.number("attempts")
    of_rule, of_policy = fields.options("options")
    return ScheduleRow(
        key=key,
        type=fields.text("type") or type_from_key(key),
        data=fields.json("data"),
        status=status,
        attempts=attempts,
        last_error=fields.optional_text("last_error"),
        node=fields.optional_text("node"),
        rule=read_rule(fields, of_rule),
        next_time=int(fields.seconds("next_time", 1000)),
        next_run_time=fields.seconds("due", 1000),
        settled=status == WAITING and attempts == 0,
        policy=read_policy(fields, of_policy),
        previous=optional_whole(fields, "last_time"),
        extra=optional_whole(fields, "extra"),
        regular_time=optional_whole(fields, "regular_time"),
        regular_run_time=fields.optional_seconds("regular_due", 1000),
        paused_from=fields.optional_seconds("paused_from", 1000),
        paused_until=fields.optional_seconds("paused_until", 1000),
        earlier_pauses=fields.spans("earlier_pauses", 1000),
        extra_waits=bool(fields.optional_number("extra_waits")),
        runs=fields.optional_number("runs"),
        failures=fields.optional_number("failures"),
        previous_ended=fields.optional_seconds("previous_ended", 1000),
        version=fields.number("version"),
        problem=fields.problem,
    )


def read_rule(fields: RowReader, options: Mapping[str, Any]) -> Rule:
    """Return the rule of a row. `options`: the rule's options, from `RowReader.options`.

    The column `delay_ms` includes the spread of the key; the delay of the rule does not.
    """
    delay = fields.seconds("delay_ms", 1000)
    if "spread" in options:
        delay = round(delay - spread_offset(fields.text("key"), options["spread"]) / 1000, 3)
    return Rule(fields.text("cron"), fields.text("timezone"), delay, **options)


def read_rule_use(row: Mapping[Any, Any], count: int) -> RuleUse:
    """Return a RuleUse of a rule that `count` schedules have.

    `row`: the rule and options, with the key and the type of one of the schedules.
    """
    fields = RowReader(row)
    of_rule, of_policy = fields.options("options")
    policy = {name: of_policy[name] for name in ("overlap", "on_failure") if name in of_policy}
    return RuleUse(read_rule(fields, of_rule), row["type"], count, row["key"], **policy)


def read_policy(fields: RowReader, options: Mapping[str, Any]) -> Policy:
    """Return the policy of a row. `options`: the policy's options, from `RowReader.options`."""
    return Policy(
        fields.one_of("catch_up", CATCH_UP),
        fields.optional_seconds("max_lateness_ms", 1000),
        fields.optional_seconds("alert_after_ms", 1000),
        fields.optional_number("max_attempts"),
        owner=fields.optional_text("owner"),
        **options,
    )


def optional_whole(fields: RowReader, name: str) -> int | None:
    """Return an occurrence in whole seconds, or None for NULL."""
    seconds = fields.optional_seconds(name, 1000)
    return None if seconds is None else int(seconds)


def with_tag(rows: Iterator[ScheduleRow], tag: str | None) -> Iterator[ScheduleRow]:
    return rows if tag is None else (row for row in rows if tag in row.policy.tags)


def rule_columns(key: str, rule: Rule) -> dict[str, Any]:
    """Return the columns of a rule.

    `delay_ms` includes the spread of `key`, because statements compute due times from this column.
    """
    delay = milliseconds(rule.delay)
    if rule.spread:
        delay += spread_offset(key, rule.spread)
    return {"cron": rule.cron, "timezone": rule.timezone, "delay_ms": delay}


def definition_columns(row: ScheduleRow) -> dict[str, Any]:
    """Return the columns `DEFINITION`.

    A time computed from these columns is valid only while the columns are unchanged.
    """
    return {**rule_columns(row.key, row.rule), "version": row.version}


def policy_columns(policy: Policy) -> dict[str, Any]:
    return {
        "catch_up": policy.catch_up,
        "max_lateness_ms": optional_milliseconds(policy.max_lateness),
        "alert_after_ms": optional_milliseconds(policy.alert_after),
        "max_attempts": policy.max_attempts,
    }


@lru_cache(maxsize=1024)
def _columns_of_options(rule: Rule, policy: Policy) -> Mapping[str, Any]:
    """Return the columns of the policy and of the options. Equal arguments give the same object."""
    return {**policy_columns(policy), "options": encode_options(rule, policy), "owner": policy.owner}


def alert_at(row: ScheduleRow) -> int | None:
    """Return when the next regular occurrence becomes overdue, in unix milliseconds, or None for never."""
    time = regular_time(row)
    if row.policy.alert_after is None or row.paused or time >= NEVER:
        return None
    return milliseconds(time + row.delay + row.policy.alert_after)


def regular_time(row: ScheduleRow) -> int:
    """Return the next regular occurrence. Ignores a pending extra run."""
    return row.next_time if row.regular_time is None else row.regular_time


def settled_time(row: ScheduleRow, entry: Entry) -> int | None:
    """Return the last regular occurrence that is settled after `entry` is written, in unix milliseconds."""
    if entry.extra:
        return optional_milliseconds(row.previous)
    return milliseconds(row.next_time if entry.last is None else entry.last)


def changed_columns(seen: ScheduleRow, wanted: ScheduleRow, max_data_size: int) -> dict[str, Any]:
    """Return the columns whose values differ between the rows `seen` and `wanted`."""
    before, after = all_columns(seen), all_columns(wanted)
    changes = {name: value for name, value in after.items() if value != before[name]}
    if wanted.data != seen.data:
        text, size = pack(wanted.data, max_size=max_data_size)
        changes |= {"data": text, "size": size}
    return changes


def entry_columns(row: ScheduleRow, entry: Entry) -> dict[str, Any]:
    """Return the columns of a ledger entry, except those that `ledger_columns` adds."""
    error = storable(row.last_error)
    return {
        "outcome": entry.outcome,
        "detail": entry.detail,
        "last_time": optional_milliseconds(entry.last),
        "occurrences": entry.count,
        "extra": int(entry.extra),
        "previous": optional_milliseconds(row.previous),
        "attempts": row.attempts,
        "trouble": int(entry.went_wrong or row.attempts > 1 or error is not None),
        "error": None if error is None else shortened(error, _LEDGER_ERROR_LENGTH),
    }


def ledger_columns(row: ScheduleRow, entry: Entry, reckoning: str) -> dict[str, Any]:
    """Return the columns of a ledger entry, without those that the settling statement computes."""
    return {
        **entry_columns(row, entry),
        "key": row.key,
        "scheduled_time": milliseconds(row.next_time),
        "started": optional_milliseconds(entry.started),
        "reckoning": reckoning,
    }


def optional_milliseconds(seconds: float | None) -> int | None:
    """Convert seconds to milliseconds, the unit of tables. Returns None for None."""
    return None if seconds is None else milliseconds(seconds)


def _spans(pauses: Sequence[tuple[float, float]]) -> str | None:
    return " ".join(f"{milliseconds(begin)}-{milliseconds(end)}" for begin, end in pauses) or None


def all_columns(row: ScheduleRow) -> dict[str, Any]:
    """Return all columns of `row` except key and data."""
    return {
        "type": row.type,
        **rule_columns(row.key, row.rule),
        "next_time": milliseconds(row.next_time),
        "due": milliseconds(row.next_run_time),
        "last_time": optional_milliseconds(row.previous),
        "extra": optional_milliseconds(row.extra),
        "regular_time": optional_milliseconds(row.regular_time),
        "regular_due": optional_milliseconds(row.regular_run_time),
        "alert_at": alert_at(row),
        "paused_from": optional_milliseconds(row.paused_from),
        "paused_until": optional_milliseconds(row.paused_until),
        "earlier_pauses": _spans(row.earlier_pauses),
        "extra_waits": 1 if row.extra_waits else None,
        "runs": row.runs,
        "failures": row.failures,
        "previous_ended": optional_milliseconds(row.previous_ended),
        **_columns_of_options(row.rule, row.policy),
    }


_CANCELLED = CLAIMED_OF_TASK.index("cancel_requested")
_TASK_AHEAD = CLAIMED_OF_TASK.index("taken_ahead")
_LIMITS = {int, type(None)}
"""The types that the value of a limit may have."""


def claimed_task(holder: str, max_data_size: int, row: Sequence[Any]) -> Claim:
    """Return a task that `holder` has just leased. `row`: the values of the columns `CLAIMED_OF_TASK`.

    A valid row whose data is not compressed is checked in one pass, which takes half as long (7 instead of 12 µs,
    2026-11-29). Any other row is read column by column.
    """
    lease = Lease(row[0], row[2], row[3] / 1000, bool(row[_CANCELLED]), row[4], row[5])
    task = _plain_task(holder, max_data_size, row)
    if task is None:
        values = {"status": RUNNING, "node": holder, "finished_at": None, "progress": None, "result": None}
        task = read_task({**dict(zip(CLAIMED_OF_TASK, row, strict=True)), **values}, max_data_size)
    return Claim(task, lease, records_begin=row[_TASK_AHEAD] == AHEAD_AGAIN)


def _plain_task(holder: str, max_data_size: int, row: Sequence[Any]) -> TaskRow | None:
    """Return the task of a valid row whose data is not compressed; None for any other row."""
    key, _, fence, due, _, _, type_, data, attempts, error, *rest = row
    cancelled, run_at, created, user, most_running, priority, most, headers, _, _ = rest
    texts = key.__class__ is type_.__class__ is data.__class__ is user.__class__ is str
    numbers = attempts.__class__ is run_at.__class__ is created.__class__ is priority.__class__ is int
    if not (texts and numbers and type_ and data[:1] == "{" and -_LAST_MS <= run_at <= _LAST_MS):
        return None
    if "\0" in key or not key or fence.__class__ is not int:
        return None
    optional = most.__class__ in _LIMITS and most_running.__class__ in _LIMITS and error.__class__ in _TEXT_OR_NONE
    optional = optional and headers.__class__ in _TEXT_OR_NONE
    if not (optional and -_LAST_MS <= created <= _LAST_MS) or (most_running is not None and most_running < 1):
        return None
    try:
        content = decode(data, max_data_size)
        about = {} if headers is None else decode(headers, max_data_size)
    except (ValueError, RecursionError):
        return None
    return TaskRow(
        key,
        type_,
        content,
        RUNNING,
        run_at / 1000 if run_at % 1000 else run_at // 1000,
        due / 1000 if due % 1000 else due // 1000,
        attempts,
        error,
        holder,
        created_at=created / 1000 if created % 1000 else created // 1000,
        user=user or None,
        max_running=most_running,
        priority=priority,
        max_attempts=most,
        cancel_requested=bool(cancelled),
        headers=about,
    )


def read_task(row: Mapping[Any, Any], max_data_size: int = MAX_DATA_SIZE) -> TaskRow:
    """Return a stored task. If a column is invalid, `problem` describes it."""
    fields = RowReader(row, max_data_size)
    key = fields.key("key")
    stored = row["data"]
    fields.number("fence")
    return TaskRow(
        key=key,
        type=fields.text("type") or type_from_key(key),
        data=fields.json("data"),
        status=fields.one_of("status", TASK_STATUSES),
        attempts=fields.number("attempts"),
        last_error=fields.optional_text("last_error"),
        node=fields.optional_text("node"),
        run_at=fields.seconds("run_at", 1000),
        due=fields.optional_seconds("due", 1000),
        created_at=fields.optional_seconds("created", 1000),
        finished_at=fields.optional_seconds("finished_at", 1000),
        user=fields.text("user_name") or None,
        max_running=fields.limit("max_running"),
        priority=fields.number("priority"),
        max_attempts=fields.optional_number("max_attempts"),
        cancel_requested=bool(row["cancel_requested"]),
        compression="gzip" if isinstance(stored, str | bytes) and is_compressed(stored) else None,
        headers=fields.optional_json("headers"),
        progress=read_progress(fields),
        result=fields.json_value("result"),
        has_result=row["result"] is not None,
        problem=fields.problem,
    )


def read_progress(fields: RowReader) -> Progress | None:
    found = fields.optional_json("progress")
    if not found:
        return None
    return Progress(found.get("done", 0), found.get("total"), found.get("message"), found.get("attempt", 1))


def read_outcome(row: Mapping[Any, Any]) -> TaskOutcome:
    fields = RowReader(row)
    return TaskOutcome(
        status=fields.one_of("status", TASK_STATUSES),
        type=fields.text("type"),
        error=fields.optional_text("last_error"),
        result=fields.optional_text("result"),
    )


def milliseconds(seconds: float) -> int:
    """Convert unix seconds to whole milliseconds, the unit of tables.

    Raises ValueError for a time that cannot be stored.
    """
    if not abs(seconds) < LAST_SECOND + 1:
        raise ValueError(f"{seconds!r} is too large: tables store times up to the year 9999")
    return round(seconds * 1000)


def storable(error: str | None) -> str | None:
    """Return `error` without characters that PostgreSQL refuses. A long text keeps only its beginning and its end."""
    if error is None:
        return None
    return stored_text(shortened(error, LAST_ERROR_LENGTH))


def stored_text(text: str) -> str:
    """Return `text` without characters that PostgreSQL refuses."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode(errors="replace").decode()


def read_ledger_row(row: Mapping[Any, Any]) -> LedgerRow:
    fields = RowReader(row)
    return LedgerRow(
        key=fields.text("key"),
        scheduled_time=int(fields.seconds("scheduled_time", 1000)),
        fence=fields.number("fence"),
        version=fields.number("version"),
        outcome=fields.one_of("outcome", OUTCOMES),
        detail=fields.optional_text("detail"),
        last=optional_whole(fields, "last_time"),
        count=None if row["occurrences"] is None else fields.number("occurrences"),
        extra=fields.number("extra") == 1,
        previous=optional_whole(fields, "previous"),
        attempts=fields.number("attempts"),
        node=fields.optional_text("node"),
        started=fields.optional_seconds("started", 1000),
        ended=fields.seconds("ended", 1000),
        error=fields.optional_text("error"),
        reckoning=fields.text("reckoning"),
    )


def read_output(row: Mapping[Any, Any]) -> KeptOutput:
    fields = RowReader(row)
    return KeptOutput(
        text=fields.text("output"),
        result=fields.text("result"),
        failed=fields.number("failed") == 1,
        key=fields.text("key"),
        scheduled_time=int(fields.seconds("scheduled_time", 1000)),
        attempt=fields.number("attempt"),
        ended=fields.seconds("ended", 1000),
    )


def read_event_facts(text: str | bytes) -> Mapping[str, Any]:
    """Return the JSON object that the outbox stores; {} for anything else."""
    try:
        facts = json.loads(text)
    except (ValueError, TypeError, RecursionError):
        return {}
    return facts if isinstance(facts, dict) else {}


def read_change(row: Mapping[Any, Any]) -> Change:
    fields = RowReader(row)
    of_rule, of_policy = fields.options("options")
    return Change(
        key=fields.text("key"),
        version=fields.number("version"),
        at=fields.seconds("changed", 1000),
        action=fields.one_of("action", ACTIONS),
        node=fields.optional_text("node"),
        type=fields.text("type"),
        rule=read_rule(fields, of_rule),
        policy=read_policy(fields, of_policy),
        pending=optional_whole(fields, "pending"),
        first=int(fields.seconds("first_time", 1000)),
        due=fields.seconds("due", 1000),
        reckoning=fields.optional_text("reckoning"),
        paused_from=fields.optional_seconds("paused_from", 1000),
        paused_until=fields.optional_seconds("paused_until", 1000),
        data=fields.optional_text("data"),
    )


RUN_TIMES: Final = ("key", "version", "delay_ms", "first_time", "due", "options")
"""Columns that `read_run_times` reads. The column `delay_ms` includes the spread."""


def read_run_times(row: Mapping[Any, Any]) -> tuple[Definition, DefinitionTimes]:
    fields = RowReader(row)
    times = DefinitionTimes(
        fields.seconds("delay_ms", 1000),
        int(fields.seconds("first_time", 1000)),
        fields.seconds("due", 1000),
        "backfill" in fields.options("options")[0],
    )
    return Definition(fields.text("key"), fields.number("version")), times


def read_overdue(row: Mapping[Any, Any]) -> Overdue:
    """Return the overdue occurrence of a schedule. `row` also needs a column `now`, the database's time."""
    fields = RowReader(row)
    time = fields.seconds("next_time", 1000)
    return Overdue(
        key=fields.text("key"),
        type=fields.text("type"),
        scheduled_time=int(time),
        seconds=fields.seconds("now", 1000) - time - fields.seconds("delay_ms", 1000),
        status=fields.one_of("status", SCHEDULE_STATUSES),
        attempts=fields.number("attempts"),
        node=fields.optional_text("node"),
        last_error=fields.optional_text("last_error"),
    )


def read_failure(row: Mapping[Any, Any]) -> UnreportedFailure:
    fields = RowReader(row)
    return UnreportedFailure(
        key=fields.text("key"),
        type=fields.text("type"),
        scheduled_time=int(fields.seconds("scheduled_time", 1000)),
        fence=fields.number("fence"),
        attempts=fields.number("attempts"),
        error=fields.optional_text("error"),
        node=fields.text("node"),
        failed_at=fields.seconds("failed", 1000),
    )
