"""Finds cron rules that PerfectSched 0.8.12 cannot parse, and rules that put it into an endless loop.

A row with such a rule crashes or blocks a Ruby worker, so psched does not write the row into a table that Ruby workers
may share. PerfectSched replaces names by numbers before it parses a field: `sun` by 0. In the weekday field it also
replaces every digit 7 by 0, even in a step. It takes `L` as the last day of the month only as a capital letter and
alone in the field.
"""

from __future__ import annotations

import re
from calendar import day_abbr, month_abbr
from dataclasses import dataclass

_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTHS = {name.lower(): str(n) for n, name in enumerate(month_abbr) if name}
_WEEKDAYS = {name.lower(): str((n + 1) % 7) for n, name in enumerate(day_abbr)} | {"7": "0"}
_TERM = re.compile(r"(?P<low>[0-9]+)(?:-(?P<high>[0-9]+))?(?:/(?P<step>[0-9]+))?")
_SPACES = re.compile(r"[ \t]+")

_HALF_HOUR_ZONES = frozenset({"Australia/Lord_Howe", "Australia/LHI"})
"""Zones that put clocks back by half an hour, from 02:00 to 01:30, on the first Sunday of April."""


class _CronFieldError(Exception):
    """A part of a cron rule that PerfectSched does not understand, and what to write instead."""


@dataclass(frozen=True, slots=True)
class _RubyField:
    name: str
    low: int
    high: int
    words: dict[str, str]

    def values(self, text: str) -> set[int]:
        """Return the numbers that the field `text` matches. Raises _CronFieldError."""
        terms = text.split(",")
        while len(terms) > 2 and not terms[-1]:  # Ruby's split drops empty terms at the end
            terms.pop()
        if self.name == "day" and set(terms) == {"L"} and len(terms) > 1:
            raise _CronFieldError(f"PerfectSched ignores each L in the list {text!r}; write 'L'")
        return {value for term in terms for value in self._term(term)}

    def _term(self, term: str) -> range:
        if self.name == "day" and term == "L":  # in a list PerfectSched ignores L
            return range(0)
        plain = term.lower().replace("*", f"{self.low}-{self.high}")
        if self.words:
            plain = re.sub("|".join(self.words), lambda found: self.words[found[0]], plain)
        match = _TERM.fullmatch(plain)
        if match is None:
            raise _CronFieldError(f"PerfectSched does not know the {self.name} {term!r}{self._instead(term)}")
        low, high = int(match["low"]), int(match["high"] or match["low"])
        step = int(match["step"] or 1)
        if step == 0:
            raise _CronFieldError(
                f"PerfectSched reads each 7 in {term!r} as 0, and cannot step by 0; list the days instead"
            )
        if not self.low <= low <= high <= self.high:
            sunday = "; it counts Sunday as day 0, so write Sunday as a separate term" if self.name == "weekday" else ""
            raise _CronFieldError(f"PerfectSched reads the {self.name} {term!r} as an empty range{sunday}")
        return range(low, high + 1, step)

    def _instead(self, term: str) -> str:
        if self.name == "day" and term == "l":
            return "; write 'L'"
        return ", because it does not support the nth or last weekday of a month" if self.name == "weekday" else ""


_FIELDS = (
    _RubyField("minute", 0, 59, {}),
    _RubyField("hour", 0, 23, {}),
    _RubyField("day", 1, 31, {}),
    _RubyField("month", 1, 12, _MONTHS),
    _RubyField("weekday", 0, 6, _WEEKDAYS),
)


def ruby_problem(cron: str, timezone: str) -> str | None:
    """Return why a Ruby worker cannot use this rule, or None. The rule must be valid in psched."""
    try:
        fields = _split(cron)
        _, hours, days, months, weekdays = (field.values(text) for field, text in zip(_FIELDS, fields, strict=True))
    except _CronFieldError as error:
        return str(error)
    if timezone not in _HALF_HOUR_ZONES or 1 in hours or 4 not in months:
        return None
    if not _may_be_first_sunday(fields[2], days, fields[4], weekdays):
        return None
    return (
        f"in {timezone} PerfectSched loops for ever when clocks are put back by half an hour in April; "
        "include hour 1, or use another time zone"
    )


def _may_be_first_sunday(day: str, days: set[int], weekday: str, weekdays: set[int]) -> bool:
    if day == "L":
        return False
    by_day, by_weekday = not days.isdisjoint(range(1, 8)), 0 in weekdays
    return (by_day and by_weekday) if "*" in (day, weekday) else (by_day or by_weekday)


def _split(cron: str) -> list[str]:
    """Return the five fields of a cron expression. Raises _CronFieldError."""
    if cron in _MACROS:
        return _MACROS[cron].split()
    if cron.strip().startswith("@"):
        raise _CronFieldError(f"PerfectSched knows only {' '.join(_MACROS)}, in lower case")
    fields = _SPACES.split(cron.strip(" \t"))
    if len(fields) == 6:
        raise _CronFieldError("PerfectSched reads five fields, without seconds")
    if len(fields) != 5 or any(field.split() != [field] for field in fields):
        raise _CronFieldError("PerfectSched reads five fields, separated by spaces or tabs")
    return fields
