"""Parse a cron expression, or say in one line what is wrong with it. Used wherever cron is.

Each term of a list (`1-5/2`, `fri`) is checked here and then expanded by croniter on its own. croniter is not given a
whole expression, since it reads some wrongly: `8-8` as "every", `22-2` as a range over midnight, `6,1#3` without the 6.
"""

from __future__ import annotations

import re
from calendar import month_name
from dataclasses import dataclass
from functools import lru_cache

from croniter import CroniterError, croniter
from croniter.croniter import DOW_ALPHAS, M_ALPHAS

from psched.cron.matching import LAST, LENGTHS, DayRule, Expression, month_days
from psched.errors import ConfigError
from psched.suggest import did_you_mean

DIALECTS = ("vixie", "perfectsched")
"""How day rules, steps and clock changes are read: as Debian's cron does, or as the Ruby PerfectSched does."""
MAX_LENGTH = 128
"""Characters in an expression: what the tables of the originals hold."""

_MACROS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_VALUE = r"(?:[0-9]+|[a-z]+)"
_PLAIN = re.compile(rf"(?P<low>\*|{_VALUE})(?:(?<!\*)-(?P<high>{_VALUE}))?(?:/(?P<step>[0-9]+))?")
_NTH = re.compile(rf"(?P<weekday>{_VALUE})#(?P<n>[1-5])")
_LAST_WEEKDAY = re.compile(r"(?P<weekday>[0-9]|[a-z]{3})l")
_RANDOM = re.compile(r"[hr](?:[(/].*)?")


@dataclass(frozen=True, slots=True)
class _Field:
    """One column: its place in a five-field expression, its range, its names and what else it takes."""

    name: str
    place: int
    low: int
    high: int
    names: tuple[str, ...] = ()
    special: str = ""

    def expected(self) -> str:
        names = f", {self.names[0]}-{self.names[-1]}" if self.names else ""
        return f"expected {self.low}-{self.high}{names}{self.special}, '*', ranges (1-3), steps (*/2) or lists of these"


_SECOND = _Field("second", 0, 0, 59)  # croniter has no seconds-first columns; its minutes have the same range
_MINUTE = _Field("minute", 0, 0, 59)
_HOUR = _Field("hour", 1, 0, 23)
_DAY = _Field("day", 2, 1, 31, special=", L (last day)")
_MONTH = _Field("month", 3, 1, 12, tuple(M_ALPHAS))
_WEEKDAY = _Field("weekday", 4, 0, 7, tuple(DOW_ALPHAS), special=", 5L (last Friday), 5#2 (second Friday)")


def check_dialect(name: str) -> None:
    """Raise ConfigError unless `name` is one of DIALECTS."""
    if name not in DIALECTS:
        raise ConfigError(f"cron_dialect {name!r}: expected {' or '.join(DIALECTS)}" + did_you_mean(name, DIALECTS))


@lru_cache(maxsize=1024)
def parse(cron: str, dialect: str) -> Expression:
    """Return the parsed expression; parsed once.

    Raises:
        ConfigError: it cannot be used; the message names the field, what was expected and what to write.
    """
    check_dialect(dialect)
    if len(cron) > MAX_LENGTH:
        raise ConfigError(f"cron {cron[:40]!r}… has {len(cron)} characters; {MAX_LENGTH} at most, use ranges and steps")
    try:
        return _read(_split(cron), dialect)
    except _MistakeError as mistake:
        raise ConfigError(f"cron {cron!r}{mistake}") from mistake.__cause__


class _MistakeError(Exception):
    """What is wrong, to be put after the expression."""


def _split(cron: str) -> list[str]:
    """Return the six fields, seconds first."""
    text = cron.strip(" \t\r\n").lower()
    if text.startswith("@"):
        if text not in _MACROS:
            raise _MistakeError(f": expected one of {' '.join(_MACROS)}" + did_you_mean(text, _MACROS))
        text = _MACROS[text]
    fields = re.split(r"[ \t\r\n]+", text) if text else []
    if len(fields) not in (5, 6):
        raise _MistakeError(
            f" has {len(fields)} fields; expected minute hour day month weekday, or seconds before these"
        )
    return fields if len(fields) == 6 else ["0", *fields]


def _read(fields: list[str], dialect: str) -> Expression:
    vixie = dialect == "vixie"
    second, minute, hour, day, month, weekday = fields
    seconds, minutes, hours, months = (
        _values(field, text, vixie)
        for field, text in ((_SECOND, second), (_MINUTE, minute), (_HOUR, hour), (_MONTH, month))
    )
    expression = Expression(
        seconds=tuple(sorted(seconds)),
        minutes=tuple(sorted(minutes)),
        hours=tuple(sorted(hours)),
        months=frozenset(months),
        month_days=month_days(_day_rule(day, weekday, vixie)),
        once=vixie and not minute.startswith("*") and not hour.startswith("*"),
        whole_hours=not vixie,
    )
    if not expression.ever_matches():
        raise _MistakeError(_why_never(day, weekday, months, vixie))
    return expression


def _values(field: _Field, text: str, vixie: bool) -> set[int]:
    return {value for term in text.split(",") for value in _term(field, term, vixie)}


