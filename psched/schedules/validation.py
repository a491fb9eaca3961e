"""Checks of the values that callers give, and the rows of new schedules."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import fields
from datetime import date
from functools import cache, lru_cache
from operator import attrgetter
from typing import TypedDict

from psched import cron
from psched.backoff import check_attempts, check_wait
from psched.error_text import shown
from psched.errors import ConfigError, NotSupportedError
from psched.model import CATCH_UP, NewSchedule, Policy, Rule, ScheduleRow
from psched.payload import MAX_KEY_LENGTH, check_key, enqueued_key, object_of
from psched.schedules.transitions import NEVER, first_match
from psched.store import ScheduleStore

ENQUEUED = re.compile(r"^enqueue(\.|\Z)")
"""The types of schedules that submit tasks (`psched.handlers.enqueue`)."""
LAST_TIME = 253_402_300_800
"""Unix seconds at the end of the year 9999."""
LONGEST_DELAY = 366 * 86400
"""Seconds by which a run may come before or after its occurrence."""
MOST_AHEAD = 1000
"""Occurrences that a negative delay may make due together before their times."""
_REFERENCE = 1_704_067_200
"""The start of 2024, from where occurrences that a negative delay brings forward are counted."""
_DEFAULT_POLICY = Policy()
_terms_of = attrgetter(*(field.name for field in fields(Policy)))
_DEFAULT_TERMS = _terms_of(_DEFAULT_POLICY)


class Terms(TypedDict, total=False):
    """The fields of `Policy` as keyword arguments. None means no bound."""

    catch_up: str
    max_lateness: float | None
    alert_after: float | None
    max_attempts: int | None


def new_rows(
    schedules: Iterable[NewSchedule], store: ScheduleStore, default_timezone: str, dialect: str
) -> list[ScheduleRow]:
    """Return the rows of new schedules; all that begin now begin at the same second.

    Raises ConfigError, ValueError, NotSupportedError.
    """
    now = cache(store.now)

    @lru_cache(maxsize=None, typed=True)
    def rule_and_first(cron: str, timezone: str, delay: float, next_time: int | None) -> tuple[Rule, int]:
        rule = checked_rule(Rule(cron, timezone, delay), dialect)
        return rule, first_match(rule, now() if next_time is None else next_time, dialect)

    rows = []
    for new in schedules:
        if not isinstance(new, NewSchedule):
            raise ValueError(f"schedules must be of psched.NewSchedule, got {shown(new)}")
        terms = _terms_of(new)
        policy = _DEFAULT_POLICY if terms == _DEFAULT_TERMS else checked_policy(Policy(*terms))
        if policy is not _DEFAULT_POLICY and not store.keeps_policies:
            raise NotSupportedError(f"{new.key!r}: this store knows no policies; type: rdb and redis do")
        for name, time in (("next_time", new.next_time), ("next_run_time", new.next_run_time)):
            if time is not None:
                check_time(name, time)
        timezone = default_timezone if new.timezone is None else new.timezone
        check_texts(new.cron, timezone)
        check_delay(new.delay)
        rule, first = rule_and_first(new.cron, timezone, new.delay, new.next_time)
        check_enqueued_key(check_key(new.key), check_key(new.type, "type"))
        due = first + rule.delay if new.next_run_time is None else new.next_run_time
        data = object_of(new.data)
        rows.append(
            ScheduleRow(
                new.key, new.type, data, "waiting", rule=rule, next_time=first, next_run_time=due, policy=policy
            )
        )
    return rows


def checked_policy(policy: Policy) -> Policy:
    """Return `policy`. Raises ValueError for an invalid value."""
    if policy.catch_up not in CATCH_UP:
        raise ValueError(f"catch_up must be {' or '.join(CATCH_UP)}, got {shown(policy.catch_up)}")
    if policy.max_attempts is not None:
        check_attempts("max_attempts", policy.max_attempts)
    for name in ("max_lateness", "alert_after"):
        value = getattr(policy, name)
        if value is not None:
            check_wait(name, value)
    return policy


def checked_rule(rule: Rule, dialect: str) -> Rule:
    """Return `rule`. Raises ConfigError for its cron or time zone, ValueError for its delay."""
    check_texts(rule.cron, rule.timezone)
    cron.validate(rule.cron, rule.timezone, dialect)
    check_delay(rule.delay)
    if rule.delay < 0:
        _check_ahead(rule, dialect)
    return rule


def check_distinct(keys: Sequence[str], what: str) -> None:
    """Raise ValueError if a key occurs twice. `what`: the rows in the message."""
    if len(set(keys)) < len(keys):
        [(twice, _)] = Counter(keys).most_common(1)
        raise ValueError(f"the key {twice!r} is given twice; each {what} needs one of its own")


def check_texts(cron: object, timezone: object) -> None:
    """Raise ConfigError unless a cron expression and a time zone are text."""
    if not isinstance(cron, str):
        raise ConfigError(f"cron must be text like '0 * * * *', got {shown(cron)}")
    if not isinstance(timezone, str):
        raise ConfigError(f"timezone must be text like 'Europe/Berlin', got {shown(timezone)}")


def _check_ahead(rule: Rule, dialect: str) -> None:
    """Raise ValueError for a negative delay that makes too many occurrences due before their times."""
    first = first_match(rule, _REFERENCE, dialect)
    ahead = cron.count(rule.cron, first, first + math.ceil(-rule.delay), rule.timezone, dialect)
    if ahead > MOST_AHEAD:
        raise ValueError(
            f"delay {rule.delay:g} would run {ahead} occurrences of cron {rule.cron!r} at once, ahead of their times; "
            f"at most {MOST_AHEAD} may be, so give a delay closer to 0, or an expression with fewer occurrences"
        )


def check_enqueued_key(key: str, type: str) -> None:
    """Raise ValueError if a schedule that submits tasks has a key too long for the tasks' keys, `<key>@<time>`."""
    longest = MAX_KEY_LENGTH - len(enqueued_key("", int(NEVER), extra=True))
    if ENQUEUED.match(type) and len(key) > longest:
        raise ValueError(
            f"key has {len(key)} characters, but a schedule of the type {type[:40]!r} submits tasks whose keys are the "
            f"schedule's followed by @ and the time; at most {longest} leave room for that, so shorten it"
        )


def check_time(name: str, time: object) -> None:
    """Raise ValueError unless `time` is unix seconds of the years 1970 to 9999."""
    if isinstance(time, bool) or not isinstance(time, int | float) or not 0 <= time < LAST_TIME:
        hint = "; of a datetime with a zone write int(when.timestamp())" if isinstance(time, date) else ""
        raise ValueError(
            f"{name} must be unix seconds, a number from 0 to {LAST_TIME - 1} (the years 1970 to 9999), "
            f"got {shown(time)}{hint}"
        )


def check_delay(delay: object) -> None:
    """Raise ValueError unless `delay` is a number of seconds of at most 366 days, forwards or backwards."""
    if isinstance(delay, bool) or not isinstance(delay, int | float) or not abs(delay) <= LONGEST_DELAY:
        raise ValueError(
            f"delay must be a number of seconds from -{LONGEST_DELAY} to {LONGEST_DELAY} (366 days), got {shown(delay)}"
        )
