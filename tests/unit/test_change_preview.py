"""The preview of a change: the runs that it adds and removes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psched.insight.change_preview import SPAN, change_preview
from psched.model import NEVER, Rule, ScheduleRow
from psched.schedules.rule_change import moved

NOW = 1_795_424_400.0  # 2026-11-23 09:00 UTC
HOURLY = Rule("0 * * * *", "UTC")


def row_of(rule: Rule, next_time: float = NOW + 3600) -> ScheduleRow:
    time = int(next_time)
    due = time + rule.delay
    return ScheduleRow("k", "a", {}, "waiting", rule=rule, next_time=time, next_run_time=due, version=1)


def changed(row: ScheduleRow, rule: Rule) -> ScheduleRow:
    return moved(replace(row, rule=rule), row.rule, NOW, "vixie")


def test_runs_come_go_and_stay() -> None:
    before = row_of(HOURLY)
    found = change_preview(before, changed(before, Rule("0 */2 * * *", "UTC")), NOW, "vixie")
    assert (found.gained, len(found.lost), found.kept) == ([], 84, 84)
    back = change_preview(found.after, before, NOW, "vixie")
    assert (list(back.gained), back.lost, back.kept) == (list(found.lost), [], 84)
    assert found.until == NOW + SPAN


@pytest.mark.parametrize(("delay", "at_once"), [(60.0, False), (-3600.0, True)])
def test_a_change_that_makes_it_due_runs_at_once(delay: float, at_once: bool) -> None:
    before = row_of(replace(HOURLY, delay=1800), NOW - 600 if not at_once else NOW + 1200)
    after = replace(before, rule=replace(HOURLY, delay=delay), next_run_time=before.next_time + delay)
    found = change_preview(before, after, NOW, "vixie")
    assert found.runs_at_once is (after.next_run_time <= NOW)
    assert (min(found.gained) == NOW) is found.runs_at_once


def test_a_run_in_progress_and_what_is_due_stay() -> None:
    running = replace(row_of(HOURLY, NOW), status="running", settled=False, next_run_time=NOW + 200)
    after = replace(running, rule=Rule("30 * * * *", "UTC"))
    found = change_preview(running, after, NOW, "vixie")
    assert (len(found.gained), len(found.lost), found.runs_at_once) == (168, 168, False)
    assert NOW not in (*found.gained, *found.lost)
    due = row_of(HOURLY, NOW)
    found = change_preview(due, changed(due, Rule("30 * * * *", "UTC")), NOW, "vixie")
    assert (found.runs_at_once, NOW in found.gained) == (False, False)


def test_as_many_runs_are_compared_as_the_rule_allows() -> None:
    before = replace(row_of(replace(HOURLY, max_runs=5)), runs=2)
    found = change_preview(before, replace(before, rule=HOURLY), NOW, "vixie")
    assert (len(found.gained), found.kept) == (165, 3)


def test_a_pause_is_left_out_of_the_comparison() -> None:
    before = replace(row_of(HOURLY), paused_from=NOW - 100, next_run_time=NEVER)
    after = replace(before, rule=Rule("30 * * * *", "UTC"), next_time=before.next_time + 1800)
    found = change_preview(before, after, NOW, "vixie")
    assert (len(found.gained), len(found.lost), found.runs_at_once) == (167, 168, False)


def test_dense_rules_are_compared_for_a_shorter_time() -> None:
    before = row_of(Rule("* * * * * *", "UTC"), NOW + 1)
    found = change_preview(before, replace(before, rule=HOURLY, next_time=int(NOW) + 3600), NOW, "vixie")
    assert found.until == NOW + 5000
    assert len(found.lost) + found.kept == 5000
    assert not found.gained
