"""Calendars on Redis: a hash beside the rows of a table of schedules."""

from __future__ import annotations

from psched.backends.redis.ledger import Run
from psched.store.calendars import StoredCalendar


class RedisCalendars:
    def __init__(self, run: Run) -> None:
        self._run = run

    def all(self) -> list[StoredCalendar]:
        found = self._run("calendars")
        return sorted(_read_calendar(name, text) for name, text in zip(found[::2], found[1::2], strict=True))

    def get(self, name: str) -> StoredCalendar | None:
        return next((calendar for calendar in self.all() if calendar.name == name), None)

    def write(self, name: str, seen: int, content: str | None) -> bool:
        return bool(self._run("write_calendar", name, seen, "" if content is None else content))


def _read_calendar(name: bytes, text: bytes) -> StoredCalendar:
    version, changed, content = text.decode().split(":", 2)
    return StoredCalendar(name.decode(), int(version), content or None, int(changed) / 1000)
