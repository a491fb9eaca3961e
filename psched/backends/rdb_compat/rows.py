"""Reads rows of PerfectSched and PerfectQueue, and makes the columns to write.

Times are whole seconds in 32 bits. The type of a row is a member of its data.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from psched.backends.common.rows import RowReader
from psched.backends.rdb_compat.ruby_cron_check import ruby_problem
from psched.backends.rdb_compat.schema import LONGEST_CRON, LONGEST_TIMEZONE
from psched.errors import NotSupportedError
from psched.keys import type_from_key
from psched.model import Rule, ScheduleRow, TaskRow
from psched.payload import MAX_DATA_SIZE, DataTooLargeError, check_stored, compress, decode, encode, is_compressed

_LAST = 2**31 - 1
_LAST_CHARACTER = 0xFFFF


def read_task(row: Mapping[Any, Any], max_data_size: int = MAX_DATA_SIZE) -> TaskRow:
    """Return a stored task. If a column is invalid, `problem` describes it.

    `row["now"]`: the clock in unix seconds. The table does not show whether a task is leased or waits. So every task
    that is due later is `running`, as in PerfectQueue. `run_at` is the time of submission. A finished task has neither
    `run_at` nor `due`.
    """
    fields = RowReader(row)
    key = fields.text("id")
    timeout, created = fields.seconds("timeout"), fields.optional_seconds("created_at")
    type_, data = _content(fields, row, key, max_data_size)
    waits = timeout <= row["now"]
    return TaskRow(
        key=key,
        type=type_,
        data=data,
        status="finished" if created is None else "waiting" if waits else "running",
        run_at=None if created is None else created or timeout,
        due=None if created is None else timeout,
        created_at=created or None,
        user=fields.optional_text("resource"),
        max_running=fields.optional_number("max_running"),
        cancel_requested=created == 0,
        compression="gzip" if is_compressed(_raw(row["data"])) else None,
        headers={},
        problem=fields.problem,
    )


def read_schedule(row: Mapping[Any, Any], max_data_size: int = MAX_DATA_SIZE) -> ScheduleRow:
    """Return a stored schedule. If a column is invalid, `problem` describes it.

    The table does not distinguish a lease from the wait for a retry: in both cases the status is `leased`.
    """
    fields = RowReader(row)
    key = fields.text("id")
    timezone = fields.optional_text("timezone")
    rule = Rule(fields.text("cron"), "UTC" if timezone is None else timezone, fields.seconds("delay"))
    next_time, timeout = int(fields.seconds("next_time")), fields.seconds("timeout")
    settled = timeout == next_time + rule.delay
    type_, data = _content(fields, row, key, max_data_size)
    return ScheduleRow(
        key=key,
        type=type_,
        data=data,
        status="waiting" if settled else "leased",
        rule=rule,
        next_time=next_time,
        next_run_time=timeout,
        settled=settled,
        problem=fields.problem,
    )


def data_column(
    type_: str, data: Mapping[str, Any], max_data_size: int = MAX_DATA_SIZE, compressed: bool = False
) -> bytes:
    """Return data in the form of the Ruby programs: compact JSON. Raises ValueError if the data is too large.

    If `data` has no member `type`, it is added at the end.
    """
    text = encode({**data, "type": type_}, max_data_size)
    stored = compress(text) if compressed else text.encode()
    check_stored(len(stored), compressed)
    return stored


def rule_columns(rule: Rule) -> dict[str, Any]:
    """Return the columns of a rule. Raises ValueError if the table cannot hold the rule."""
    if rule.delay != int(rule.delay):
        raise ValueError(f"delay must be whole seconds in this table, got {rule.delay!r}; round it, or use `type: rdb`")
    return {
        "cron": _fitting("cron", rule.cron, LONGEST_CRON),
        "timezone": _fitting("timezone", rule.timezone, LONGEST_TIMEZONE),
        "delay": whole_seconds("delay", rule.delay),
    }


def check_rule(key: str, rule: Rule) -> None:
    """Raise NotSupportedError for a rule that would stop Ruby workers, because they may share the table."""
    problem = ruby_problem(rule.cron, rule.timezone)
    if problem is not None:
        raise NotSupportedError(
            f"{key!r}: cron {rule.cron!r} would stop the Ruby workers that may share this table: {problem}; "
            "use `type: rdb` or `type: redis`"
        )


def check_text(name: str, text: str | None) -> None:
    """Raise NotSupportedError for a character of four bytes in UTF-8, because Ruby workers hang on such a text."""
    strange = next((character for character in text or "" if ord(character) > _LAST_CHARACTER), None)
    if strange is not None:
        raise NotSupportedError(
            f"{name} {text!r} would hang the Ruby workers that may share this table: U+{ord(strange):X} has four bytes "
            "in UTF-8, and Ruby workers read at most three; use `type: rdb` or `type: redis`"
        )


def whole_seconds(name: str, seconds: float) -> int:
    """Return seconds, rounded up. Raises ValueError if they do not fit into 32 bits."""
    if not abs(seconds) <= _LAST:
        raise ValueError(
            f"{name} {seconds!r} does not fit into the 32 bits of this table (times until 2038); use `type: rdb`"
        )
    return math.ceil(seconds)


def _fitting(name: str, text: str, longest: int) -> str:
    if len(text) > longest:
        raise ValueError(
            f"{name} has {len(text)} characters; this table holds at most {longest}; shorten it, or use `type: rdb`"
        )
    return text


def _raw(data: Any) -> str | bytes:
    return data if isinstance(data, str | bytes) else bytes(data)


def _content(fields: RowReader, row: Mapping[Any, Any], key: str, max_data_size: int) -> tuple[str, dict[str, Any]]:
    """Return type and data.

    Data that is not a JSON object counts as {}, as in the Ruby programs. If the data is too large, `problem` says so.
    """
    data: dict[str, Any] = {}
    try:
        data = decode(_raw(row["data"]), max_data_size)
    except DataTooLargeError as error:
        fields.problem = fields.problem or str(error)
    except (ValueError, TypeError, RecursionError):
        pass
    type_ = data.pop("type", None)
    return type_ if isinstance(type_, str) and type_ else type_from_key(key), data
