"""The plan of a trial: which faults happen, and when. Depends on the seed only. Runs in the test process."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from faultlab.trials import (
    child_faults,
    database_faults,
    disk_faults,
    master_faults,
    network_faults,
    replica_faults,
    row_faults,
)
from faultlab.trials.fault import TrialFault
from psched.clock import Clock, boottime

FAULTS: tuple[type[TrialFault], ...] = (
    child_faults.Kill,
    child_faults.Freeze,
    child_faults.Memory,
    child_faults.Descriptors,
    child_faults.Misdeeds,
    child_faults.KillFetcher,
    child_faults.FreezeFetcher,
    master_faults.KillMaster,
    master_faults.FreezeHost,
    master_faults.FreezeMaster,
    master_faults.GracefulStorm,
    master_faults.ImmediateStorm,
    master_faults.Restarts,
    master_faults.Replace,
    master_faults.Clock,
    master_faults.Drift,
    database_faults.KillServer,
    database_faults.StopServer,
    database_faults.Away,
    database_faults.FreezeServer,
    database_faults.EndSessions,
    database_faults.ReadOnly,
    database_faults.Taken,
    database_faults.Locked,
    database_faults.Deadlocks,
    network_faults.Cut,
    network_faults.Gone,
    network_faults.BlackHole,
    network_faults.Delay,
    network_faults.LostAnswers,
    row_faults.BadRows,
    replica_faults.KillMember,
    replica_faults.FreezeMember,
    replica_faults.FailOver,
    disk_faults.DiskFull,
)

PAUSE = 6.0
"""Seconds from the end of one fault, or of several simultaneous faults, to the next."""
BEFORE = 3.0
"""Seconds before the first fault."""


@dataclass(frozen=True)
class PlannedFault:
    """A planned fault.

    `at`: seconds from the start of the trial to the beginning of the fault. `lasts`: its duration in seconds.
    """

    at: float
    lasts: float
    fault: type[TrialFault]
    seed: str

    @property
    def until(self) -> float:
        """When the fault is healed, in seconds from the start of the trial."""
        return self.at + self.lasts

    def __str__(self) -> str:
        return f"{self.at:6.1f} s for {self.lasts:4.1f} s  {self.fault.kind}"


class Pace:
    """The clock of a plan. If the test process is delayed, this clock waits, so that steps keep their distances."""

    def __init__(self, longest: float, clock: Clock = boottime) -> None:
        """`longest`: the maximum number of seconds by which the clock advances between two looks."""
        self._longest = longest
        self._clock = clock
        self._looked = clock()
        self._now = 0.0

    def now(self) -> float:
        """Return the seconds since the start of the plan."""
        looked = self._clock()
        self._now += min(looked - self._looked, self._longest)
        self._looked = looked
        return self._now


def plan(seed: int, seconds: float, faults: Sequence[type[TrialFault]], pause: float = PAUSE) -> list[PlannedFault]:
    """Return the steps of a trial: each fault alone, then several at the same time, and so on for `seconds`."""
    steps: list[PlannedFault] = []
    at = BEFORE
    for group in _groups(random.Random(seed), faults):
        dice = random.Random(f"{seed}/{len(steps)}")
        together = [_step(dice, at, fault, f"{seed}/{len(steps)}/{fault.kind}") for fault in group]
        at = max(step.until for step in together) + pause
        if at - pause > seconds:
            return steps
        steps += together
    return steps


def _groups(rng: random.Random, faults: Sequence[type[TrialFault]]) -> Iterator[list[type[TrialFault]]]:
    while faults:
        for fault in rng.sample(faults, len(faults)):
            yield [fault]
        for _ in range(len(faults) if len({fault.subject for fault in faults}) > 1 else 0):
            yield _mixed(rng, faults)


def _mixed(rng: random.Random, faults: Sequence[type[TrialFault]]) -> list[type[TrialFault]]:
    """Return two or three faults of different subjects."""
    subjects = sorted({fault.subject for fault in faults})
    chosen = rng.sample(subjects, min(len(subjects), rng.choice([2, 2, 3])))
    return [rng.choice([fault for fault in faults if fault.subject == subject]) for subject in chosen]


def _step(dice: random.Random, at: float, fault: type[TrialFault], seed: str) -> PlannedFault:
    return PlannedFault(round(at + dice.uniform(0, 1), 1), round(dice.uniform(*fault.lasts), 1), fault, seed)
