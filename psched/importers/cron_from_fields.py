"""Converts rules whose fields must all match, as in Celery, APScheduler and systemd, to psched's expressions.

In psched's expressions a match of the day of the month or of the weekday is enough, unless one of these fields begins
with `*`. So a rule that restricts both becomes an nth weekday if that means the same (`1-7` and Monday: `mon#1`).
Otherwise it becomes an expression with the days of the month only, and the schedule excludes a calendar of the unwanted
weekdays.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from psched.cron.explanation import consecutive
from psched.importers.entries import Definition

WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
ALL_MINUTES = frozenset(range(60))
ALL_HOURS = frozenset(range(24))
ALL_DAYS = frozenset(range(1, 32))
ALL_MONTHS = frozenset(range(1, 13))
ALL_WEEKDAYS = frozenset(range(7))
_WEEKS = {n: frozenset(range(7 * n - 6, min(7 * n, 31) + 1)) for n in range(1, 6)}
"""n → the days of the month on which a weekday occurs for the nth time."""
_LAST = -1


@dataclass(frozen=True, kw_only=True)
class MatchingFields:
    """The values that each field of a cron expression allows. A time must match in all fields.

    - `days`, `last_day`, `nth_weekdays`: the dates that match; a date needs only one of the three.
    - `last_day`: whether the last day of each month matches.
    - `nth_weekdays`: pairs of weekday and n; the n of the last weekday is -1.
    - `weekdays`: the date must also be on one of these weekdays. Sunday is 0.
    - `stars`: the fields to write with `*`. This decides the effect of clock changes on hours and minutes.
    """

    seconds: Collection[int] = frozenset((0,))
    minutes: Collection[int] = ALL_MINUTES
    hours: Collection[int] = ALL_HOURS
    days: Collection[int] = ALL_DAYS
    last_day: bool = False
    nth_weekdays: Collection[tuple[int, int]] = ()
    months: Collection[int] = ALL_MONTHS
    weekdays: Collection[int] = ALL_WEEKDAYS
    stars: Collection[str] = ("seconds", "minutes", "hours", "days", "months")


def definitions_of(fields: MatchingFields) -> tuple[list[Definition], dict[str, list[str]]]:
    """Return the definitions of schedules that together match `fields`.

    Also return the weekdays of the calendars that these schedules exclude.
    """
    clock = [
        field_text(fields.minutes, 0, 59, "minutes" in fields.stars),
        field_text(fields.hours, 0, 23, "hours" in fields.stars),
    ]
    if set(fields.seconds) != {0}:
        clock.insert(0, field_text(fields.seconds, 0, 59, "seconds" in fields.stars))
    month = field_text(fields.months, 1, 12, "months" in fields.stars)
    definitions: list[Definition] = []
    calendars: dict[str, list[str]] = {}
    for day, weekday, excluded in _day_parts(fields):
        definition: Definition = {"cron": " ".join((*clock, day, month, weekday))}
        if excluded:
            name = "-".join(WEEKDAYS[number] for number in sorted(excluded))
            calendars[name] = [WEEKDAYS[number] for number in sorted(excluded)]
            definition["exclude"] = [name]
        definitions.append(definition)
    return definitions, calendars


def stretches_of_years(years: Collection[int], first: int, last: int) -> list[tuple[int | None, int | None]]:
    """Return the first and the last year of each span of consecutive years, without years before `first`.

    A span that begins with `first` has None as its first year. A span that ends with `last`, the last year that a rule
    can name, has None as its last year.
    """
    found: list[list[int]] = []
    for year in sorted(year for year in years if year >= first):
        if found and found[-1][-1] == year - 1:
            found[-1].append(year)
        else:
            found.append([year])
    return [(None if each[0] == first else each[0], None if each[-1] == last else each[-1]) for each in found]


def _day_parts(fields: MatchingFields) -> list[tuple[str, str, frozenset[int]]]:
    """Return the day parts of the cron expressions that together match `fields`.

    A day part is the text of the day field, the text of the weekday field, and the weekdays to exclude.
    """
    days, weekdays = frozenset(fields.days), frozenset(fields.weekdays)
    others = ALL_WEEKDAYS - weekdays
    nth = sorted((weekday, n) for weekday, n in fields.nth_weekdays if weekday in weekdays)
    nth_text = ",".join(f"{WEEKDAYS[weekday]}L" if n == _LAST else f"{WEEKDAYS[weekday]}#{n}" for weekday, n in nth)
    if days == ALL_DAYS:
        return [("*", field_text(weekdays, 0, 6, star=True), frozenset())]
    day_text = field_text(days, 1, 31, "days" in fields.stars and not nth) if days else ""
    day_text = ",".join(filter(None, (day_text, "L" if fields.last_day else "")))
    if not others:
        return [(day_text or "*", nth_text or "*", frozenset())]  # in one expression, a match of either field is enough
    parts = [("*", nth_text, frozenset[int]())] if nth else []
    if day_text:
        weeks = [n for n, week in _WEEKS.items() if week <= days]
        if not fields.last_day and days and days == frozenset().union(*(_WEEKS[n] for n in weeks)):
            parts.append(
                ("*", ",".join(f"{WEEKDAYS[each]}#{n}" for n in weeks for each in sorted(weekdays)), frozenset())
            )
        elif day_text.startswith("*"):
            parts.append((day_text, field_text(weekdays, 0, 6, star=False), frozenset()))
        else:
            parts.append((day_text, "*", others))
    return parts


def field_text(values: Collection[int], low: int, high: int, star: bool) -> str:
    """Return the text of a field: `*`, a step, or a list of values and ranges.

    `star`: whether the text may begin with `*`.
    """
    ordered = sorted(set(values))
    if star and ordered == list(range(low, high + 1)):
        return "*"
    step = ordered[1] - ordered[0] if len(ordered) > 2 else 1
    if step > 1 and ordered == list(range(ordered[0], ordered[-1] + 1, step)):
        if star and ordered[0] == low and ordered[-1] + step > high:
            return f"*/{step}"
        return f"{ordered[0]}-{ordered[-1]}/{step}"
    terms: list[str] = []
    for run in consecutive(ordered):
        terms += map(str, run) if len(run) < 3 else [f"{run[0]}-{run[-1]}"]
    return ",".join(terms)
