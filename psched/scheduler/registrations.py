"""What the code registers, brought into the store: added, changed, or left there with a word. In the host's process."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from psched.errors import AlreadyExistsError, NotFoundError
from psched.model import Rule, ScheduleRow
from psched.scheduler.job_data import JobData
from psched.schedules.collection import ScheduleCollection

log = logging.getLogger(__name__)

_TRIES = 10


@dataclass(frozen=True, slots=True)
class Registration:
    """A task that comes again."""

    name: str
    rule: Rule
    order: JobData

    def is_in(self, row: ScheduleRow) -> bool:
        """Tell whether the row says the same."""
        same_rule = (row.rule.cron, row.rule.timezone) == (self.rule.cron, self.rule.timezone)
        return same_rule and row.type == self.name and row.data == self.order.stored()


def store(schedules: ScheduleCollection, registrations: Mapping[str, Registration]) -> None:
    """Make the store say what `registrations` say. Several instances may do so at once. Raises the driver's errors."""
    for registration in registrations.values():
        _store(schedules, registration)
    _name_others(schedules.list(), registrations)


def _store(schedules: ScheduleCollection, wanted: Registration) -> None:
    """Add or change one; another instance may add or remove it at the same moment."""
    for left in reversed(range(_TRIES)):
        row = schedules.store.get(wanted.name)
        if row is not None and wanted.is_in(row):
            return
        try:
            if row is None:
                _add(schedules, wanted)
            else:
                _modify(schedules, wanted)
        except (AlreadyExistsError, NotFoundError):
            if left == 0:
                raise
        else:
            return


def _add(schedules: ScheduleCollection, wanted: Registration) -> None:
    rule = wanted.rule
    data = wanted.order.stored()
    schedules.add(wanted.name, wanted.name, cron=rule.cron, timezone=rule.timezone, data=data)
    log.info("registered %r: %s (%s)", wanted.name, rule.cron, rule.timezone)


def _modify(schedules: ScheduleCollection, wanted: Registration) -> None:
    rule = wanted.rule
    schedules[wanted.name].modify(type=wanted.name, cron=rule.cron, timezone=rule.timezone, data=wanted.order.stored())
    log.info("changed the registration %r: %s (%s)", wanted.name, rule.cron, rule.timezone)


def _name_others(rows: Iterable[ScheduleRow], registrations: Mapping[str, Registration]) -> None:
    for row in rows:
        if row.key not in registrations:
            log.warning(
                "the registration %r (%s) is in the store, but not in this code; it stays until unregister(%r)",
                row.key, row.rule.cron, row.key,
            )  # fmt: skip
