"""Crowded minutes and clock changes of the next week, according to the rules of the schedules."""

from __future__ import annotations

import pytest

from psched.insight.week_ahead import WeekAhead, week_ahead
from psched.model import Rule
from psched.store.counts import RuleUse

BEGIN = 1_795_424_400  # 2026-11-23 09:00 UTC
SPRING = 1_774_652_400  # 2026-03-27 23:00 UTC, before the clocks of Europe are put forward
AUTUMN = 1_792_792_800  # 2026-10-24 00:00 in Berlin, before they are put back


def week(*uses: tuple[Rule, str, int], begin: int = BEGIN) -> WeekAhead:
    made = [RuleUse(rule, type_, count, f"{type_}-key") for rule, type_, count in uses]
    return week_ahead(made, begin, "vixie", lambda _: {})


def test_schedules_that_begin_together_make_a_crowded_minute() -> None:
    found = week(
        (Rule("0 3 * * *", "UTC"), "report", 214),
        (Rule("0 4 * * *", "Europe/Berlin"), "backup", 6),
        (Rule("30 12 * * 1", "UTC", 60), "bill", 20),
        (Rule("17 * * * *", "UTC"), "sync", 3),
        (Rule("0 3 * * *", "UTC", spread=600), "mail", 1000),
        (Rule("* * * * *", "UTC"), "poll", 50),
    )
    nightly, weekly = found.crowded_minutes
    assert (nightly.time, nightly.starts, nightly.days) == (BEGIN + 18 * 3600, 220, 7)
    assert (nightly.types, nightly.keys) == ([("report", 214), ("backup", 6)], ["report-key", "backup-key"])
    assert (weekly.starts, weekly.days, weekly.time % 3600) == (20, 1, 31 * 60)
    assert found.dense == 50


@pytest.mark.parametrize(("beside", "least", "most"), [(0, 22, 45), (100, 122, 145)])
def test_a_spread_lowers_the_fullest_minute(beside: int, least: int, most: int) -> None:
    uses = [(Rule("0 3 * * *", "UTC"), "report", 214), (Rule("5 3 * * *", "UTC"), "other", beside)]
    found = week(*uses[: 1 + bool(beside)])
    assert least <= found.crowded_minutes[0].spread[600] <= most
    assert found.crowded_minutes[0].spread[3600] <= found.crowded_minutes[0].spread[600]


def test_the_estimate_is_close_to_what_keys_give() -> None:
    rule = Rule("0 3 * * *", "UTC", spread=600)
    minutes = [int(rule.delay_of(f"customer-{number}")) // 60 for number in range(214)]
    fullest = max(map(minutes.count, range(10)))
    assert abs(week((Rule("0 3 * * *", "UTC"), "report", 214)).crowded_minutes[0].spread[600] - fullest) <= 8


def test_clock_changes_are_told_with_what_they_do() -> None:
    found = week(
        (Rule("30 2 * * *", "Europe/Berlin"), "a", 3),
        (Rule("30 2 * * *", "Europe/Madrid"), "b", 2),
        (Rule("*/30 2 * * *", "Europe/Berlin"), "c", 1),
        (Rule("0 12 * * *", "Europe/Berlin"), "d", 4),
        (Rule("30 2 * * *", "UTC"), "e", 9),
        begin=SPRING,
    )
    [change] = found.changes
    assert (change.time, change.before, change.after) == (SPRING + 26 * 3600, 3600, 7200)
    assert (change.zones, change.schedules) == (["Europe/Berlin", "Europe/Madrid"], 10)
    late, skipped = change.notes
    assert (late.count, late.text) == (5, "runs late: 02:30 does not exist")
    assert skipped.count == 1
    assert skipped.text.startswith("skipped 2026-03-29 02:00 and later")
    [change] = week((Rule("30 2 * * *", "Europe/Berlin"), "a", 3), begin=AUTUMN).changes
    assert [note.text for note in change.notes] == ["runs once, though 02:30 comes twice"]


def test_what_takes_too_long_to_count_is_left_out_and_told() -> None:
    uses = [RuleUse(Rule(f"{n} 2 * * *", "Europe/Berlin"), "a", n + 1, f"k{n}") for n in range(20)]
    found = week_ahead(uses, SPRING, "vixie", lambda _: {}, seconds=-1)
    assert (found.forecast.schedules, found.forecast.uncounted, found.crowded_minutes, found.changes) == (
        0,
        210,
        [],
        [],
    )
    found = week_ahead(uses, SPRING, "vixie", lambda _: {}, seconds=60)
    assert (found.forecast.schedules, found.forecast.uncounted) == (210, 0)
    assert [change.unexamined for change in found.changes] == [0]


def test_rules_that_cannot_be_used_are_left_out() -> None:
    found = week((Rule("0 3 * * *", "Mars/Phobos"), "a", 300), (Rule("61 * * * *", "UTC"), "b", 300))
    assert (found.crowded_minutes, found.changes, found.forecast.unusable) == ([], [], 600)
