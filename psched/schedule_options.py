"""The options of a schedule: the fields of its rule and policy that have no database column of their own.

A row stores all options that differ from their defaults in one JSON object; most rows have no such option. `OPTIONS`
names all options. Each option has a check. It runs when a value is given and when a stored value is read.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields
from functools import lru_cache
from typing import Any, cast

from psched.calendar_check import checked_calendar
from psched.error_messages import InvalidValueError, did_you_mean, shown
from psched.keys import check_characters, check_key
from psched.model import OVERLAP, Backfill, Calendar, Policy, Rule
from psched.retry_wait import Backoff, check_attempts, check_wait
from psched.time_check import LAST_TIME, check_time

LONGEST_DESCRIPTION = 2000
MOST_TAGS = 50
LONGEST_SPREAD = 7 * 86400
LONGEST_TAG = 100


def _check_description(text: object) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str) or not text:
        raise InvalidValueError(f"description must be non-empty text, got {shown(text)}")
    if len(text) > LONGEST_DESCRIPTION:
        raise InvalidValueError(f"description has {len(text)} characters; expected at most {LONGEST_DESCRIPTION}")
    check_characters("description", text)
    return text


def _check_tags(tags: object) -> tuple[str, ...]:
    if tags is None:
        return ()
    if isinstance(tags, str) or not isinstance(tags, Sequence):
        raise InvalidValueError(f"tags must be a list of texts such as ['billing'], got {shown(tags)}")
    if len(tags) > MOST_TAGS:
        raise InvalidValueError(f"tags has {len(tags)} texts; expected at most {MOST_TAGS}")
    for tag in tags:
        if len(check_key(tag, "a tag")) > LONGEST_TAG:
            raise InvalidValueError(f"a tag has {len(tag)} characters; expected at most {LONGEST_TAG}: {tag[:40]!r}…")
    return tuple(dict.fromkeys(tags))


def _check_instant(name: str) -> Callable[[object], float | None]:
    def check(time: object) -> float | None:
        return None if time is None else _whole(check_time(name, time))

    return check


def _check_spread(seconds: object) -> float:
    if seconds is None:
        return 0
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_SPREAD:
        raise InvalidValueError(f"spread must be seconds from 0 to {LONGEST_SPREAD} (7 days), got {shown(seconds)}")
    return _whole(seconds)


def _check_max_runs(number: object) -> int | None:
    if number is not None:
        check_attempts("max_runs", number)
    return cast("int | None", number)


def _check_overlap(word: object) -> str:
    if not isinstance(word, str) or word not in OVERLAP:
        raise InvalidValueError(f"overlap must be {' or '.join(OVERLAP)}, got {shown(word)}")
    return word


def _check_pause_after(number: object) -> int | None:
    if number is not None:
        check_attempts("pause_after", number)
    return cast("int | None", number)


def _check_retry_wait(wait: object) -> float | Backoff | None:
    if wait is None or isinstance(wait, Backoff):
        return wait
    if isinstance(wait, Mapping):
        try:
            return Backoff.of(wait)
        except ValueError as error:
            raise InvalidValueError(f"retry_wait: {error}") from None
    check_wait("retry_wait", wait)
    return _whole(cast("float", wait))


def _check_timeout(seconds: object) -> float | None:
    if seconds is None:
        return None
    check_wait("timeout", seconds)
    if seconds == 0:
        raise InvalidValueError("timeout must be more than 0 seconds; with None, the timeout of the type applies")
    return _whole(cast("float", seconds))


def _check_on_failure(name: object) -> str | None:
    return None if name is None else check_key(name, "on_failure")


MOST_CALENDARS = 10
"""The maximum number of calendars that one schedule can exclude."""


def _check_exclude(calendars: object) -> tuple[Calendar, ...]:
    """Accept calendars, or the JSON values that `_plain` returns for calendars."""
    if calendars is None:
        return ()
    if isinstance(calendars, str) or not isinstance(calendars, Sequence):
        raise InvalidValueError(f"exclude must be a list of calendars, got {shown(calendars)}")
    if len(calendars) > MOST_CALENDARS:
        raise InvalidValueError(f"exclude names {len(calendars)} calendars; expected at most {MOST_CALENDARS}")
    return tuple(each if isinstance(each, Calendar) else _read_calendar(each) for each in calendars)


def _read_calendar(stored: object) -> Calendar:
    match stored:
        case [str(name), int(version), [*days]]:
            return checked_calendar(name, version, days)
    raise ValueError(f"exclude has {shown(stored)}; expected a name, a version and a list of days")


def _check_backfill(stored: object) -> Backfill:
    """Accept a backfill, or the JSON value that `_plain` returns for a backfill."""
    if isinstance(stored, Backfill):
        return stored
    match stored:
        case {"schedule": str(schedule), "spans": [*spans], "reverse": bool(reverse), "cancelled": bool(cancelled)}:
            return Backfill(schedule, tuple(map(_read_span, spans)), reverse, cancelled)
    raise ValueError(f"backfill has {shown(stored)}; expected an object with schedule, spans, reverse and cancelled")


def _read_span(stored: object) -> tuple[int, int]:
    match stored:
        case [int(first), int(last)] if 0 <= first <= last < LAST_TIME:
            return first, last
    raise ValueError(f"backfill has the span {shown(stored)}; expected two times, the earlier one first")


def _plain(value: object) -> object:
    if isinstance(value, Backoff | Backfill):
        return asdict(value)
    if not isinstance(value, Calendar):
        raise TypeError(f"{value!r} is not valid JSON")
    return [value.name, value.version, [*value.dates, *value.weekdays]]


def _whole(number: float) -> float:
    """Return whole numbers as integers, so that equal options have the same JSON."""
    return int(number) if number == int(number) else number


OPTIONS: Mapping[str, Callable[[object], Any]] = {
    "description": _check_description,
    "tags": _check_tags,
    "start": _check_instant("start"),
    "end": _check_instant("end"),
    "spread": _check_spread,
    "max_runs": _check_max_runs,
    "exclude": _check_exclude,
    "backfill": _check_backfill,
    "overlap": _check_overlap,
    "pause_after": _check_pause_after,
    "retry_wait": _check_retry_wait,
    "timeout": _check_timeout,
    "on_failure": _check_on_failure,
}
"""The check of each option: it returns the value in the form that the rule or policy uses, or raises ValueError."""

_DEFAULTS = {field.name: field.default for owner in (Rule, Policy) for field in fields(owner)}
_OF_RULE = frozenset(field.name for field in fields(Rule))


def encode_options(rule: Rule, policy: Policy) -> str | None:
    """Return, as JSON, the options that differ from their defaults; None if all options have their defaults.

    Equal options have equal JSON.
    """
    values = {name: getattr(rule if name in _OF_RULE else policy, name) for name in OPTIONS}
    given = {name: value for name, value in values.items() if value != _DEFAULTS[name]}
    return json.dumps(given, separators=(",", ":"), sort_keys=True, default=_plain) if given else None


@lru_cache(maxsize=1024)
def decode_options(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the stored options: those of the rule, and those of the policy. Raises ValueError.

    The result is cached, so the caller must not change it.
    """
    stored = json.loads(text)
    if not isinstance(stored, dict):
        raise ValueError(f"expected a JSON object, got {shown(stored)}")
    of_rule, of_policy = dict[str, Any](), dict[str, Any]()
    for name, value in stored.items():
        if name not in OPTIONS:
            raise ValueError(f"unknown option {name!r}{did_you_mean(name, OPTIONS)}")
        (of_rule if name in _OF_RULE else of_policy)[name] = OPTIONS[name](value)
    return of_rule, of_policy
