"""The occurrences of a rule. Whatever asks when a schedule is due asks here. Times are unix seconds."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime

from psched import cron
from psched.cron import CronDialect
from psched.cron.occurrences import next_match
from psched.cron.zones import load_zone
from psched.model import NO_OCCURRENCE, Rule


def next_time(rule: Rule, after: int, dialect: CronDialect) -> int:
    """Return the first occurrence after `after`, or `NO_OCCURRENCE`. Raises ConfigError: the rule cannot be used."""
    if rule.start is rule.end is None:
        found = next_match(rule.cron, after, rule.timezone, dialect)
    else:
        first, last = _bounds(rule, after, NO_OCCURRENCE)
        found = next_match(rule.cron, first, rule.timezone, dialect)
        if found is not None and found > last:
            found = None
    return NO_OCCURRENCE if found is None else found


def first_time(rule: Rule, at: float, dialect: CronDialect) -> int:
    """Return the first occurrence at or after `at`. Raises as `next_time` does."""
    return next_time(rule, math.ceil(at) - 1, dialect)


def last_time(rule: Rule, after: int, at: int, dialect: CronDialect) -> int | None:
    """Return the last occurrence after `after` and up to `at`. Raises as `next_time` does."""
    return cron.last_time(rule.cron, *_bounds(rule, after, at), rule.timezone, dialect)


def count(rule: Rule, after: int, until: int, dialect: CronDialect) -> int:
    """Return how many occurrences there are after `after` and up to `until`. Raises as `next_time` does."""
    return cron.count(rule.cron, *_bounds(rule, after, until), rule.timezone, dialect)


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


def restrictions(rule: Rule) -> Iterator[str]:
    """Yield in words what else than its expression bounds the occurrences of a rule, or moves their runs."""
    if rule.start is not None:
        yield f"not before {_local(rule, rule.start)}"
    if rule.end is not None:
        yield f"not after {_local(rule, rule.end)}"
    if rule.max_runs is not None:
        yield "once" if rule.max_runs == 1 else f"{rule.max_runs} times at the most"
    if rule.spread:
        yield f"spread over {rule.spread:g} s"


def why_not(rule: Rule, time: int) -> str | None:
    """Return why a time of the rule's expression is no occurrence of the rule, or None if it is one."""
    if rule.start is not None and time < rule.start:
        return f"the schedule starts {_local(rule, rule.start)}"
    if rule.end is not None and time > rule.end:
        return f"the schedule ended {_local(rule, rule.end)}"
    return None


def _local(rule: Rule, seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, load_zone(rule.timezone)):%Y-%m-%d %H:%M:%S %Z}"


def _bounds(rule: Rule, after: int, until: int) -> tuple[int, int]:
    """Return `after` and `until`, narrowed to the occurrences that `start` and `end` leave."""
    first = after if rule.start is None else max(after, math.ceil(rule.start) - 1)
    return first, until if rule.end is None else min(until, math.floor(rule.end))
