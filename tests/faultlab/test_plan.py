"""A seed decides the plan of a trial. Each fault first comes alone, and no two faults touch one subject at a time."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from faultlab.trials.plan import FAULTS, PAUSE, Pace, PlannedFault, plan

seeds = st.integers(0, 10**6)
LONG = 1200.0


@settings(max_examples=20)
@given(seeds)
def test_the_same_seed_makes_the_same_plan(seed: int) -> None:
    assert plan(seed, LONG, FAULTS) == plan(seed, LONG, FAULTS)


def test_another_seed_makes_another_plan() -> None:
    plans = {tuple(step.fault for step in plan(seed, 60, FAULTS)) for seed in range(20)}
    assert len(plans) == 20


@settings(max_examples=20)
@given(seeds)
def test_each_fault_is_done_alone_first(seed: int) -> None:
    alone = plan(seed, LONG, FAULTS)[: len(FAULTS)]
    assert {step.fault for step in alone} == set(FAULTS)
    assert all(later.at > earlier.until + PAUSE - 0.2 for earlier, later in pairwise(alone))


@settings(max_examples=20)
@given(seeds)
def test_two_faults_at_a_time_never_strike_the_same(seed: int) -> None:
    steps = plan(seed, LONG, FAULTS)
    mixed = [(one, other) for one in steps for other in steps if one is not other and at_once(one, other)]
    assert mixed
    assert all(one.fault.subject != other.fault.subject for one, other in mixed)


@settings(max_examples=20)
@given(seeds, st.floats(10, LONG))
def test_every_fault_is_healed_in_time(seed: int, seconds: float) -> None:
    steps = plan(seed, seconds, FAULTS)
    assert all(step.until <= seconds for step in steps)
    assert all(step.fault.lasts[0] <= step.lasts <= step.fault.lasts[1] for step in steps)


def test_faults_have_names_of_their_own() -> None:
    assert len({fault.kind for fault in FAULTS}) == len(FAULTS)


def test_a_plan_waits_for_a_laboratory_that_is_held_up() -> None:
    looks = iter([100.0, 100.2, 130.2, 130.3])
    pace = Pace(0.5, lambda: next(looks))
    assert [round(pace.now(), 1) for _ in range(3)] == [0.2, 0.7, 0.8]


def at_once(one: PlannedFault, other: PlannedFault) -> bool:
    return one.at <= other.until and other.at <= one.until
