"""The occurrences of a rule. Whatever asks when a schedule is due asks here. Times are unix seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator

from psched import cron
from psched.cron import CronDialect
from psched.cron.occurrences import next_match
from psched.model import NO_OCCURRENCE, Rule


def next_time(rule: Rule, after: int, dialect: CronDialect) -> int:
    """Return the first occurrence after `after`, or `NO_OCCURRENCE`. Raises ConfigError: the rule cannot be used."""
    found = next_match(rule.cron, after, rule.timezone, dialect)
    return NO_OCCURRENCE if found is None else found


def first_time(rule: Rule, at: float, dialect: CronDialect) -> int:
    """Return the first occurrence at or after `at`. Raises as `next_time` does."""
    return next_time(rule, math.ceil(at) - 1, dialect)


def last_time(rule: Rule, after: int, at: int, dialect: CronDialect) -> int | None:
    """Return the last occurrence after `after` and up to `at`. Raises as `next_time` does."""
    return cron.last_time(rule.cron, after, at, rule.timezone, dialect)


def count(rule: Rule, after: int, until: int, dialect: CronDialect) -> int:
    """Return how many occurrences there are after `after` and up to `until`. Raises as `next_time` does."""
    return cron.count(rule.cron, after, until, rule.timezone, dialect)


def times(rule: Rule, at: int, number: int, dialect: CronDialect) -> Iterator[int]:
    """Yield the first `number` occurrences at or after `at`, or as many as there are. Raises as `next_time` does."""
    time = at - 1
    for _ in range(number):
        time = next_time(rule, time, dialect)
        if time == NO_OCCURRENCE:
            break
        yield time


def validate(rule: Rule, dialect: CronDialect) -> None:
    """Raise ConfigError, with the remedy, unless occurrences of the rule can be computed."""
    cron.validate(rule.cron, rule.timezone, dialect)
