"""What the master gives a child at its fork."""

from __future__ import annotations

from dataclasses import dataclass

from psched.application import ApplicationSpec
from psched.config import Settings
from psched.metrics.counter_file import CounterBlock
from psched.process.dead_child import DeadChild
from psched.process.dispatch_socket import DispatchSocket
from psched.process.running_table import RunningTable

FETCHER_SLOT = 0
"""The number of the fetching child's slot."""
FIRST_SLOT = 1
"""The number of the slot whose child does the work that each node needs once, such as alerts."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """What the master tells one child of a slot.

    - `holder`: the holder of the child's leases. Children with the same dispatch socket share it.
    - `name`: the name of this child only.
    - `dead`: the dead children whose leases this child must release first.
    - `running_table`: the table of this child's runs. The master also reads it after the child's death.
    - `dispatch`: the socket over which the fetching child sends tasks to its siblings. None: the child polls for
      itself.
    - `siblings`: the names of the living children with the same dispatch socket.
    - `claimer`: under this name a child of the slot claims alerts and events; see `AlertAndEventThreads`.
    - `counters`: the block for the child's counters, if any.
    - `applies_schedules`: whether the child applies the schedules that the application declares (`apply_at_start`).
      True until a child of the slot has applied them after a start or a reload of the master.
    """

    slot: int
    settings: Settings
    application: ApplicationSpec
    holder: str
    dead: tuple[DeadChild, ...]
    running_table: RunningTable
    name: str
    dispatch: DispatchSocket | None
    siblings: tuple[str, ...]
    claimer: str
    counters: CounterBlock | None = None
    applies_schedules: bool = False
