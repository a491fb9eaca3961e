"""The data that the master gives a child at its fork (`ChildSpec`), and the base class of its work (`ChildRole`)."""

from __future__ import annotations

from dataclasses import dataclass

from psched.application import ApplicationSpec
from psched.config import Settings
from psched.model import WORKER_DIED
from psched.process.child_protocol import RunningTable
from psched.process.poll_election import PollElection

FIRST_SLOT = 1
"""The slot of the child that does the work needed once per node, such as alerts."""


@dataclass(frozen=True, slots=True)
class DeadChild:
    """A dead child: the holder of its leases, the tasks it ran (`section:key`), and the error recorded with them."""

    holder: str
    running: tuple[str, ...] = ()
    error: str = WORKER_DIED


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """One child of a slot.

    `holder` names it on its leases and is never used twice. `dead` are the children whose leases it releases first.
    `running_table` is its own; the master reads it also after the child's death. `election` picks one idle child of the
    same configuration to poll for all; None: each child polls for itself.
    """

    slot: int
    settings: Settings
    application: ApplicationSpec
    holder: str
    dead: tuple[DeadChild, ...]
    running_table: RunningTable
    election: PollElection | None


class ChildRole:
    """The work of a child. This base class does nothing: it is the role of a dry run."""

    def prepare(self) -> None:
        """Check the conditions of the work. Raises ConfigError."""

    def run(self) -> ChildRole | None:
        """Work in the main thread until stopped or done. Returns the role that follows, if there is one."""
        return None

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
