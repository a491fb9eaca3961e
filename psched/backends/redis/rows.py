"""Converts the hashes of Redis to rows, and rows to arguments of scripts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from psched.backends.common import rows
from psched.backends.common.rows import CLAIMED_OF_SCHEDULE, CLAIMED_OF_TASK, entry_columns, read_schedule
from psched.model import Claim, ScheduleRow
from psched.payload import MAX_DATA_SIZE
from psched.store.ledger import Entry

_TEXTS = frozenset(
    (
        *("type", "data", "status", "node", "holder", "last_error", "endings", "headers", "progress", "result"),
        *("cron", "timezone", "catch_up", "earlier_pauses", "user", "options", "owner"),
    )
)
"""The fields that hold text. All other fields hold numbers."""


def stored(key: str | bytes, found: Sequence[bytes]) -> dict[str, Any]:
    """Return a row from its key and the fields and values of its hash. A missing field is None."""
    row: dict[str, Any] = defaultdict(lambda: None)
    for place in range(0, len(found), 2):
        name, read = _field(found[place])
        row[name] = read(found[place + 1])
    row["key"] = _text(key) if isinstance(key, bytes) else key
    return row


@lru_cache(maxsize=256)  # all rows have the same few fields
def _field(stored_name: bytes) -> tuple[str, Callable[[bytes], Any]]:
    """Return the column of a field, and the function that reads its values."""
    name = stored_name.decode(errors="replace")
    return "user_name" if name == "user" else name, _text if name in _TEXTS else _number


def _number(value: bytes) -> Any:
    try:
        return int(value)
    except ValueError:
        return _text(value)


def _text(value: bytes) -> str | bytes:
    """Return `value` decoded, or unchanged if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def read_stored_schedule(row: dict[str, Any], max_data_size: int = MAX_DATA_SIZE) -> ScheduleRow:
    """Return a stored schedule. If a field is invalid, `problem` describes it.

    `catch_up` and `version` may be missing in a row that another program created.
    """
    catch_up = "all" if row["catch_up"] is None else row["catch_up"]
    version = row["version"] if isinstance(row["version"], int) else 0
    return read_schedule(row | {"catch_up": catch_up, "version": version}, max_data_size)


_OF_SCHEDULE = [_field(name.encode())[1] for name in CLAIMED_OF_SCHEDULE[1:]]
"""Functions that read the values of CLAIM_FIELDS of schedules.lua."""
_CATCH_UP = CLAIMED_OF_SCHEDULE.index("catch_up") - 1
_VERSION = CLAIMED_OF_SCHEDULE.index("version") - 1


def claimed_schedule(holder: str, max_data_size: int, key: bytes, values: Sequence[Any]) -> Claim:
    """Return the claim on a schedule that `holder` has just leased, from its key and the values of CLAIM_FIELDS."""
    row = [None if value is None else read(value) for read, value in zip(_OF_SCHEDULE, values, strict=True)]
    if row[_CATCH_UP] is None:
        row[_CATCH_UP] = "all"
    if not isinstance(row[_VERSION], int):
        row[_VERSION] = 0
    return rows.claimed_schedule(holder, max_data_size, (_text(key), *row))


_OF_TASK = (
    *(b"type", b"data", b"attempts", b"last_error", b"cancel_requested", b"run_at", b"created", b"user"),
    *(b"max_running", b"priority", b"max_attempts", b"headers", b"fence", b"due", b"claim", b"nonce", b"taken_ahead"),
)
"""The fields that claim_fields() of queue.lua returns."""


def claimed_task(holder: str, max_data_size: int, key: bytes, values: Sequence[Any]) -> Claim:
    """Return the claim on a task that `holder` has just leased, from its key and the values of `_OF_TASK`."""
    type_, data, attempts, error, cancelled, run_at, created, user, limit, priority, most, headers, *lease = values
    fence, due, number, nonce, ahead = lease
    row: Sequence[Any]
    try:  # For speed, a valid row is read without looking up each field. Every acquired task is read here.
        leased = key.decode(), None, int(fence), int(due), int(number), int(nonce)
        shared = type_.decode(), data.decode(), int(attempts), None if error is None else error.decode()
        task = int(cancelled), int(run_at), int(created), user.decode(), None if limit is None else int(limit)
        about = None if headers is None else headers.decode()
        row = leased + shared + task + (int(priority), None if most is None else int(most), about, None, int(ahead))
    except (ValueError, TypeError, AttributeError):
        known = stored(
            key, [word for pair in zip(_OF_TASK, values, strict=True) if pair[1] is not None for word in pair]
        )
        if not isinstance(known["nonce"], int):
            known["nonce"] = 0
        row = [known[name] for name in CLAIMED_OF_TASK]
    return rows.claimed_task(holder, max_data_size, row)


def entry_arguments(row: ScheduleRow, entry: Entry, reckoning: str) -> list[str | int]:
    """Return the two script arguments of a ledger entry.

    These are `had_trouble` as 1 or 0, and the columns of the entry as JSON without the outer braces.
    """
    columns = entry_columns(row, entry) | {"reckoning": reckoning}
    known = {name: value for name, value in columns.items() if value is not None}
    return [known["trouble"], json.dumps(known, separators=(",", ":"))[1:-1]]
