"""Checks of the values that callers give for schedules."""

from __future__ import annotations

import json
import logging
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any, TypedDict, TypeVar

from psched import cron
from psched.calendar_check import checked_calendar
from psched.error_messages import InvalidValueError, did_you_mean, shown
from psched.errors import ConfigError, NotSupportedError
from psched.keys import MAX_KEY_LENGTH, check_key, check_owner, enqueued_key
from psched.model import (
    CATCH_UP,
    NEVER,
    NO_OCCURRENCE,
    Calendar,
    CatchUp,
    Instant,
    NewSchedule,
    Overlap,
    Policy,
    Rule,
)
from psched.retry_wait import Backoff, check_attempts, check_wait
from psched.schedule_options import OPTIONS
from psched.schedules import rule_occurrences
from psched.store import ScheduleStore
from psched.store.calendars import Calendars, StoredCalendar
from psched.time_check import check_time
from psched.time_text import local_time

log = logging.getLogger(__name__)

ENQUEUED = re.compile(r"^enqueue(\.|\Z)")
"""The types of schedules that submit tasks (`psched.handlers.enqueue`)."""
LONGEST_DELAY = 366 * 86400
"""The maximum number of seconds from an occurrence to its run, in either direction. A spread may add to it."""
MOST_AHEAD = 1000
"""The maximum number of occurrences that a negative delay may make due before their times. They are counted from
`_REFERENCE` on.
"""
_REFERENCE = 1_704_067_200  # the start of 2024
T = TypeVar("T", Rule, Policy)
TERMS = tuple(field.name for field in fields(Policy))
_OPTIONS = tuple(name for name in TERMS if name in OPTIONS)
RULE_OPTIONS = tuple(field.name for field in fields(Rule) if field.name in OPTIONS and field.name != "backfill")
"""The options of a rule that a caller may give."""
_DEFAULTS = {field.name: field.default for field in fields(Rule)}
_default = partial(getattr, Policy())


class OccurrenceTerms(TypedDict, total=False):
    """The options of a schedule, except options for runs, such as `timeout`. None means no limit or no text."""

    catch_up: CatchUp
    max_lateness: float | None
    alert_after: float | None
    owner: str | None
    description: str | None
    tags: Sequence[str] | None
    start: Instant | None
    end: Instant | None
    spread: float | None
    max_runs: int | None
    exclude: Sequence[str] | None


class Terms(OccurrenceTerms, total=False):
    """The fields of `Policy` and `RULE_OPTIONS`, as keyword arguments. None means no limit or no text."""

    max_attempts: int | None
    overlap: Overlap
    pause_after: int | None
    retry_wait: float | Mapping[str, float] | Backoff | None
    timeout: float | None
    on_failure: str | None


def named_calendars(store: ScheduleStore, names: object) -> tuple[Calendar, ...]:
    """Return the calendars with these names, as they are stored now.

    Raises ValueError and NotSupportedError, and ConfigError for an unknown name.
    """
    if names is None:
        return ()
    if isinstance(names, str) or not isinstance(names, Sequence):
        raise InvalidValueError(
            f"exclude must be a list of names of calendars, such as ['holidays'], got {shown(names)}"
        )
    if store.calendars is None:
        raise NotSupportedError("this store keeps no calendars; use `type: rdb` or `type: redis`")
    found = []
    for name in dict.fromkeys(check_key(name, "the name of a calendar") for name in names):
        stored = store.calendars.get(name)
        if stored is None or stored.content is None:
            raise ConfigError(f"exclude: {no_calendar(store.calendars, name)}")
        found.append(named_calendar(stored))
    return tuple(found)


def no_calendar(calendars: Calendars, name: str) -> str:
    """Return the message that there is no calendar of this name."""
    known = [each.name for each in calendars.all() if each.content is not None]
    hint = did_you_mean(name, known) or (f"; known are {', '.join(known)}" if known else "")
    return f"there is no calendar {name!r} (create it with `psched calendar set`){hint}"


def named_calendar(stored: StoredCalendar) -> Calendar:
    """Return a stored calendar that is not deleted. Raises ValueError for content that another program wrote."""
    return checked_calendar(stored.name, stored.version, json.loads(stored.content or "[]"))


def without_policies(key: str, names: Collection[str]) -> NotSupportedError:
    """Return the error for a schedule that has policies, although its store does not support policies."""
    return NotSupportedError(f"{key!r}: this store keeps no {', '.join(names)}; use `type: rdb` or `type: redis`")


