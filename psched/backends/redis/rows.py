"""Converts the hashes of Redis into rows, and rows into arguments of scripts."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from psched.backends.common.row_reader import LAST_SECOND, RowReader
from psched.backends.common.rows import POLICY_COLUMNS, entry_columns
from psched.backends.redis.client import Argument, RedisServer
from psched.model import Claim, Lease, ScheduleRow, TaskRow
from psched.payload import MAX_DATA_SIZE, decode, is_compressed, type_from_key
from psched.store.ledger import Entry

_NUMBERS = frozenset(
    [
        *(
            "delay_ms",
            "next_time",
            "due",
            "ready",
            "fence",
            "claim",
            "nonce",
            "attempts",
            "taken_ahead",
            "crashes",
            "created",
            "updated",
        ),
        *(
            "version",
            "last_time",
            "extra",
            "regular_time",
            "regular_due",
            "alert_at",
            "alerted",
            "ringing_until",
        ),
        *("paused_from", "paused_until", "extra_waits"),
        *POLICY_COLUMNS[1:],
        *("size", "run_at", "max_running", "priority", "cancel_requested", "finished_at", "purge_at"),
    ]
)


T = TypeVar("T")

_BYTES_AT_ONCE = 4_000_000
"""Characters of data that one script writes; it blocks the server for about 50 ms."""


def parts(rows: Sequence[T], sizes: Sequence[int], most: int) -> Iterator[Sequence[T]]:
    """Yield new rows in parts for one script each: at most `most` rows, and about _BYTES_AT_ONCE of `sizes`."""
    first, total = 0, 0
    for place, size in enumerate(sizes):
        total += size
        if place > first and (place - first >= most or total > _BYTES_AT_ONCE):
            yield rows[first:place]
            first, total = place, size
    yield rows[first:]


def stored(key: str | bytes, found: Sequence[bytes]) -> dict[str, Any]:
    """Return a row from its key and the fields and values of its hash; a missing field is None."""
    row: dict[str, Any] = defaultdict(_nothing)
    for place in range(0, len(found), 2):
        name, is_number = _field(found[place])
        value = found[place + 1]
        row[name] = _number(value) if is_number else as_text(value)
    row["key"] = as_text(key) if isinstance(key, bytes) else key
    return row


def lease_of(row: Mapping[str, Any]) -> Lease:
    """Return the lease of a row that was just leased."""
    numbers = (_whole(row["claim"]), _whole(row["nonce"]))
    return Lease(row["key"], row["fence"], row["due"] / 1000, bool(row["cancel_requested"]), *numbers)


def common(fields: RowReader) -> dict[str, Any]:
    """Return the attributes that schedules and tasks share."""
    return {
        "data": fields.json("data"),
        "status": fields.text("status"),
        "attempts": fields.number("attempts"),
        "last_error": fields.optional_text("last_error"),
        "node": fields.optional_text("node"),
    }


def milliseconds(seconds: float) -> int:
    """Return unix seconds as milliseconds. Raises ValueError for a time after the year 9999."""
    if not abs(seconds) < 253_402_300_800:
        raise ValueError(f"{seconds!r} is no time that can be stored: the last year is 9999")
    return round(seconds * 1000)


def reader_of(name: str) -> Callable[[bytes], Any]:
    """Return the function that reads the value of a field."""
    return _number if name in _NUMBERS else as_text


def _whole(value: object) -> int:
    """Return `value`, 0 when it is no number."""
    return value if isinstance(value, int) else 0


def _nothing() -> None:
    return None


@lru_cache(maxsize=256)  # each row has the same few
def _field(stored_name: bytes) -> tuple[str, bool]:
    """Return a field's name, and whether it is a number."""
    name = stored_name.decode(errors="replace")
    return name, name in _NUMBERS


def _number(value: bytes) -> Any:
    try:
        return int(value)
    except ValueError:
        return as_text(value)


