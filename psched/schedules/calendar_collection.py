"""Named calendars. A schedule that excludes a calendar has no occurrence on the calendar's days.

A schedule stores the content of its calendars in its own definition. So the history of its definitions shows which days
were excluded at which time. `CalendarCollection.set` changes the calendar, and then the definition of each schedule
that excludes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from datetime import date

from psched.calendar_check import checked_calendar
from psched.cron import CronDialect
from psched.errors import NotFoundError, NotSupportedError, ScheduleError
from psched.keys import check_key
from psched.model import Calendar
from psched.schedules.schedule_handle import Schedule
from psched.schedules.validation import named_calendar, no_calendar
from psched.store import ScheduleStore
from psched.store.calendars import Calendars

_TRIES = 20
_SHOWN = 5
"""The maximum number of keys in one message."""


class CalendarCollection:
    """The named calendars of one table. Safe to use from several threads."""

    def __init__(self, store: ScheduleStore, dialect: CronDialect) -> None:
        self._schedules = store
        self._dialect = dialect

    def __getitem__(self, name: str) -> Calendar:
        """Return a calendar. Raises NotFoundError, NotSupportedError and ValueError."""
        stored = self._store.get(check_key(name, "the name of a calendar"))
        if stored is None or stored.content is None:
            raise NotFoundError(no_calendar(self._store, name))
        return named_calendar(stored)

    def list(self) -> list[Calendar]:
        """Return the calendars in the order of their names. Raises NotSupportedError."""
        return [named_calendar(stored) for stored in self._store.all() if stored.content is not None]

    def set(self, name: str, days: Iterable[str | date]) -> Calendar:
        """Define a calendar by its days: dates such as `2026-12-25`, and weekdays such as `sun`.

        Also computes the future occurrences of the schedules that exclude the calendar. If the days are the same as
        before, the call only changes schedules that an interrupted call did not reach. Raises ValueError and
        NotSupportedError.
        """
        for _ in range(_TRIES):
            stored = self._store.get(name)
            seen = 0 if stored is None else stored.version
            calendar = checked_calendar(name, seen + 1, days)
            if stored is not None and stored.content is not None:
                present = named_calendar(stored)
                if (present.dates, present.weekdays) == (calendar.dates, calendar.weekdays):
                    calendar = present
                    break
            if self._store.write(name, seen, json.dumps([*calendar.dates, *calendar.weekdays])):
                break
        else:
            raise ScheduleError(
                f"the calendar {name!r} was not set: other clients changed it during each of {_TRIES} tries; try again"
            )
        for key in self.users(name):
            Schedule(self._schedules, key, self._dialect).follow(calendar)
        return calendar

    def delete(self, name: str) -> None:
        """Delete a calendar. Raises NotFoundError. Raises ScheduleError while schedules exclude it."""
        calendar = self[name]
        users = [key for key, _ in zip(self.users(name), range(_SHOWN + 1), strict=False)]
        if users:
            keys = ", ".join(map(repr, users[:_SHOWN])) + (" and more" if len(users) > _SHOWN else "")
            raise ScheduleError(
                f"schedules exclude the calendar {name!r}: {keys}; modify or delete these schedules first"
            )
        if not self._store.write(name, calendar.version, None):
            raise ScheduleError(f"the calendar {name!r} was not deleted: it was changed at the same time; try again")

    def users(self, name: str) -> Iterator[str]:
        """Yield the keys of the schedules that exclude a calendar. Reads all schedules.

        Backfills are left out: a backfill keeps the days that the calendar had when it started.
        """
        rows = (row for row in self._schedules.list() if not row.is_backfill)
        return (row.key for row in rows if any(each.name == name for each in row.rule.exclude))

    @property
    def _store(self) -> Calendars:
        if self._schedules.calendars is None:
            raise NotSupportedError("this store keeps no calendars; use `type: rdb` or `type: redis`")
        return self._schedules.calendars
