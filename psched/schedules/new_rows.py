"""Makes the rows of new schedules from the values that callers give."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from operator import attrgetter
from typing import TypeVar

from psched import cron
from psched.error_messages import InvalidValueError, shown
from psched.keys import check_key, reserved_for_backfills
from psched.model import NO_OCCURRENCE, Calendar, NewSchedule, Policy, Rule, ScheduleRow
from psched.payload import object_of
from psched.schedules import rule_occurrences
from psched.schedules.validation import (
    RULE_OPTIONS,
    TERMS,
    check_enqueued_key,
    check_has_occurrence,
    check_times,
    checked_policy,
    checked_rule,
    given_rule_options,
    named_calendars,
    warn_of_step,
    without_policies,
)
from psched.store import ScheduleStore

log = logging.getLogger(__name__)

_DEFAULT_POLICY = Policy()
_default = partial(getattr, _DEFAULT_POLICY)
_terms_of = attrgetter(*TERMS)
_rule_options_of = attrgetter(*RULE_OPTIONS)
T = TypeVar("T", Rule, Policy)


def new_rows(
    schedules: Iterable[NewSchedule],
    store: ScheduleStore,
    default_timezone: str,
    dialect: cron.CronDialect,
) -> list[ScheduleRow]:
    """Return the rows of new schedules. All schedules without a `next_time` begin at the same second.

    Raises ConfigError, ValueError and NotSupportedError.
    """
    now = cache(store.now)
    policies, rules = dict[object, Policy](), dict[object, Rule]()
    calendars: dict[tuple[object, ...], tuple[Calendar, ...]] = {}
    rows = []
    for new in schedules:
        if not isinstance(new, NewSchedule):
            raise InvalidValueError(f"each schedule must be a psched.NewSchedule, got {shown(new)}")
        policy = _cached(policies, _terms_of(new), partial(_policy_of, new))
        if not store.keeps_policies and policy != _DEFAULT_POLICY:
            raise without_policies(new.key, [name for name in TERMS if getattr(policy, name) != _default(name)])
        check_times(next_time=new.next_time, next_run_time=new.next_run_time)
        timezone = default_timezone if new.timezone is None else new.timezone
        given = (new.cron, timezone, new.delay, *_rule_options_of(new))
        rule = _cached(rules, given, partial(_rule_of, new, timezone, store, dialect, calendars))
        first = rule_occurrences.first_time(rule, now() if new.next_time is None else new.next_time, dialect)
        check_enqueued_key(check_key(new.key), check_key(new.type, "type"))
        if store.is_backfill(new.key):
            raise reserved_for_backfills(new.key)
        check_has_occurrence(first, new.next_run_time)
        due = new.next_run_time
        if due is None:
            due = NO_OCCURRENCE if first == NO_OCCURRENCE else first + rule.delay_of(new.key)
        row = ScheduleRow(
            key=new.key,
            type=new.type,
            data=object_of(new.data),
            status="waiting",
            rule=rule,
            next_time=first,
            next_run_time=due,
            policy=policy,
        )
        rows.append(row)
    return rows


def warn_of_written(rows: Iterable[ScheduleRow], dialect: cron.CronDialect) -> None:
    """Log a warning about new schedules that have ended already, or whose cron expression has an excessive step."""
    for row in rows:
        warn_of_step(row.rule.cron, dialect)
        if row.next_time == NO_OCCURRENCE:
            log.warning("the schedule %r has ended: %r has no occurrence from now on", row.key, row.rule.cron)


def _cached(results: dict[object, T], values: tuple[object, ...], make: Callable[[], T]) -> T:
    """Return `make()`, cached in `results` by these values. If one of them cannot be hashed, nothing is cached."""
    key = tuple([(each.__class__, tuple(each) if isinstance(each, list) else each) for each in values])  # 1 == True
    try:
        found = results.get(key)
    except TypeError:
        return make()
    if found is None:
        found = results[key] = make()
    return found


def _policy_of(new: NewSchedule) -> Policy:
    return checked_policy(Policy(*_terms_of(new)))


def _rule_of(
    new: NewSchedule,
    timezone: str,
    store: ScheduleStore,
    dialect: cron.CronDialect,
    calendars: dict[tuple[object, ...], tuple[Calendar, ...]],
) -> Rule:
    """Return the rule of a new schedule. `calendars`: caches calendars by their names."""
    options = given_rule_options(new)
    if options and not store.keeps_policies:
        raise without_policies(new.key, options)
    if "exclude" in options:
        names = options["exclude"]
        known = tuple(map(repr, names)) if isinstance(names, Sequence) else (repr(names),)
        if known not in calendars:
            calendars[known] = named_calendars(store, names)
        options["exclude"] = calendars[known]
    return checked_rule(Rule(new.cron, timezone, new.delay, **options), dialect)