def checked_policy(policy: Policy) -> Policy:
    """Return `policy` with its options in stored form. Raises ValueError for an invalid value."""
    if policy.catch_up not in CATCH_UP:
        raise InvalidValueError(f"catch_up must be {' or '.join(CATCH_UP)}, got {shown(policy.catch_up)}")
    if policy.max_attempts is not None:
        check_attempts("max_attempts", policy.max_attempts)
    for name in ("max_lateness", "alert_after"):
        value = getattr(policy, name)
        if value is not None:
            check_wait(name, value)
    check_owner(policy.owner)
    policy = _in_milliseconds(policy, "max_lateness", "alert_after")
    given = {name: getattr(policy, name) for name in _OPTIONS if getattr(policy, name) != _default(name)}
    return replace(policy, **{name: OPTIONS[name](value) for name, value in given.items()}) if given else policy


def given_rule_options(values: NewSchedule | Rule) -> dict[str, Any]:
    """Return those of `RULE_OPTIONS` that differ from their defaults."""
    return {name: value for name in RULE_OPTIONS if (value := getattr(values, name)) != _DEFAULTS[name]}


def checked_rule(rule: Rule, dialect: cron.CronDialect) -> Rule:
    """Return `rule` with its options in stored form.

    Raises ConfigError for its cron or time zone, ValueError for its delay or an option.
    """
    for name, value, example in (("cron", rule.cron, "0 * * * *"), ("timezone", rule.timezone, "Europe/Berlin")):
        given: object = value
        if not isinstance(given, str):
            raise ConfigError(f"{name} must be text like {example!r}, got {shown(given)}")
    given = given_rule_options(rule)
    if given:
        rule = replace(rule, **{name: OPTIONS[name](value) for name, value in given.items()})
    if rule.start is not None and rule.end is not None and rule.start > rule.end:
        raise InvalidValueError(
            f"end {local_time(rule.end)} is before start {local_time(rule.start)}; give a later end"
        )
    rule_occurrences.validate(rule, dialect)
    check_delay(rule.delay)
    if rule.delay < 0:
        _check_ahead(rule, dialect)
    return _in_milliseconds(rule, "delay")


def _in_milliseconds(values: T, *names: str) -> T:
    """Return a rule or a policy with its seconds rounded to milliseconds, as tables store them."""
    rounded: dict[str, Any] = {}
    for name in names:
        value = getattr(values, name)
        if isinstance(value, float) and round(value, 3) != value:
            rounded[name] = round(value, 3)
    return replace(values, **rounded) if rounded else values


@lru_cache(4096)
def warn_of_step(expression: str, dialect: str) -> None:
    """Warn, once for each cron expression, if a step in the expression is excessive."""
    warning = cron.excessive_step(expression, dialect)
    if warning is not None:
        log.warning(warning)


def check_distinct(keys: Sequence[str], what: str) -> None:
    """Raise ValueError if a key occurs twice. `what`: what the message calls the rows."""
    if len(set(keys)) < len(keys):
        [(twice, _)] = Counter(keys).most_common(1)
        raise InvalidValueError(f"the key {twice!r} is given twice; each {what} needs its own key")


def _check_ahead(rule: Rule, dialect: cron.CronDialect) -> None:
    """Raise ValueError if a negative delay makes too many occurrences due before their times."""
    first = rule_occurrences.first_time(rule, _REFERENCE, dialect)
    ahead = rule_occurrences.count(rule, first, first + math.ceil(-rule.delay), dialect)
    if ahead > MOST_AHEAD:
        raise InvalidValueError(
            f"delay {rule.delay:g} makes {ahead} occurrences of cron {rule.cron!r} due together, before their times; "
            f"expected at most {MOST_AHEAD}; give a delay closer to 0, or an expression with fewer occurrences"
        )


def check_enqueued_key(key: str, type: str) -> None:
    """Raise ValueError if the key of a schedule that submits tasks is too long.

    The keys of the tasks contain the key of the schedule (`enqueued_key`).
    """
    longest = MAX_KEY_LENGTH - len(enqueued_key("", int(NEVER), extra=True))
    if ENQUEUED.match(type) and len(key) > longest:
        raise InvalidValueError(
            f"key has {len(key)} characters; expected at most {longest}, as a schedule of type {type[:40]!r} submits "
            "tasks with the key '<key>@<time>'; shorten the key"
        )


def check_times(**times: object) -> None:
    """Call `check_time` for each of `times` that is not None. Raises ValueError."""
    for name, time in times.items():
        if time is not None:
            check_time(name, time)


def check_has_occurrence(time: int, next_run_time: float | None) -> None:
    """Raise ValueError if a run time is given for a schedule that has ended, and so has no occurrence."""
    if time == NO_OCCURRENCE and next_run_time is not None:
        raise InvalidValueError("next_run_time is given, but the rule has no further occurrence; leave it out")


def check_delay(delay: object) -> None:
    """Raise ValueError if `delay` is not a number of seconds, is above 366 days, or is below -366 days."""
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not abs(delay) <= LONGEST_DELAY:
        raise InvalidValueError(
            f"delay must be a number of seconds from -{LONGEST_DELAY} to {LONGEST_DELAY} (366 days), got {shown(delay)}"
        )
