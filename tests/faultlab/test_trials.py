"""scripts/faults for a few seconds: several faults at a time on each store."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from faultlab.laboratory import Lab
from faultlab.prerequisites import not_run
from faultlab.trials import checker
from faultlab.trials.checker import Bounds
from faultlab.trials.child_faults import Kill, KillFetcher, Misdeeds
from faultlab.trials.database_faults import EndSessions, KillServer, Locked
from faultlab.trials.environment import SHORT, TrialEnvironment
from faultlab.trials.fault import TrialFault
from faultlab.trials.master_faults import Clock, FreezeHost, ImmediateStorm, KillMaster
from faultlab.trials.network_faults import BlackHole, LostAnswers
from faultlab.trials.plan import PlannedFault
from faultlab.trials.trial import Trial, TrialOutcome

pytestmark = pytest.mark.slow

SEED = 20
BOUNDS = Bounds(runs=40)

PLANS: dict[str, list[tuple[float, float, type[TrialFault]]]] = {
    "sqlite": [(0.5, 2, Kill), (0.5, 2, KillFetcher), (1, 2, KillMaster), (0.5, 2, Misdeeds), (3, 1.5, Locked)],
    "mariadb": [(0.5, 2, Kill), (0.5, 1, KillServer), (0.5, 4, Clock), (2, 3, LostAnswers)],
    "postgresql": [(0.5, 5, FreezeHost), (0.5, 2, EndSessions), (1, 4, BlackHole)],
    "redis": [(0.5, 2, ImmediateStorm), (0.5, 1, KillServer), (0.5, 4, Clock), (2, 3, LostAnswers)],
}
"""The faults of each store's trial: when they begin, how long they last (both in seconds), and their kind."""


class Unattended(KillMaster):
    """Kills a master and starts no other, as after a master that has ended by itself."""

    subject = "child"

    def heal(self) -> None:
        """Start no master."""


def run_trial(
    lab: Lab,
    store: str,
    folder: Path,
    plan: Sequence[tuple[float, float, type[TrialFault]]],
    bounds: Bounds = BOUNDS,
    nodes: int = 2,
) -> TrialOutcome:
    """Run a trial of a few seconds. Print the logs if it found violations."""
    steps = [PlannedFault(at, lasts, fault, f"{SEED}/{fault.kind}") for at, lasts, fault in plan]
    with TrialEnvironment(lab, store, folder, nodes=nodes, schedules=SHORT) as environment:
        outcome = Trial(environment, steps, SEED, bounds).run()
        if outcome.violations:
            print(*(node.daemon.log for node in environment.nodes.values()), sep="\n")
    print(outcome)
    return outcome


@pytest.mark.in_suite_on("redis")
@pytest.mark.timeout(150)
@pytest.mark.parametrize("store", PLANS)
def test_no_promise_is_broken_by_several_faults_at_once(store: str, lab: Lab, tmp_path: Path) -> None:
    assert run_trial(lab, store, tmp_path, PLANS[store]).violations == []


def test_a_trial_finds_out_what_a_wrong_clock_does_where_it_decides(lab: Lab, tmp_path: Path) -> None:
    """SQLite has only its host's clock. Therefore its trials have no fault of the clock."""
    if sys.platform != "linux":
        not_run("the clock of a process can be shifted on Linux only")
    outcome = run_trial(lab, "sqlite", tmp_path, [(0.5, 2, Clock)], Bounds(recovery=1.0))
    assert checker.EARLY in {violation.kind for violation in outcome.violations}


def test_a_master_that_ended_by_itself_is_started_again(lab: Lab, tmp_path: Path) -> None:
    plan = [(0.5, 1.0, Unattended)]
    assert run_trial(lab, "sqlite", tmp_path, plan, Bounds(runs=5), nodes=1).violations == []
