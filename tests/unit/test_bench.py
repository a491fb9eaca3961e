"""What the benchmark says of its own figures."""

from __future__ import annotations

import pytest

from tests.bench.__main__ import WORKLOADS
from tests.bench.goals import GOALS, Goal
from tests.bench.peers.contenders import PEERS
from tests.bench.report import Record

KEY = ("functions", "sqlite")
MEASURED = {
    (workload.name, store, contender.name)
    for workload in WORKLOADS
    for contender in (*workload.contenders, *PEERS.get(workload.name, ()))
    for store in contender.stores
}


@pytest.mark.parametrize("goal", GOALS, ids=lambda goal: f"{goal.workload}-{goal.store}-{goal.metric}")
def test_each_goal_is_about_what_is_measured(goal: Goal) -> None:
    assert (goal.workload, goal.store, goal.contender) in MEASURED
    assert goal.against is None or (goal.workload, goal.store, goal.against) in MEASURED
    assert (goal.at_least is None) != (goal.at_most is None)


@pytest.mark.parametrize(("mine", "reached"), [(8.0, True), (7.9, False)])
def test_a_goal_is_judged_by_the_ratio_in_the_same_run(mine: float, reached: bool) -> None:
    goal = Goal(*KEY, "tasks/s", at_least=8, against="huey")
    medians = {(*KEY, "psched", "tasks/s"): mine * 100, (*KEY, "huey", "tasks/s"): 100.0}
    assert goal.reached(medians) == (mine, reached)


@pytest.mark.parametrize(("mine", "reached"), [(100.0, True), (100.1, False)])
def test_a_bound_is_not_to_be_exceeded(mine: float, reached: bool) -> None:
    goal = Goal(*KEY, "last ms", at_most=100)
    assert goal.reached({(*KEY, "psched", "last ms"): mine}) == (mine, reached)


def test_a_goal_against_who_was_not_measured_is_neither_reached_nor_missed() -> None:
    goal = Goal(*KEY, "tasks/s", at_least=8, against="huey")
    assert goal.reached({(*KEY, "psched", "tasks/s"): 1.0}) is None


def test_the_report_shows_median_and_range() -> None:
    record = Record()
    for value in (3.0, 1.0, 2.0):
        record.add(*KEY, "psched", {"tasks/s": value})
    lines = list(record.as_text())
    assert any("| 2 | 1 – 3 |" in line for line in lines)
