"""Computes the row of a schedule after `Schedule.modify`.

Reads calendars and the database's clock, but writes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from psched.cron import CronDialect
from psched.error_messages import did_you_mean
from psched.errors import ScheduleError
from psched.keys import check_key
from psched.model import NO_OCCURRENCE, ScheduleRow
from psched.payload import object_of, pack
from psched.schedules import rule_occurrences
from psched.schedules.pause_and_run_now import with_regular
from psched.schedules.rule_change import with_rule
from psched.schedules.validation import (
    RULE_OPTIONS,
    TERMS,
    Terms,
    check_enqueued_key,
    check_has_occurrence,
    check_times,
    checked_policy,
    checked_rule,
    named_calendars,
    without_policies,
)
from psched.store import ScheduleStore


class Changes(Terms, total=False):
    """The values that `Schedule.modify` takes.

    For each field from `type` to `next_run_time`, a missing value or None leaves the row's value as it is.
    """

    type: str | None
    cron: str | None
    delay: float | None
    timezone: str | None
    data: Mapping[str, Any] | None
    next_time: int | None
    next_run_time: float | None


class Modification:
    """Checked changes, to apply to a row of the schedule `key` that was just read."""

    def __init__(self, key: str, changes: Changes, store: ScheduleStore, dialect: CronDialect) -> None:
        """Raises TypeError for an unknown option.

        Also raises those errors of `Schedule.modify` that do not depend on the row.
        """
        given: dict[str, Any] = dict(changes)
        known = Changes.__annotations__
        unknown = next((name for name in given if name not in known), None)
        if unknown is not None:
            raise TypeError(f"unknown option {unknown!r}{did_you_mean(unknown, known)}")
        terms = {name: value for name, value in given.items() if name in TERMS or name in RULE_OPTIONS}
        self._of_rule = {name: value for name, value in terms.items() if name in RULE_OPTIONS}
        self._of_policy = {name: value for name, value in terms.items() if name not in RULE_OPTIONS}
        for name in ("cron", "timezone", "delay"):
            if given.get(name) is not None:
                self._of_rule[name] = given[name]
        self._times = {name: given.get(name) for name in ("next_time", "next_run_time")}
        self._type, self._data = given.get("type"), given.get("data")
        self._store, self._dialect = store, dialect
        check_times(**self._times)
        if self._type is not None:
            check_enqueued_key(key, check_key(self._type, "type"))
        if self._data is not None:
            pack(object_of(self._data), max_size=store.max_data_size)
        if terms and not store.keeps_policies:
            raise without_policies(key, terms)
        if "exclude" in self._of_rule:
            self._of_rule["exclude"] = named_calendars(store, self._of_rule["exclude"])

    def applied_to(self, seen: ScheduleRow) -> ScheduleRow:
        """Return the changed row. Raises ConfigError, ValueError, and ScheduleError for times that cannot be moved."""
        rule = replace(seen.rule, **self._of_rule)
        rule = rule if rule == seen.rule else checked_rule(rule, self._dialect)
        policy = checked_policy(replace(seen.policy, **self._of_policy))
        is_moved = any(time is not None for time in self._times.values())
        wanted = replace(
            seen,
            type=seen.type if self._type is None else self._type,
            data=seen.data if self._data is None else object_of(self._data),
            rule=rule,
            runs=None if rule.max_runs is None else seen.runs,
            failures=None if policy.pause_after is None else seen.failures,
            previous_ended=None if is_moved else seen.previous_ended,
            policy=policy,
        )
        timed = self._timed(seen.regular(), wanted.regular(), **self._times)
        return with_regular(wanted, timed) if seen.is_extra else timed

    def _timed(
        self, seen: ScheduleRow, wanted: ScheduleRow, next_time: int | None, next_run_time: float | None
    ) -> ScheduleRow:
        """Return `wanted` with the caller's times, or with times computed from the rule."""
        explicit = next_time is not None or next_run_time is not None
        if explicit and not seen.settled:
            raise ScheduleError(
                f"{seen.key!r}: a run is in progress or waits for a retry; change its times after the run"
            )
        if next_run_time is not None and seen.paused:
            raise ScheduleError(f"{seen.key!r} is paused, so it has no run time; resume it first, or use run_now")
        if explicit:
            time = seen.next_time
            if next_time is not None:
                time = rule_occurrences.first_time(wanted.rule, next_time, self._dialect)
            if wanted.has_run_enough:
                time = NO_OCCURRENCE
            check_has_occurrence(time, next_run_time)
            due = wanted.run_time(time) if next_run_time is None else next_run_time
            return replace(wanted, next_time=time, next_run_time=seen.next_run_time if seen.paused else due)
        if wanted.rule == seen.rule:
            return wanted
        return with_rule(seen, wanted, self._store.now(), self._dialect)
