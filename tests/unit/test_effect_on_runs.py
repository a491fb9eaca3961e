"""The runs that a plan adds and removes, computed for many schedules with the same rules."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psched.model import Rule, ScheduleRow
from psched.schedules import rule_occurrences
from psched.schedules_file.effect_on_runs import SPAN, RunTimeComparison

NOW = 1_795_424_400.5  # 2026-11-23 09:00 UTC


def row_of(cron: str, delay: float = 0, ahead: float = 0) -> ScheduleRow:
    rule = Rule(cron, "Europe/Berlin", delay)
    time = rule_occurrences.first_time(rule, NOW - delay + ahead, "vixie")
    return ScheduleRow("k", "a", {}, "waiting", rule=rule, next_time=time, next_run_time=time + delay)


@pytest.mark.parametrize("ahead", [0, 90_000, 2 * SPAN])
@pytest.mark.parametrize("delay", [0, 90, -90])
@pytest.mark.parametrize("cron", ["0 3 * * *", "* * * * *", "@every 30s", "*/10 * * * * *", "0 0 1 1 *"])
def test_a_new_schedule_gains_its_runs_of_the_next_days(cron: str, delay: float, ahead: float) -> None:
    row = row_of(cron, delay, ahead)
    comparison = RunTimeComparison(NOW, "vixie")
    comparison.crowded_minutes([row], [row])  # shares what it lists with `effect`
    until = int(NOW + SPAN - delay)
    count = rule_occurrences.count(row.rule, row.next_time - 1, until, "vixie")
    gained = comparison.effect(None, row).gained
    assert gained.count == count
    first = rule_occurrences.times(row.rule, row.next_time, min(count, 3), "vixie")
    assert gained.first == tuple(time + delay for time in first)


@pytest.mark.parametrize(("interval", "is_exact"), [("30s", True), ("29s", False)])
def test_rules_with_few_runs_are_compared_run_by_run(interval: str, is_exact: bool) -> None:
    found = RunTimeComparison(NOW, "vixie").effect(row_of(f"@every {interval}"), row_of("@every 1h"))
    assert (found.gained.exact, found.lost.exact) == (is_exact, is_exact)
    assert found.gained.count == (0 if is_exact else 168)


def test_equal_schedules_gain_and_lose_nothing_and_others_have_their_own_effect() -> None:
    comparison = RunTimeComparison(NOW, "vixie")
    hourly, limited = row_of("0 * * * *"), row_of("0 * * * *")
    limited = replace(limited, rule=replace(limited.rule, max_runs=5), runs=2)
    assert comparison.effect(hourly, hourly).gained.count == 0
    assert comparison.effect(hourly, limited).lost.count == 165
    assert comparison.effect(None, replace(limited, runs=4)).gained.count == 1
    assert comparison.effect(None, replace(hourly, paused_from=NOW)).gained.count == 0
    assert comparison.effect(None, row_of("0 * * * *", 60)).gained.first[0] == hourly.next_time - 3600 + 60
