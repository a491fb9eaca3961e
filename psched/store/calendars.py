"""The contract of named calendars: the days that the rules of a table's schedules may exclude."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class StoredCalendar(NamedTuple):
    """`version` grows by one with each change of the name, also when it was deleted in between.

    `content`: JSON; None for a deleted calendar. `changed`: unix seconds, on the database's clock.
    """

    name: str
    version: int
    content: str | None
    changed: float


class Calendars(Protocol):
    """The calendars of one table. Methods are safe in any thread and raise the driver's errors."""

    def all(self) -> list[StoredCalendar]:
        """Return all calendars, deleted ones among them, in the order of names."""

    def get(self, name: str) -> StoredCalendar | None:
        """Return a calendar, perhaps a deleted one."""

    def write(self, name: str, seen: int, content: str | None) -> bool:
        """Store version `seen` + 1. Return False if the stored version is not `seen` (0: none) any more."""
