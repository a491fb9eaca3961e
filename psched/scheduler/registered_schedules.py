"""Registrations: recurring tasks, and how they are stored as schedules."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from psched.cron import CronDialect
from psched.error_messages import did_you_mean, shown
from psched.errors import AlreadyExistsError, NotFoundError
from psched.model import Policy, Rule, ScheduleRow
from psched.schedules.collection import ScheduleCollection
from psched.schedules.modification import Changes, Modification
from psched.schedules.validation import OccurrenceTerms, Terms, checked_policy, checked_rule, warn_of_step
from psched.time_check import check_time

log = logging.getLogger(__name__)

_STORE_ATTEMPTS = 10
_OF_POLICY = frozenset(each.name for each in fields(Policy))
_OF_RUNS = Terms.__annotations__.keys() - OccurrenceTerms.__annotations__.keys()
"""Options of a schedule that apply to its runs. A registration refuses them, because its runs only submit tasks."""

At = datetime | float | str
Every = timedelta | float | str


class RegistrationTerms(OccurrenceTerms, total=False):
    """The options of a registration: those of a schedule, except options for runs, such as `timeout`.

    `delay`: seconds from an occurrence to the submission of its task.
    """

    delay: float


class RegistrationChanges(RegistrationTerms, total=False):
    """The values that `Scheduler.modify` takes. Values that are not given do not change."""

    cron: str
    every: Every
    at: At
    data: Any
    retry: bool
    retry_timeout: float | None
    timezone: str


@dataclass(frozen=True, slots=True)
class Registration:
    """A recurring task, stored as a schedule. `data`: in its stored form.

    `terms`: the options that the program gives.
    """

    name: str
    rule: Rule
    data: Mapping[str, Any]
    terms: Mapping[str, Any] = field(default_factory=dict)

    @property
    def changes(self) -> Changes:
        """The values to store in the schedule. The schedule keeps the options that the program does not give."""
        rule = self.rule
        return {"type": self.name, "cron": rule.cron, "timezone": rule.timezone, "data": self.data, **self.terms}  # type: ignore[typeddict-item]


def expression_of(cron: str | None, every: Every | None, at: At | None, timezone: str) -> str:
    """Return the cron expression for the given argument: `cron`, `every` or `at`.

    Raises ValueError for a wrong value, and if not exactly one argument is given.
    """
    given = {name: value for name, value in (("cron", cron), ("every", every), ("at", at)) if value is not None}
    if len(given) != 1:
        names = ", ".join(given) or "none of them"
        raise ValueError(f"give exactly one of cron=, every= and at= (for a task that runs once), got {names}")
    if cron is not None:
        return cron
    return f"@every {_interval(every)}" if every is not None else f"@at {_moment(at, timezone)}"


def _interval(every: object) -> str:
    if isinstance(every, str):
        return every
    seconds = every.total_seconds() if isinstance(every, timedelta) else every
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or seconds != seconds // 1 or seconds < 1:
        raise ValueError(
            f"every must be a number of whole seconds (from 1), a timedelta, or text such as '5m', got {shown(every)}"
        )
    return f"{seconds:.0f}s"


def _moment(at: object, timezone: str) -> str:
    """Return a time as text in local time of `timezone`. A datetime without a zone is already local.

    Rounds up to a whole second. Rounded down, the time might already have passed, and the task would never run.
    """
    if isinstance(at, str):
        return at
    try:
        moment = at.astimezone(UTC) if isinstance(at, datetime) and at.tzinfo is not None else at
        if isinstance(moment, datetime):
            moment = moment.replace(microsecond=0) + timedelta(seconds=bool(moment.microsecond))
            local = moment if moment.tzinfo is None else moment.astimezone(ZoneInfo(timezone))
        else:
            local = datetime.fromtimestamp(math.ceil(_checked_seconds(moment)), ZoneInfo(timezone))
    except OverflowError:
        raise ValueError(f"at {at}: expected a time in the years 1970 to 9999, also in {timezone}") from None
    if local.fold and local.tzinfo is not None:
        raise ValueError(
            f"at {local.isoformat()}: clocks in {timezone} show this time twice, and a task runs at the first; for the "
            "second, pass the same `at` with timezone='UTC'"
        )
    return local.replace(tzinfo=None).isoformat(timespec="seconds")


def _checked_seconds(at: object) -> float:
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise ValueError(f"at must be a datetime, unix seconds or text such as '2027-03-01T09:00', got {shown(at)}")
    return check_time("at", at)


def check_names(options: Iterable[str]) -> None:
    """Raise TypeError for a name that is not an option of a schedule."""
    known = RegistrationChanges.__annotations__.keys() | _OF_RUNS
    for name in options:
        if name not in known:
            raise TypeError(f"unknown option {name!r}{did_you_mean(name, RegistrationChanges.__annotations__)}")


def checked_rule_of(cron: str, timezone: str, terms: Mapping[str, Any], dialect: CronDialect) -> Rule:
    """Return the checked rule without calendars. Raises ConfigError, ValueError, TypeError."""
    for name in terms:
        if name in _OF_RUNS:
            instead = "retry=True tries a task again; @app.task(…) takes retry_wait, max_attempts and timeout"
            raise ValueError(
                f"{name} applies to the runs of a schedule, but a registration only submits tasks; {instead}"
            )
    policy = {name: value for name, value in terms.items() if name in _OF_POLICY}
    checked_policy(Policy(**policy))
    of_rule = {name: value for name, value in terms.items() if name not in policy and name != "exclude"}
    rule = checked_rule(Rule(cron, timezone, **of_rule), dialect)
    warn_of_step(cron, dialect)
    return rule


def store_registrations(schedules: ScheduleCollection, registrations: Mapping[str, Registration]) -> None:
    """Add or change the schedules of these registrations. Several instances may do so at the same time.

    Raises the driver's errors.
    """
    for registration in registrations.values():
        store_registration(schedules, registration)
    for row in schedules.list():
        if row.key not in registrations and not row.is_backfill:
            log.warning(
                "the registration %r (%s) is in the store, but not in this program; unregister(%r) removes it",
                row.key, row.rule.cron, row.key,
            )  # fmt: skip


def store_registration(schedules: ScheduleCollection, registration: Registration) -> None:
    """Add or change one schedule. Another instance may add or delete it at the same time."""
    name, rule = registration.name, registration.rule
    for attempts_left in reversed(range(_STORE_ATTEMPTS)):
        row = schedules.store.get(name)
        try:
            if row is None:
                schedules.add(name, **registration.changes)  # type: ignore[arg-type]  # none of these is None
                log.info("added the registration %r: %s (%s)", name, rule.cron, rule.timezone)
            elif differing := _differing(schedules, row, registration):
                schedules[name].modify(**registration.changes)
                log.warning(
                    "changed the stored registration %r to that of this newer instance: %s (%s) instead of %s (%s); "
                    "changed: %s",
                    name, rule.cron, rule.timezone, row.rule.cron, row.rule.timezone, ", ".join(differing),
                )  # fmt: skip
        except (AlreadyExistsError, NotFoundError):
            if attempts_left == 0:
                raise
        else:
            return


def _differing(schedules: ScheduleCollection, row: ScheduleRow, registration: Registration) -> list[str]:
    """Return the names of the values that differ between the stored schedule and the registration."""
    modification = Modification(row.key, registration.changes, schedules.store, schedules.cron_dialect)
    wanted = modification.applied_to(row)
    found = [name for name in ("type", "data") if getattr(row, name) != getattr(wanted, name)]
    for before, after in ((row.rule, wanted.rule), (row.policy, wanted.policy)):
        found += [each.name for each in fields(before) if getattr(before, each.name) != getattr(after, each.name)]
    return found