def _day_rule(day: str, weekday: str, vixie: bool) -> DayRule:
    """Combine the two fields: both must match when one begins with `*` (Debian's cron) or is just `*` (Ruby)."""
    day_alone = not vixie and day == "l"  # chrono, which computes for PerfectSched, looks at no weekday then
    days, last_day = _days(day, vixie)
    plain: set[int] = set()
    nth: set[tuple[int, int]] = set()
    for term in weekday.split(","):
        if match := _NTH.fullmatch(term):
            nth.add((_number(_WEEKDAY, match["weekday"]) % 7, int(match["n"])))
        elif match := _LAST_WEEKDAY.fullmatch(term):
            nth.add((_number(_WEEKDAY, match["weekday"]) % 7, LAST))
        else:
            plain |= _term(_WEEKDAY, term, vixie)
    return DayRule(
        days=frozenset(days),
        last_day=last_day,
        weekdays=frozenset(range(7) if day_alone else plain),
        nth_weekdays=frozenset(nth),
        both=day_alone or any(text.startswith("*") if vixie else text == "*" for text in (day, weekday)),
    )


def _days(day: str, vixie: bool) -> tuple[set[int], bool]:
    """Return the days of the month, and whether its last one is among them: in Ruby's reading not beside others."""
    terms = day.split(",")
    days = {value for term in terms if term != "l" for value in _term(_DAY, term, vixie)}
    return days, "l" in terms and (vixie or not days)


def _term(field: _Field, term: str, vixie: bool) -> frozenset[int]:
    """Expand `*`, a value or a range, each with or without a step."""
    match = _PLAIN.fullmatch(term)
    if match is None or _RANDOM.fullmatch(term):
        raise _MistakeError(_malformed(field, term))
    step = 1 if match["step"] is None else _step(field, match["step"], vixie)
    if step == 0:
        raise _MistakeError(f": {field.name} {term!r} steps by 0; expected a step of 1 or more")
    if match["low"] == "*":
        return _expand(field, f"*/{step}")
    low = _number(field, match["low"])
    if match["high"] is not None:
        high = _range_end(field, match["low"], match["high"])
        if high == 7 and low in (0, 7) and field is _WEEKDAY and not vixie:
            high = low  # Ruby reads each 7 as 0
        _check_order(field, term, low, high)
    else:
        # "5/15" goes on to the end of the field; in Ruby's reading it is just 5
        high = field.high if match["step"] is not None and vixie else low
    if low == high:
        return frozenset((low % 7 if field is _WEEKDAY else low,))
    return _expand(field, f"{low}-{high}/{step}")


def _step(field: _Field, text: str, vixie: bool) -> int:
    """Return a step. Ruby reads each 7 of the weekday as 0, which makes of some (`71`) another step."""
    in_ruby = 0 if vixie or field is not _WEEKDAY else int(text.replace("7", "0"))
    return int(text) if in_ruby == 0 else in_ruby


def _number(field: _Field, value: str) -> int:
    """Return a single value as a number; Sunday stays 7 when written so."""
    if not value.isdecimal() and value not in field.names:
        raise _MistakeError(
            f": {field.name} {value!r} is unknown; {field.expected()}" + did_you_mean(value, field.names)
        )
    (number,) = _expand(field, value)
    return 7 if field is _WEEKDAY and value.isdecimal() and int(value) == 7 else number


def _range_end(field: _Field, low: str, high: str) -> int:
    """Return the upper value of a range; `fri-sun` ends with Sunday as day 7."""
    number = _number(field, high)
    return 7 if field is _WEEKDAY and high == "sun" and low != "sun" else number


def _check_order(field: _Field, term: str, low: int, high: int) -> None:
    if low <= high:
        return
    top = 6 if field is _WEEKDAY else field.high
    spans = [(low, top), (field.low, high)] if low <= top else [(field.low, high)]
    instead = ",".join(f"{first}-{last}" if first < last else f"{first}" for first, last in spans)
    instead = "the values as a list" if "/" in term else f"'{instead}'"
    raise _MistakeError(f": {field.name} {term!r} runs backwards; write {instead}")


@lru_cache(maxsize=4096)
def _expand(field: _Field, term: str) -> frozenset[int]:
    """Let croniter read a term that is known to be well formed; once, as that takes a fifth of a millisecond."""
    columns = ["*"] * 5
    columns[field.place] = term
    try:
        values = croniter.expand(" ".join(columns))[0][field.place]
    except CroniterError as error:
        raise _MistakeError(f": {field.name} {term!r} is out of range; {field.expected()}") from error
    if values == ["*"]:
        return frozenset(range(field.low, 7 if field is _WEEKDAY else field.high + 1))
    return frozenset(int(value) for value in values)


def _malformed(field: _Field, term: str) -> str:
    if _RANDOM.fullmatch(term):
        return f": {field.name} {term!r} is drawn at random and differs from host to host; write a number"
    if term == "?":
        return f": {field.name} '?' is not known here; write '*'"
    return f": {field.name} {term!r} is not understood; {field.expected()}"


def _why_never(day: str, weekday: str, months: set[int], vixie: bool) -> str:
    days, last_day = _days(day, vixie)
    if not last_day and min(days) > max(29 if month == 2 else LENGTHS[month] for month in months):
        return f" never runs: there is no day {day} in {' or '.join(month_name[month] for month in sorted(months))}"
    return f" never runs: no day fits both {day!r} and {weekday!r} (both must match, since one begins with '*')"
