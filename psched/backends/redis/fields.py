"""Rows of Redis as mappings of text and numbers, for whom bytes are no use. Used in children and clients."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, TypeVar

from psched.backends.sql.fields import Fields
from psched.model import Lease

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
            "max_lateness_ms",
            "alert_after_ms",
            "alert_at",
            "alerted",
            "ringing_until",
        ),
        *("paused_from", "paused_until", "extra_waits"),
        *("size", "run_at", "max_running", "priority", "max_attempts", "cancel_requested", "finished_at", "purge_at"),
    ]
)


T = TypeVar("T")

_BYTES_AT_ONCE = 4_000_000
"""Characters of data that one script writes: some 50 ms in which the server does nothing else."""


def parts(rows: Sequence[T], sizes: Sequence[int], most: int) -> Iterator[Sequence[T]]:
    """Yield new rows, whose data has these sizes, in parts of at most `most` that one script writes in a moment."""
    first, total = 0, 0
    for place, size in enumerate(sizes):
        total += size
        if place > first and (place - first >= most or total > _BYTES_AT_ONCE):
            yield rows[first:place]
            first, total = place, size
    yield rows[first:]


def stored(key: str | bytes, found: Sequence[bytes]) -> dict[str, Any]:
    """Return a row from its key and the fields and values of its hash; what is not there is None."""
    row: dict[str, Any] = defaultdict(_nothing)
    for place in range(0, len(found), 2):
        name, is_number = _field(found[place])
        value = found[place + 1]
        row[name] = _number(value) if is_number else as_text(value)
    row["key"] = as_text(key) if isinstance(key, bytes) else key
    return row


def lease_of(row: Mapping[str, Any]) -> Lease:
    """Return the lease that stands in a row that was just leased."""
    numbers = (_whole(row["claim"]), _whole(row["nonce"]))
    return Lease(row["key"], row["fence"], row["due"] / 1000, bool(row["cancel_requested"]), *numbers)


def common(fields: Fields) -> dict[str, Any]:
    """Return what schedules and tasks have in common."""
    return {
        "data": fields.json("data"),
        "status": fields.text("status"),
        "attempts": fields.number("attempts"),
        "last_error": fields.optional_text("last_error"),
        "node": fields.optional_text("node"),
    }


def milliseconds(seconds: float) -> int:
    """Return unix seconds as they are kept. Raises ValueError for what is no time of this calendar."""
    if not abs(seconds) < 253_402_300_800:
        raise ValueError(f"{seconds!r} is no time that can be stored: the last year is 9999")
    return round(seconds * 1000)


def reader_of(name: str) -> Callable[[bytes], Any]:
    """Return what reads the value of a field."""
    return _number if name in _NUMBERS else as_text


def _whole(value: object) -> int:
    """Return a number, 0 for what somebody has put in its place."""
    return value if isinstance(value, int) else 0


def _nothing() -> None:
    return None


@lru_cache(maxsize=256)  # there are few, and each row has them
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
    """Return a text, or what somebody has put in its place."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
