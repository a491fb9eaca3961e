"""Reads the days of a calendar file (iCalendar, RFC 5545), such as a calendar of public holidays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta

import recurring_ical_events
from icalendar import Calendar

from psched.errors import ConfigError


@dataclass(frozen=True)
class CalendarDays:
    """The days of all-day events in order, and the number of events with a time of day."""

    days: tuple[date, ...]
    timed: int


def read_days(name: str, text: str, first: date, last: date) -> CalendarDays:
    """Return the days from `first` to `last` (both included) that have an all-day event.

    A repeated event counts on each of its days. A cancelled event does not count. Raises ConfigError if `text` is not a
    calendar.
    """
    try:
        calendars = Calendar.from_ical(text, multiple=True)
        events = [
            event
            for calendar in calendars
            for event in recurring_ical_events.of(calendar).between(first, last + timedelta(days=1))
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"{name}: the calendar cannot be read: {' '.join(str(error).split())}") from error
    if not calendars:
        raise ConfigError(f"{name}: no calendar in this file; expected BEGIN:VCALENDAR")
    counted = [event for event in events if str(event.get("STATUS", "")).upper() != "CANCELLED"]
    days = {day for event in counted for day in _days(event.start, event.end) if first <= day <= last}
    return CalendarDays(tuple(sorted(days)), sum(isinstance(event.start, datetime) for event in counted))


def _days(start: date, end: date) -> Iterator[date]:
    """Yield the days of an all-day event. `end` is not included."""
    if isinstance(start, datetime):
        return
    yield start
    for number in range(1, (end - start).days):
        yield start + timedelta(days=number)
