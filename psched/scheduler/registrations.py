"""Recurring tasks, and how they are stored as schedules."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from psched.errors import AlreadyExistsError, NotFoundError
from psched.model import Rule
from psched.schedules.collection import ScheduleCollection

log = logging.getLogger(__name__)

_STORE_ATTEMPTS = 10


@dataclass(frozen=True, slots=True)
class Registration:
    """A recurring task, stored as a schedule. `data`: as it is stored."""

    name: str
    rule: Rule
    data: Mapping[str, Any]


def store_registrations(schedules: ScheduleCollection, registrations: Mapping[str, Registration]) -> None:
    """Add or change their schedules. Safe to run in several instances at once. Raises the driver's errors."""
    for registration in registrations.values():
        _store(schedules, registration)
    for row in schedules.list():
        if row.key not in registrations:
            log.warning(
                "the registration %r (%s) is in the store, but not in this program; unregister(%r) removes it",
                row.key, row.rule.cron, row.key,
            )  # fmt: skip


def _store(schedules: ScheduleCollection, registration: Registration) -> None:
    """Add or change one schedule; another instance may add or delete it at the same time."""
    name, rule, data = registration.name, registration.rule, registration.data
    wanted = (name, rule.cron, rule.timezone, data)
    for attempts_left in reversed(range(_STORE_ATTEMPTS)):
        row = schedules.store.get(name)
        if row is not None and (row.type, row.rule.cron, row.rule.timezone, row.data) == wanted:
            return
        try:
            if row is None:
                schedules.add(name, name, cron=rule.cron, timezone=rule.timezone, data=data)
            else:
                schedules[name].modify(type=name, cron=rule.cron, timezone=rule.timezone, data=data)
        except (AlreadyExistsError, NotFoundError):
            if attempts_left == 0:
                raise
        else:
            verb = "added" if row is None else "changed"
            log.info("%s the registration %r: %s (%s)", verb, name, rule.cron, rule.timezone)
            return
