"""What a child is told at its birth. Made by the master for each fork, read in the child."""

from __future__ import annotations

from dataclasses import dataclass

from psched.application import ApplicationSpec
from psched.config import Settings
from psched.model import WORKER_DIED
from psched.process.poll_election import PollElection
from psched.process.running_table import RunningTable


@dataclass(frozen=True, slots=True)
class DeadChild:
    """A child that is gone for certain: the name its leases carry, and what it was running (`section:key`).

    `error` is kept with what it was running.
    """

    holder: str
    running: tuple[str, ...] = ()
    error: str = WORKER_DIED


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One incarnation of the child in a slot.

    `holder` names it on its leases and is never used twice. `dead` are predecessors whose leases it is to give back.
    `board` is its own: the master reads there what it runs, also after its death. `watch` is that of all children of
    its generation; None when each looks for itself.
    """

    slot: int
    settings: Settings
    application: ApplicationSpec
    holder: str
    dead: tuple[DeadChild, ...]
    running_table: RunningTable
    watch: PollElection | None