def as_text(value: bytes) -> str | bytes:
    """Return `value` decoded, or as it is when it is no UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value


def entry_words(row: ScheduleRow, entry: Entry, reckoning: str) -> list[str | int]:
    """Return an entry as scripts take it: whether there was trouble, and the members of a JSON object."""
    columns = entry_columns(row, entry) | {"reckoning": reckoning}
    known = {name: value for name, value in columns.items() if value is not None}
    return [known["trouble"], json.dumps(known, separators=(",", ":"))[1:-1]]


_CLAIMED = (
    *(b"type", b"data", b"attempts", b"last_error", b"cancel_requested", b"run_at", b"created", b"user"),
    *(b"max_running", b"priority", b"max_attempts", b"fence", b"due", b"claim", b"nonce", b"taken_ahead"),
)
"""CLAIM_FIELDS of queue_acquire.lua."""
AHEAD_AGAIN = b"2"
"""`taken_ahead` of a row whose last lease expired; see common.lua."""

_RUNNING = "running"
_LAST_MS = LAST_SECOND * 1000


def claimed_task(holder: str, max_data_size: int, key: bytes, values: Sequence[Any]) -> Claim:
    """Return a task that `holder` has just leased: its key, and the values of `_CLAIMED`.

    A valid row is read by a fast path, since this is done for every task.
    """
    try:
        claim = _plain_claim(holder, max_data_size, key.decode(), values)
    except (ValueError, TypeError, AttributeError, RecursionError):
        claim = None  # an invalid row is read value by value
    if claim is not None:
        return claim
    known = [word for word in zip(_CLAIMED, values, strict=True) if word[1] is not None]
    more = [(b"status", _RUNNING.encode()), (b"node", holder.encode())]
    row = stored(key, [word for pair in (*known, *more) for word in pair])
    return Claim(read_task(row, max_data_size), lease_of(row), records_begin=values[-1] == AHEAD_AGAIN)


def _plain_claim(holder: str, max_data_size: int, key: str, values: Sequence[Any]) -> Claim | None:
    """Return the claim on a valid row without compression. Raises, or returns None, for any other row."""
    type_, data, attempts, error, cancelled, run_at, created, user, limit, priority, most, *lease = values
    fence, due, number, nonce, ahead = lease
    text, start, made, end = data.decode(), int(run_at), int(created), int(due)
    if not (type_ and text[:1] == "{" and max(abs(start), abs(made)) <= _LAST_MS):
        return None
    cancel_requested = int(cancelled) != 0
    row = TaskRow(
        key,
        type_.decode(),
        decode(text, max_data_size),
        _RUNNING,
        start / 1000 if start % 1000 else start // 1000,
        end / 1000 if end % 1000 else end // 1000,
        int(attempts),
        None if error is None else error.decode(),
        holder,
        created_at=made / 1000 if made % 1000 else made // 1000,
        user=user.decode() or None,
        max_running=None if limit is None else int(limit),
        priority=int(priority),
        max_attempts=None if most is None else int(most),
        cancel_requested=cancel_requested,
    )
    leased = Lease(key, int(fence), end / 1000, cancel_requested, int(number), int(nonce))
    return Claim(row, leased, records_begin=ahead == AHEAD_AGAIN)


def read_task(row: Mapping[str, Any], max_data_size: int = MAX_DATA_SIZE) -> TaskRow:
    """Return a stored task; an invalid field becomes its `problem`."""
    fields = RowReader(row, max_data_size)
    key = fields.text("key")
    packed = row["data"]
    shared = common(fields)
    return TaskRow(
        key=key,
        type=fields.text("type") or type_from_key(key),
        run_at=fields.seconds("run_at", 1000),
        due=fields.optional_seconds("due", 1000),
        created_at=fields.optional_seconds("created", 1000),
        finished_at=fields.optional_seconds("finished_at", 1000),
        user=fields.text("user") or None,
        max_running=fields.limit("max_running"),
        priority=fields.number("priority"),
        max_attempts=fields.optional_number("max_attempts"),
        cancel_requested=bool(row["cancel_requested"]),
        compression="gzip" if isinstance(packed, str | bytes) and is_compressed(packed) else None,
        **shared,
        problem=fields.problem,
    )


class SubmitOnAdvance:
    """The tasks that one `advance` submits: their table, and the arguments of the script."""

    def __init__(self, server: RedisServer) -> None:
        """`server`: the server of the schedule."""
        self.server = server
        self.tables: list[str] = []
        self.arguments: list[Argument] = []

    def submit(self, table: str, arguments: Sequence[Argument]) -> None:
        """Set the table and the arguments of the submission. Raises ValueError on a second call."""
        if self.tables:
            raise ValueError("one occurrence becomes one submission; give all its tasks to one call")
        self.tables = [table]
        self.arguments = list(arguments)
