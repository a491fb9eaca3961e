"""Reading queue tasks on Redis: as they are stored, and as they were just leased. Used in children and clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psched.backends.redis.fields import common, lease_of, stored
from psched.backends.sql.fields import LAST_SECOND, Fields
from psched.model import Claim, Lease, TaskRow
from psched.payload import MAX_DATA_SIZE, decode, is_compressed, type_from_key

_CLAIMED = (
    *(b"type", b"data", b"attempts", b"last_error", b"cancel_requested", b"run_at", b"created", b"user"),
    *(b"max_running", b"priority", b"max_attempts", b"fence", b"due", b"claim", b"nonce", b"taken_ahead"),
)
"""What acquire.lua tells of a row, in this order."""
AHEAD_AGAIN = b"2"
"""`taken_ahead` of a row whose last lease ended by itself; see rows.lua."""

_RUNNING = "running"
_LAST_MS = LAST_SECOND * 1000


def claimed_task(holder: str, max_data_size: int, key: bytes, values: Sequence[Any]) -> Claim:
    """Return a task that `holder` has just leased: its key, and the values of `_CLAIMED`.

    A row that is as psched writes it is read without looking at each value by itself: this is done for every task.
    """
    try:
        claim = _plain_claim(holder, max_data_size, key.decode(), values)
    except (ValueError, TypeError, AttributeError, RecursionError):
        claim = None  # somebody has spoilt it: what it is worth is found out value by value
    if claim is not None:
        return claim
    told = [word for word in zip(_CLAIMED, values, strict=True) if word[1] is not None]
    more = [(b"status", _RUNNING.encode()), (b"node", holder.encode())]
    row = stored(key, [word for pair in (*told, *more) for word in pair])
    return Claim(read_task(row, max_data_size), lease_of(row), records_begin=values[-1] == AHEAD_AGAIN)


def _plain_claim(holder: str, max_data_size: int, key: str, values: Sequence[Any]) -> Claim | None:
    """Return the claim on a row that is as it should be, and not compressed. Raises or returns None for any other."""
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
    """Return a stored task; what cannot be used of it is its `problem`."""
    fields = Fields(row, max_data_size)
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
