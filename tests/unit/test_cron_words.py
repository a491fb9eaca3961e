"""Cron expressions in words, and why a date matches."""

from __future__ import annotations

import random
from datetime import date, datetime, timedelta

import pytest

from psched.cron import occurrences
from psched.cron.explanation import day_in, in_words, why
from psched.errors import ConfigError

_WORDS = {
    "* * * * *": "every minute",
    "*/5 * * * *": "every 5 minutes",
    "@hourly": "at minute 0 of every hour",
    "0 */6 * * *": "at 00:00, 06:00, 12:00 and 18:00 every day",
    "15,45 */2 * * *": "at minutes 15 and 45 of every 2 hours",
    "0 8-17 * * *": "every hour from 08:00 to 17:00",
    "*/20 9-17 * * 1-5": "every 20 minutes of hours 9 to 17 from Monday to Friday",
    "*/10 * * * * *": "every 10 seconds",
    "30 0 12 * * *": "at 12:00:30 every day",
    "7 * 3 2 * *": "at second 7 of every minute of hour 3 on day 2 of the month",
    "0 9 * * mon#1,fri#3": "at 09:00 on the first Monday of the month or the third Friday of the month",
    "0 22 * 6-8 5L": "at 22:00 on the last Friday of the month from June to August",
    "0 0 15,L * *": "at 00:00 on day 15 of the month or the last day of the month",
    "0 0 13 * 5": "at 00:00 on day 13 of the month or on Friday",
    "0 0 */2 * 5": "at 00:00 on days 1, 3, 5, … and 31 of the month if it is Friday",
    "0 0 1 1,3 *": "at 00:00 on day 1 of the month in January and March",
}

_DAY_29 = "the date is day 29 of the month, the expression wants"
_GAP = "02:30 does not exist on that day, because the clock jumps ahead by 60 minutes"


@pytest.mark.parametrize("cron", _WORDS)
def test_words(cron: str) -> None:
    assert in_words(cron) == _WORDS[cron]


def test_the_dialect_decides_whether_one_of_day_and_weekday_is_enough() -> None:
    assert "if it is Friday" in in_words("0 0 */2 * 5")
    assert "or on Friday" in in_words("0 0 */2 * 5", "perfectsched")


@pytest.mark.parametrize(
    ("cron", "at", "reasons"),
    [
        ("0 9 * * mon-fri", date(2026, 11, 29), ["the date is a Sunday, the expression wants Monday to Friday"]),
        ("0 9 * 1-3 *", date(2026, 11, 29), ["the month is November, the expression wants January to March"]),
        (
            "0 0 13 * 5",
            date(2026, 11, 29),
            [f"{_DAY_29} day 13 of the month or Friday; the date is a Sunday"],
        ),
        (
            "0 0 L * *",
            date(2026, 11, 29),
            [f"{_DAY_29} the last day of the month"],
        ),
        (
            "*/15 8,9 * * *",
            datetime.fromisoformat("2026-11-29T07:20"),
            ["the hour is 7, the expression wants 8 and 9", "the minute is 20, the expression wants 0, 15, 30 and 45"],
        ),
        (
            "30 2 * * *",
            datetime.fromisoformat("2027-03-28T02:30"),
            [f"{_GAP}; the occurrence comes when the clock has jumped"],
        ),
        (
            "*/30 * * * *",
            datetime.fromisoformat("2027-03-28T02:30"),
            [f"{_GAP}; the occurrence is skipped"],
        ),
    ],
)  # fmt: skip
def test_why_not(cron: str, at: date, reasons: list[str]) -> None:
    verdict = why(cron, "Europe/Berlin", at)
    assert not verdict.matches
    assert list(verdict.reasons) == reasons


def test_a_time_that_comes_twice() -> None:
    once = why("30 2 * * *", "Europe/Berlin", datetime.fromisoformat("2026-10-25T02:30"))
    twice = why("*/30 * * * *", "Europe/Berlin", datetime.fromisoformat("2026-10-25T02:30"))
    assert once.matches
    assert twice.matches
    assert "only the first time is an occurrence" in once.reasons[0]
    assert "both times are occurrences" in twice.reasons[0]
    assert len(once.occurrences) == 1
    assert len(twice.occurrences) == 2 * 25


@pytest.mark.parametrize("timezone", ["Europe/Berlin", "America/St_Johns", "Pacific/Apia"])
def test_a_date_has_reasons_if_and_only_if_nothing_is_due(timezone: str) -> None:
    chance = random.Random(1)
    for _ in range(200):
        fields = ("0", chance.choice(["5", "*/6"]), *(chance.choice(choices.split()) for choices in _CHOICES))
        cron, day = " ".join(fields), date(2025, 1, 1) + timedelta(days=chance.randrange(1000))
        verdict = why(cron, timezone, day)
        first, last = day_in(timezone, day)
        assert verdict.occurrences == tuple(each for each in occurrences(cron, first, timezone, 9) if each.time <= last)
        assert verdict.matches == bool(verdict.occurrences)
        assert not (verdict.matches and verdict.reasons), (cron, day)
        assert verdict.matches or verdict.reasons or day == date(2011, 12, 30), (cron, day)


_CHOICES = ("* 13 L */2", "* 1-6 2,11", "* 5 1-5 2#2 3L")


def test_mistakes_are_those_of_the_parser() -> None:
    with pytest.raises(ConfigError, match="fields"):
        in_words("0 9 *")
    with pytest.raises(ConfigError, match="tz database"):
        why("0 9 * * *", "Europe/Nowhere", date(2026, 1, 1))
