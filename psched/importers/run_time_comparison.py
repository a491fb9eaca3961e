"""Finds the first time at which only one of the two schedulers, psched and the other, would run an entry."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from types import MappingProxyType

from psched.calendar_check import checked_calendar
from psched.cron.zones import change_between, load_zone, offset_at
from psched.errors import ConfigError
from psched.importers.entries import Definition, Following
from psched.model import NO_OCCURRENCE, Rule
from psched.schedules import rule_occurrences
from psched.schedules_file.declared import FORMS

DAY = 86400
_YEAR = 365 * DAY
DAYS = 400
"""The number of days whose runs are compared."""
_FULL = 2000
"""How many runs are compared one by one from the beginning. After that, samples are compared."""
_HOURS_AROUND_CHANGE = 26
_MOST_AROUND_CHANGE = 2000


@dataclass(frozen=True)
class Difference:
    """A time at which only one of two schedulers runs an entry."""

    instant: int
    psched_runs: bool


def following_of(
    definitions: Sequence[Definition], timezone: str, calendars: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Following:
    """Return a function that finds the next time when psched runs any of these definitions.

    `timezone`: the zone of definitions without a zone. `calendars`: the weekdays of each calendar that the definitions
    exclude.
    """
    each = [_following(definition, definition.get("timezone", timezone), calendars) for definition in definitions]

    def following(after: int) -> int | None:
        return min((found for next_ in each if (found := next_(after)) is not None), default=None)

    return following


def first_difference(theirs: Following, ours: Following, begin: int, timezone: str) -> Difference | None:
    """Return the first difference found in 400 days.

    Rare runs are compared one by one. Of frequent runs, the first 2,000 are compared, and then the first of each day
    and those around each clock change.
    """
    end = begin + DAYS * DAY
    reached, found = _compare(theirs, ours, begin, end, _FULL)
    if found is None and reached < end:
        samples = (_compare(theirs, ours, low, high, most) for low, high, most in _samples(reached, end, timezone))
        found = next((difference for _, difference in samples if difference is not None), None)
    return found


def _compare(theirs: Following, ours: Following, low: int, high: int, most: int) -> tuple[int, Difference | None]:
    """Compare at most `most` runs from `low` to `high`.

    Return the end of the compared time, and the first difference if there is one.
    """
    after = low - 1
    for _ in range(most):
        a, b = (
            found if (found := following(after)) is not None and found <= high else high + 1
            for following in (theirs, ours)
        )
        if a != b:
            return min(a, b), Difference(min(a, b), b < a)
        if a > high:
            return high, None
        after = a
    return after, None


def _samples(begin: int, end: int, timezone: str) -> Iterator[tuple[int, int, int]]:
    """Yield samples in order of time, as (begin, end, number of runs to compare)."""
    changes = list(clock_changes(begin - DAY, end, timezone))
    around = [(change - 5400, change + 5400, _MOST_AROUND_CHANGE) for change in changes]
    around += [(change, change + _HOURS_AROUND_CHANGE * 3600, _MOST_AROUND_CHANGE) for change in changes]
    days = [(day, day + DAY, 2) for day in range(begin, end, DAY)]
    yield from sorted(around + days)


def clock_changes(begin: int, end: int, timezone: str) -> Iterator[int]:
    """Yield the times of a zone's clock changes, after `begin` and up to `end`."""
    for number in range(begin // _YEAR, end // _YEAR + 1):
        yield from (change for change in _changes_of_year(number, timezone) if begin < change <= end)


def next_clock_change(after: int, timezone: str) -> int | None:
    """Return the first clock change within about a year, or None."""
    return next(iter(clock_changes(after, after + _YEAR, timezone)), None)


@lru_cache(256)
def _changes_of_year(number: int, timezone: str) -> tuple[int, ...]:
    zone = load_zone(timezone)
    days = range(number * _YEAR, (number + 1) * _YEAR, DAY)
    return tuple(
        change_between(zone, day, day + DAY) for day in days if offset_at(zone, day) != offset_at(zone, day + DAY)
    )


def _following(definition: Definition, timezone: str, calendars: Mapping[str, Sequence[str]]) -> Following:
    rule = Rule(
        _expression(definition),
        timezone,
        start=_bound(definition, "start"),
        end=_bound(definition, "end"),
        exclude=tuple(checked_calendar(name, 1, calendars[name]) for name in definition.get("exclude", ())),
    )
    rule_occurrences.validate(rule, "vixie")

    def following(after: int) -> int | None:
        found = rule_occurrences.next_time(rule, after, "vixie")
        return None if found == NO_OCCURRENCE else found

    return following


def _bound(definition: Definition, name: str) -> float | None:
    return datetime.fromisoformat(definition[name]).timestamp() if name in definition else None


def _expression(definition: Definition) -> str:
    [(name, form)] = [(name, form) for name, form in FORMS.items() if name in definition]
    return form.format(definition[name])


def problem_of(definition: Definition, timezone: str, calendars: Mapping[str, Sequence[str]]) -> str | None:
    """Return why psched does not accept the rule of a definition, or None."""
    try:
        _following(definition, definition.get("timezone", timezone), calendars)
    except ConfigError as error:
        return str(error)
    return None
