"""The contract of named calendars. The rules of schedules may exclude the days of a calendar."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StoredCalendar(NamedTuple):
    """A stored calendar.

    `version` grows by one with each change of the calendar with this name, even if the calendar was deleted in between.
    `content`: JSON, or None for a deleted calendar. `changed`: unix seconds, by the database's clock.
    """

    name: str
    version: int
    content: str | None
    changed: float


class Calendars(Protocol):
    """The calendars of one table. Methods are safe to call from any thread and raise the driver's errors."""

    def all(self) -> list[StoredCalendar]:
        """Return all calendars, including deleted calendars, in the order of names."""

    def get(self, name: str) -> StoredCalendar | None:
        """Return a calendar, or None. The calendar may be a deleted one."""

    def write(self, name: str, seen: int, content: str | None) -> bool:
        """Store `content` as version `seen` + 1. None deletes the calendar.

        `seen`: the stored version that the caller knows, or 0. Return False, and change nothing, if the stored version
        is another one.
        """
