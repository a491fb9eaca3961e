"""Checks keys and owners. Makes keys that contain another key, such as the keys of backfills."""

from __future__ import annotations

import re

from psched.error_messages import InvalidValueError, shown

MAX_KEY_LENGTH = 255
SURROGATE = re.compile("[\ud800-\udfff]")
"""Matches half of a surrogate pair. No database and no JSON text can store it."""


def check_key(key: object, name: str = "key") -> str:
    """Return `key` if it is text of 1 to 255 characters. Raises ValueError otherwise, and for NUL and lone surrogates.

    `name`: the name of the value in the error message. Types and users have the same limits as keys.
    """
    if not isinstance(key, str) or not key:
        raise InvalidValueError(f"{name} must be non-empty text, got {shown(key)}")
    if len(key) > MAX_KEY_LENGTH:
        raise InvalidValueError(
            f"{name} has {len(key)} characters, at most {MAX_KEY_LENGTH} can be stored; shorten it: {key[:40]!r}…"
        )
    check_characters(name, key)
    return key


def check_characters(name: str, text: str) -> None:
    """Raise ValueError for a character that cannot be stored: NUL, or half of a surrogate pair."""
    if "\0" in text:
        raise InvalidValueError(f"{name} contains a character that cannot be stored, NUL; remove it: {shown(text)}")
    if not text.isascii() and (half := SURROGATE.search(text)):
        raise InvalidValueError(
            f"{name} contains a character that cannot be stored, U+{ord(half[0]):X}, which is half of a surrogate "
            f"pair; was it read from bytes that are not UTF-8? {shown(text)}"
        )


def check_owner(owner: object) -> str | None:
    """Return `owner` if it is None or text of 1 to 255 characters. Raises ValueError otherwise."""
    return None if owner is None else check_key(owner, "owner")


def type_from_key(key: str) -> str:
    """Return the part of `key` before the first dot. As in PerfectSched, this is the type of a row without a type."""
    return key.partition(".")[0]


BACKFILL_PREFIX = "backfill:"
"""The prefix of the keys of backfill rows. No schedule has a key with this prefix, except on `rdb_compat`."""


def backfill_key(schedule: str, number: int, part: int) -> str:
    """Return the key of one part of a schedule's backfill. `number`: of the backfill. Numbers and parts start at 1."""
    return f"{BACKFILL_PREFIX}{schedule}:{number}.{part}"


def is_backfill_key(key: str) -> bool:
    return key.startswith(BACKFILL_PREFIX)


def reserved_for_backfills(key: str, name: str = "key") -> InvalidValueError:
    """Return the error that a schedule has the key of a backfill. `name`: as for `check_key`."""
    return InvalidValueError(
        f"{name} begins with {BACKFILL_PREFIX!r}, which is reserved for backfills; choose another key, got {key!r}"
    )


def backfill_of(key: str) -> tuple[str, int]:
    """Return the schedule and the number of the backfill, given the key of a backfill's row."""
    schedule, _, part = key.removeprefix(BACKFILL_PREFIX).rpartition(":")
    number = part.partition(".")[0]
    return schedule, int(number) if number.isdecimal() else 0


def enqueued_key(key: str, time: int, extra: bool) -> str:
    """Return the key of the task that an occurrence of the schedule `key` submits.

    `extra`: whether this is an extra run.
    """
    return f"{key}@{time}{'.extra' if extra else ''}"
