"""The data that the master gives a child at its fork (`ChildSpec`), and the base class of its work (`ChildRole`)."""

from __future__ import annotations

from dataclasses import dataclass

from psched.application import ApplicationSpec
from psched.config import Settings
from psched.metrics.counter_file import CounterBlock
from psched.model import WORKER_DIED
from psched.process.child_protocol import RunningTable
from psched.process.dispatch_socket import DispatchSocket

FETCHER_SLOT = 0
"""The slot of the fetching child, which has no handlers."""
FIRST_SLOT = 1
"""The slot of the child that does the work needed once per node, such as alerts."""


@dataclass(frozen=True, slots=True)
class DeadChild:
    """A dead child: the holder of its leases, the tasks it ran (`section:key`), and the error recorded with them.

    `child`: its name; empty if no other child has the holder.
    """

    holder: str
    running: tuple[str, ...] = ()
    error: str = WORKER_DIED
    child: str = ""

    def suspects(self, section: str) -> list[str]:
        """Return the keys of the tasks that it ran in `section`."""
        prefix = f"{section}:"
        return [name.removeprefix(prefix) for name in self.running if name.startswith(prefix)]


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child of a slot.

    `holder` is written with its leases. Children with one dispatch socket share it. `name` is used for one child only.
    `dead` are the children whose leases it releases first. `running_table` is its own; the master reads it also after
    the child's death. Over `dispatch` the fetching child hands tasks to its siblings; None: the child fetches for
    itself. `siblings`: the names of the living children with this dispatch socket. `counters`: what it counts in.
    `is_first`: no child of the slot was ready since the master started or reloaded its configuration.
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
    is_first: bool = False


class ChildRole:
    """The work of a child. This base class does nothing: it is the role of a dry run."""

    def prepare(self) -> None:
        """Check the conditions of the work. Raises ConfigError."""

    def run(self) -> None:
        """Work in the main thread until stopped or done."""

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Stop after the running tasks, or `immediate`: within `grace` seconds.

        Called in the control thread, perhaps several times; returns at once.
        """

    def running(self) -> str | None:
        """Return the types or keys of the running tasks for the process title; None when idle. Any thread."""

    def was_idle(self) -> bool:
        """Return whether nothing was run since the last call. Called in one thread."""
        return True

    def trouble(self) -> str | None:
        """Return why the child cannot work at present, such as a database that does not answer. Any thread."""

    def report_suspects(self) -> None:
        """Write the started and unsettled tasks into the running table, as suspects for the death of the process."""
