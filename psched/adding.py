"""From what is said of new schedules to their rows, each expression worked out once. Used in children and clients."""

from __future__ import annotations

from collections.abc import Iterable

from psched.errors import NotSupportedError
from psched.model import NewSchedule, Policy, Rule, ScheduleRow
from psched.payload import check_key, object_of
from psched.rules import (
    Terms,
    check_delay,
    check_enqueued_key,
    check_texts,
    check_time,
    checked_policy,
    checked_rule,
    checked_type,
    first_match,
)
from psched.store import ScheduleStore
from psched.suggest import shown

_ALL = Policy()


class NewRows:
    """The rows of schedules that are added together: what begins now begins at the same second."""

    def __init__(self, store: ScheduleStore, timezone: str, dialect: str) -> None:
        """`timezone`: of those that name none."""
        self._store = store
        self._timezone = timezone
        self._dialect = dialect
        self._now: int | None = None
        self._known: dict[tuple[object, ...], tuple[Rule, int]] = {}

    def of(self, schedules: Iterable[NewSchedule]) -> list[ScheduleRow]:
        """Return their rows. Raises ConfigError, ValueError, NotSupportedError."""
        return [self._row(new) for new in schedules]

    def _row(self, new: NewSchedule) -> ScheduleRow:
        if not isinstance(new, NewSchedule):
            raise ValueError(f"schedules must be of psched.NewSchedule, got {shown(new)}")
        policy = self._policy(new)
        for name, time in (("next_time", new.next_time), ("next_run_time", new.next_run_time)):
            if time is not None:
                check_time(name, time)
        rule, first = self._rule_and_first(new)
        check_enqueued_key(check_key(new.key), checked_type(new.type))
        return ScheduleRow(
            check_key(new.key),
            checked_type(new.type),
            object_of(new.data),
            "waiting",
            rule=rule,
            next_time=first,
            next_run_time=first + rule.delay if new.next_run_time is None else new.next_run_time,
            policy=policy,
        )

    def _rule_and_first(self, new: NewSchedule) -> tuple[Rule, int]:
        """Return its rule and its first occurrence, found once for all that are alike."""
        check_texts(new.cron, self._timezone if new.timezone is None else new.timezone)
        check_delay(new.delay)
        said = (new.cron, new.timezone, new.delay, new.delay.__class__, new.next_time)
        known = self._known.get(said)
        if known is None:
            timezone = self._timezone if new.timezone is None else new.timezone
            rule = checked_rule(Rule(new.cron, timezone, new.delay), self._dialect)
            start = self._starting() if new.next_time is None else new.next_time
            known = self._known[said] = rule, first_match(rule, start, self._dialect)
        return known

    def _starting(self) -> int:
        """Return the database's time in whole seconds, rounded up."""
        if self._now is None:
            self._now = int(-(-self._store.now() // 1))
        return self._now

    def _policy(self, new: NewSchedule) -> Policy:
        bounds = (new.max_lateness, new.alert_after, new.max_attempts)
        if new.catch_up == _ALL.catch_up and bounds == (None, None, None):
            return _ALL
        terms: Terms = {
            "catch_up": new.catch_up,
            "max_lateness": new.max_lateness,
            "alert_after": new.alert_after,
            "max_attempts": new.max_attempts,
        }
        policy = checked_policy(_ALL, terms)
        if not self._store.keeps_policies:
            raise NotSupportedError(f"{new.key!r}: this store knows no policies; type: rdb and redis do")
        return policy
