"""The forecast adds up the occurrences of all rules, and counts those of equal rules once."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import pytest

from psched import cron
from psched.cron import CronDialect
from psched.insight.forecast import forecast, short_number, starts_per_hour
from psched.model import Rule
from psched.schedules import rule_occurrences
from psched.store.counts import RuleUse

BEGIN = 1_795_424_400  # 2026-11-23 09:00 UTC


def unknown(keys: Collection[str]) -> Mapping[str, Sequence[float]]:
    return {}


def listed(rule: Rule, hours: int) -> dict[int, int]:
    """Return the occurrences in each hour, like the forecast, but by listing every occurrence."""
    found: dict[int, int] = {}
    time = int(BEGIN - rule.delay) - 10
    while (time := cron.next_time(rule.cron, time, rule.timezone)) + rule.delay < BEGIN + hours * 3600:
        if time + rule.delay >= BEGIN:
            hour = int(time + rule.delay - BEGIN) // 3600
            found[hour] = found.get(hour, 0) + 1
    return found


@pytest.mark.parametrize(
    "rule",
    [
        Rule("* * * * *", "UTC"),
        Rule("*/7 9-17 * * 1-5", "Asia/Kolkata"),
        Rule("*/10 * * * * *", "America/St_Johns"),
        Rule("30 2 * * *", "Europe/Berlin"),
        Rule("0 * * * *", "UTC", 1800),
        Rule("0 * * * *", "UTC", -1800.5),
        Rule("15 3 1 1 *", "UTC"),
    ],
    ids=str,
)
def test_starts_are_those_of_the_occurrences(rule: Rule) -> None:
    assert dict(starts_per_hour(rule, rule.delay, BEGIN, 60, "vixie")) == listed(rule, 60)


def test_a_week_with_a_clock_change_has_all_its_starts() -> None:
    spring = 1_774_652_400  # 2026-03-27 23:00 UTC
    daily = Rule("30 2 * * *", "Europe/Berlin")
    assert sum(starts_per_hour(daily, 0, spring, 168, "vixie").values()) == 7


def test_equal_rules_are_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[str] = []
    real = rule_occurrences.count

    def count(rule: Rule, after: int, until: int, dialect: CronDialect) -> int:
        counted.append(rule.cron)
        return real(rule, after, until, dialect)

    monkeypatch.setattr(rule_occurrences, "count", count)
    uses = [RuleUse(Rule("0 4 * * *", "UTC"), type_, 500, f"{type_}{n}") for n in range(20) for type_ in ("a", "b")]
    found = forecast(uses, BEGIN, 24, "vixie", unknown)
    assert counted == ["0 4 * * *"]
    assert (found.schedules, sum(hour.starts for hour in found.hours)) == (20_000, 20_000)
    assert [hour.starts for hour in found.hours].index(20_000) == 19


def test_busy_workers_are_starts_times_the_mean_of_the_last_runs() -> None:
    asked: list[Collection[str]] = []

    def durations(keys: Collection[str]) -> Mapping[str, Sequence[float]]:
        asked.append(keys)
        return {"short": [20.0, 40.0], "long": [5400.0], "never ran": []}

    uses = [
        RuleUse(Rule("* * * * *", "UTC"), "quick", 2, "short"),
        RuleUse(Rule("0 10 * * *", "UTC"), "slow", 4, "long"),
        RuleUse(Rule("30 10 * * *", "UTC"), "new", 1, "never ran"),
    ]
    found = forecast(uses, BEGIN, 4, "vixie", durations)
    assert [hour.starts for hour in found.hours] == [120, 125, 120, 120]
    assert [hour.busy for hour in found.hours] == [pytest.approx(each) for each in (1, 5, 3, 1)]
    assert found.unmeasured == ["new"]
    assert asked == [["short", "long", "never ran"]]


def test_a_type_is_measured_although_most_of_its_schedules_never_ran() -> None:
    def durations(keys: Collection[str]) -> Mapping[str, Sequence[float]]:
        return {key: [1800.0] for key in keys if key == "feed 9"}

    uses = [RuleUse(Rule(f"{number} 10 * * *", "UTC"), "feed", 1, f"feed {number}") for number in range(10)]
    found = forecast(uses, BEGIN, 4, "vixie", durations)
    assert not found.unmeasured
    assert [hour.busy for hour in found.hours] == [0, 5, 0, 0]


def test_few_schedules_of_each_of_many_types_are_measured() -> None:
    asked: list[Collection[str]] = []

    def durations(keys: Collection[str]) -> Mapping[str, Sequence[float]]:
        asked.append(keys)
        return {}

    rules = [Rule(f"{minute} 10 * * *", "UTC") for minute in range(5)]
    uses = [RuleUse(rule, f"type {n}", 1, f"{n} at {rule.cron}") for n in range(200) for rule in rules]
    forecast(uses, BEGIN, 4, "vixie", durations)
    assert [len(keys) for keys in asked] == [300]


def test_a_broken_rule_is_counted_and_left_out() -> None:
    uses = [
        RuleUse(Rule("61 * * * *", "UTC"), "a", 3, "broken"),
        RuleUse(Rule("0 * * * *", "Nowhere"), "a", 1, "lost"),
        RuleUse(Rule("0 * * * *", "UTC"), "a", 1, "right"),
    ]
    found = forecast(uses, BEGIN, 2, "vixie", unknown)
    assert (found.schedules, found.unusable) == (5, 4)
    assert [hour.starts for hour in found.hours] == [1, 1]
    assert [hour.busy for hour in found.hours] == [None, None]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "·"),
        (0.04, "0.1"),
        (9.9, "9.9"),
        (12, "12"),
        (999.6, "1000"),
        (999_499, "999k"),
        (999_500, "1M"),
        (2e6, "2M"),
    ],
)
def test_a_short_number_has_at_most_four_characters(value: float, text: str) -> None:
    assert short_number(value) == text
