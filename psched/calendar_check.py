from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import date

from psched.error_messages import InvalidValueError, shown
from psched.keys import check_key
from psched.model import Calendar

WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
MOST_DATES = 1000
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


def checked_calendar(name: str, version: int, days: object) -> Calendar:
    """Return a calendar of the dates and weekdays in `days`. Raises ValueError."""
    check_key(name, "the name of a calendar")
    if isinstance(days, str) or not isinstance(days, Iterable):
        raise InvalidValueError(
            f"the days of a calendar must be a list such as ['2026-12-25', 'sun'], got {shown(days)}"
        )
    dates, weekdays = set[str](), set[str]()
    for day in days:
        text = day.isoformat() if isinstance(day, date) else day
        word = text.lower() if isinstance(text, str) else ""
        if word in WEEKDAYS:
            weekdays.add(word)
        elif _DATE.fullmatch(word) and _is_date(word):
            dates.add(word)
        else:
            raise InvalidValueError(
                f"the calendar {name!r} has the day {shown(day)}; expected a date such as 2026-12-25, or a weekday: "
                f"{', '.join(WEEKDAYS)}"
            )
    if len(dates) > MOST_DATES:
        raise InvalidValueError(f"the calendar {name!r} has {len(dates)} dates; expected at most {MOST_DATES}")
    return Calendar(name, version, tuple(sorted(dates)), tuple(sorted(weekdays, key=WEEKDAYS.index)))


def _is_date(text: str) -> bool:
    try:
        date.fromisoformat(text)
    except ValueError:
        return False
    return True
