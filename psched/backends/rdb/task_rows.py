"""Reading queue tasks of `rdb`: as they are stored, and as they were just leased. Used in children and clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from psched.backends.rdb.tables import AHEAD_AGAIN, CLAIMED_OF_TASK, RUNNING
from psched.backends.sql.fields import LAST_SECOND, Fields
from psched.model import Claim, Lease, TaskRow
from psched.payload import MAX_DATA_SIZE, decode, is_compressed, type_from_key

_CANCELLED = CLAIMED_OF_TASK.index("cancel_requested")
_AHEAD = CLAIMED_OF_TASK.index("taken_ahead")
_LAST_MS = LAST_SECOND * 1000
_LIMITS = {int, type(None)}
_ERRORS = {str, type(None)}
"""What limits and errors are of."""


def claimed_task(holder: str, max_data_size: int, row: Sequence[Any]) -> Claim:
    """Return a task that `holder` has just leased, read with the columns `CLAIMED_OF_TASK`.

    A row that is as psched writes it is read without looking at each column by itself: this is done for every task.
    """
    lease = Lease(row[0], row[2], row[3] / 1000, bool(row[_CANCELLED]), row[4], row[5])
    task = _plain_task(holder, max_data_size, row)
    if task is None:
        values = {"status": RUNNING, "node": holder, "finished_at": None}
        task = read_task({**dict(zip(CLAIMED_OF_TASK, row, strict=True)), **values}, max_data_size)
    return Claim(task, lease, records_begin=row[_AHEAD] == AHEAD_AGAIN)


def _plain_task(holder: str, max_data_size: int, row: Sequence[Any]) -> TaskRow | None:
    """Return the task of a row that is as it should be, and not compressed; None for any other."""
    key, _, fence, due, _, _, type_, data, attempts, error, *rest = row
    cancelled, run_at, created, user, most_running, priority, most, _, _ = rest
    texts = key.__class__ is type_.__class__ is data.__class__ is user.__class__ is str
    numbers = attempts.__class__ is run_at.__class__ is created.__class__ is priority.__class__ is int
    if not (texts and numbers and type_ and data[:1] == "{" and -_LAST_MS <= run_at <= _LAST_MS):
        return None
    if "\0" in key or not key or fence.__class__ is not int:
        return None
    optional = most.__class__ in _LIMITS and most_running.__class__ in _LIMITS and error.__class__ in _ERRORS
    if not (optional and -_LAST_MS <= created <= _LAST_MS) or (most_running is not None and most_running < 1):
        return None
    try:
        content = decode(data, max_data_size)
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
    )


def read_task(row: Mapping[Any, Any], max_data_size: int = MAX_DATA_SIZE) -> TaskRow:
    """Return a stored task; what cannot be used of it is its `problem`."""
    fields = Fields(row, max_data_size)
    key = fields.key("key")
    stored = row["data"]
    fields.number("fence")
    return TaskRow(
        key=key,
        type=fields.text("type") or type_from_key(key),
        data=fields.json("data"),
        status=fields.text("status"),
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
        problem=fields.problem,
    )
