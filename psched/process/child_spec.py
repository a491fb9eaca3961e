"""What the master gives a child at its fork, and what it knows of a dead child."""

from __future__ import annotations

from dataclasses import dataclass

from psched.application import ApplicationSpec
from psched.config import Settings
from psched.metrics.counter_file import CounterBlock
from psched.model import WORKER_DIED
from psched.process.dispatch_socket import DispatchSocket
from psched.process.running_table import RunningTable

FETCHER_SLOT = 0
"""The number of the fetching child's slot."""
FIRST_SLOT = 1
"""The number of the slot whose child does the work that each node needs once, such as alerts."""


@dataclass(frozen=True, slots=True)
class DeadChild:
    """A dead child whose leases another process must release.

    - `holder`: the holder of its leases.
    - `running`: the tasks that the child ran, as `section:key`.
    - `error`: the error to record with these tasks.
    - `child`: the name of the child; empty if no other child has the same holder.
    - `claims`: for each of `running`, the number of the acquire (`Lease.claim`).
    - `is_fetcher`: whether this was a fetching child. Only the next fetching child finds the leases that a dead
      fetching child had.
    """

    holder: str
    running: tuple[str, ...] = ()
    error: str = WORKER_DIED
    child: str = ""
    claims: tuple[int, ...] = ()
    is_fetcher: bool = False

    def suspects(self, section: str) -> list[str]:
        """Return the keys of the tasks that the child ran in `section`."""
        prefix = f"{section}:"
        return [name.removeprefix(prefix) for name in self.running if name.startswith(prefix)]

    def own_claims(self, section: str) -> dict[str, int] | None:
        """Return the leases to release for the child in `section`: None for all leases of its holder.

        If other children have the same holder, return only the leases of the tasks that the child ran: the keys, each
        with the number of its acquire, because another child may have acquired the same key since.
        """
        if not self.child:
            return None
        prefix = f"{section}:"
        runs = zip(self.running, self.claims, strict=True)
        return {name.removeprefix(prefix): claim for name, claim in runs if name.startswith(prefix)}


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
    - `counters`: the block for the child's counters, if any.
    - `applies_schedules`: whether the child applies the schedules that the application declares (`apply_at_start`).
      True until a child of the slot has done so since the master started or reloaded its configuration.
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
    counters: CounterBlock | None = None
    applies_schedules: bool = False
