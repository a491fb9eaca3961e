"""The keys of rows: which text can be one, and the keys that are made of another, such as those of backfills."""

from __future__ import annotations

import re

from psched.error_messages import shown

MAX_KEY_LENGTH = 255
SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which no database and no JSON text holds."""


def check_key(key: object, name: str = "key") -> str:
    """Return `key`. Raises ValueError unless it is text of 1 to 255 characters without NUL and lone surrogates.

    `name`: of the value, for the error. Types and users have the same limits as keys.
    """
    if not isinstance(key, str) or not key:
        raise ValueError(f"{name} must be non-empty text, got {shown(key)}")
    if len(key) > MAX_KEY_LENGTH:
        raise ValueError(
            f"{name} has {len(key)} characters, at most {MAX_KEY_LENGTH} can be stored; shorten it: {key[:40]!r}…"
        )
    check_characters(name, key)
    return key


def check_characters(name: str, text: str) -> None:
    """Raise ValueError for a character that no database and no JSON text holds: NUL, or half of a surrogate pair."""
    if "\0" in text:
        raise ValueError(f"{name} holds a character that cannot be stored, NUL; leave it out: {shown(text)}")
    if not text.isascii() and (half := SURROGATE.search(text)):
        raise ValueError(
            f"{name} holds a character that cannot be stored, U+{ord(half[0]):X}, which is half of a surrogate pair; "
            f"was it read from bytes that are not UTF-8? {shown(text)}"
        )


def type_from_key(key: str) -> str:
    """Return the type of a row that names none: its key up to the first dot (as in PerfectSched)."""
    return key.partition(".")[0]


BACKFILL_PREFIX = "backfill:"
"""The keys of the rows of backfills begin so, and no key of a schedule does (except on `rdb_compat`)."""


def backfill_key(schedule: str, number: int, lane: int) -> str:
    """Return the key of the row of one lane of a backfill; both are counted from 1."""
    return f"{BACKFILL_PREFIX}{schedule}:{number}.{lane}"


def is_backfill_key(key: str) -> bool:
    """Return whether this is the key of a row of a backfill."""
    return key.startswith(BACKFILL_PREFIX)


def backfill_of(key: str) -> tuple[str, int]:
    """Return the schedule and the number of the backfill with this key of a row."""
    schedule, _, lane = key.removeprefix(BACKFILL_PREFIX).rpartition(":")
    number = lane.partition(".")[0]
    return schedule, int(number) if number.isdecimal() else 0


def enqueued_key(key: str, time: int, extra: bool) -> str:
    """Return the key of the task submitted for an occurrence; an `extra` run has a key of its own."""
    return f"{key}@{time}{'.extra' if extra else ''}"
