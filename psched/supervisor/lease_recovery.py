"""What dead children may still hold in the database, until somebody has given it back. In the master."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial

from psched.child.main import ChildMain
from psched.config import Settings
from psched.execution.sections import OpenSection, open_sections
from psched.process import channel as pipes
from psched.process.channel import BOOT_FAILED, ChildPipe
from psched.process.child_spec import DeadChild
from psched.process.logs import Log, one_line
from psched.store import holder_name
from psched.supervisor.child import ChildProcess
from psched.supervisor.forking import ProcessTable


class DeadChildren:
    """The dead whose leases nobody has given back. The next child to be born takes them over, whatever its slot.

    Where none is born, an heir does (see `executor`).
    """

    def __init__(self) -> None:
        self._unclaimed: list[DeadChild] = []

    @property
    def empty(self) -> bool:
        """Whether there is nothing to take over."""
        return not self._unclaimed

    def leave(self, dead: Iterable[DeadChild]) -> None:
        """Add dead children; also those whose heir died before it had given back."""
        self._unclaimed.extend(dead)

    def claim(self) -> tuple[DeadChild, ...]:
        """Hand all of them to a child that is being born."""
        claimed = tuple(self._unclaimed)
        self._unclaimed.clear()
        return claimed


log = logging.getLogger(__name__)

_LIMIT = 3.0
"""An heir that takes longer has a database that does not answer; a stop waits no longer for it."""
_PAUSE = 5.0
"""Between an heir that failed and the next one, while the master goes on."""


class LeaseRecovery:
    """Forks heirs for the `estate`, one at a time."""

    def __init__(self, dead_children: DeadChildren, process_table: ProcessTable, log_file: Log) -> None:
        self._estate = dead_children
        self._nursery = process_table
        self._log_file = log_file
        self._heir: ChildProcess | None = None
        self._dead: tuple[DeadChild, ...] = ()
        self._due = -math.inf
        """When the heir is killed or, without one, when the next may be born."""

    @property
    def done(self) -> bool:
        """Whether nothing is left to be given back, or to be tried."""
        return self._heir is None and self._estate.empty

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest."""
        return math.inf if self.done else self._due

    def tick(self, now: float, settings: Settings, last: bool) -> None:
        """Watch the heir, or fork one. Call when the slots have had their turn, since a newborn worker comes first.

        `last`: there will be no worker any more. Then an attempt that fails is the last, for those who died meanwhile,
        too, and their leases end by themselves.
        """
        if self._heir is not None:
            self._supervise(self._heir, now, last)
        if self._heir is None and not self._estate.empty and (last or now >= self._due):
            self._fork(now, settings, last)

    def reset_deadlines(self, now: float) -> None:
        """Count no time before `now`."""
        if self._heir is not None:
            self._due = now + _LIMIT

    def _fork(self, now: float, settings: Settings, last: bool) -> None:
        self._dead = self._estate.claim()
        job = partial(recover, settings, self._dead, self._log_file)
        try:
            self._heir = self._nursery.fork("lease recovery", job)
        except OSError as error:
            self._failed(f"cannot fork: {error.strerror}", now, last)
        else:
            self._due = now + _LIMIT
            log.info("%s gives back the leases of %d dead workers", self._heir, len(self._dead))

    def _supervise(self, child: ChildProcess, now: float, last: bool) -> None:
        if child.gone:
            self._heir = None
            if not child.gave_back:
                self._failed(child.why or f"the process for it {child.end}", now, last)
        elif now >= self._due:
            child.kill()
            self._due = now + _PAUSE

    def _failed(self, reason: str, now: float, last: bool) -> None:
        if last:
            self._dead += self._estate.claim()
        outlook = "they end by themselves" if last else "trying again"
        log.warning("leases of %d dead workers are not given back: %s; %s", len(self._dead), reason, outlook)
        if not last:
            self._estate.leave(self._dead)
            self._due = now + _PAUSE


@dataclass(slots=True)
class RecoveryChild:
    """The work of an heir."""

    settings: Settings
    dead: Sequence[DeadChild]
    ends: ChildPipe
    _sites: list[OpenSection] = field(default_factory=list)

    def prepare(self) -> None:
        """Open the sections' sources. Raises ConfigError."""
        self._sites = open_sections(self.settings, holder_name("lease-recovery"))

    def run(self) -> None:
        """Give back what each of the dead held in each section. Where one fails the others would, too."""
        try:
            for dead in self.dead:
                for open_section in self._sites:
                    open_section.give_back(dead)
        except Exception as error:  # noqa: BLE001 – whatever a driver raises, the master learns that it failed
            log.warning("the leases of %s are not given back: %s", dead.holder, one_line(error))
        else:
            self.ends.say(pipes.GAVE_BACK)
        finally:
            for open_section in self._sites:
                open_section.source.store.close()

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Do nothing: it is on its way out, and the master bounds its time."""

    def running(self) -> str | None:
        """Nothing runs."""
        return None

    def was_idle(self) -> bool:
        """Nothing ran."""
        return True

    def trouble(self) -> str | None:
        """It tries once, and leaves."""
        return None

    def report_suspects(self) -> None:
        """Nothing ran."""


def recover(settings: Settings, dead: Sequence[DeadChild], log_file: Log, ends: ChildPipe) -> int:
    """Be the heir of `dead`; returns the exit code."""
    child = ChildMain("lease recovery", settings, ends, log_file)
    child.begin()
    recovery_child = child.boot(lambda: RecoveryChild(settings, dead, ends))
    if recovery_child is None:
        return BOOT_FAILED
    recovery_child.run()
    return child.leave()
