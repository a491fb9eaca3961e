"""The heir: a child that gives back what dead workers held when no worker is born to do it. In a child of its own.

It loads no application and polls nothing. It tries once, says so when it has succeeded, and leaves; should the database
not answer, the master ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from psched.config import Settings
from psched.daemon import pipes
from psched.daemon.boot import DeadChild
from psched.daemon.child_process import ChildProcess
from psched.daemon.exit_codes import BOOT_FAILED
from psched.daemon.logs import Log
from psched.daemon.pipes import ChildEnds
from psched.daemon.wording import one_line
from psched.daemon.worksites import Worksite, open_sites
from psched.holder import holder_name

log = logging.getLogger(__name__)


@dataclass(slots=True)
class Heir:
    """The work of an heir."""

    settings: Settings
    dead: Sequence[DeadChild]
    ends: ChildEnds
    _sites: list[Worksite] = field(default_factory=list)

    def prepare(self) -> None:
        """Open the sections' sources. Raises ConfigError."""
        self._sites = open_sites(self.settings, holder_name("lease-recovery"))

    def run(self) -> None:
        """Give back what each of the dead held in each section. Where one fails the others would, too."""
        try:
            for dead in self.dead:
                for site in self._sites:
                    site.give_back(dead)
        except Exception as error:  # noqa: BLE001 – whatever a driver raises, the master learns that it failed
            log.warning("the leases of %s are not given back: %s", dead.holder, one_line(error))
        else:
            self.ends.say(pipes.GAVE_BACK)
        finally:
            for site in self._sites:
                site.source.store.close()

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Do nothing: it is on its way out, and the master bounds its time."""

    def running(self) -> str | None:
        """Nothing runs."""
        return None

    def rested(self) -> bool:
        """Nothing ran."""
        return True

    def trouble(self) -> str | None:
        """It tries once, and leaves."""
        return None

    def own_up(self) -> None:
        """Nothing ran."""


def inherit(settings: Settings, dead: Sequence[DeadChild], log_file: Log, ends: ChildEnds) -> int:
    """Be the heir of `dead`; returns the exit code."""
    child = ChildProcess("lease recovery", settings, ends, log_file)
    child.begin()
    heir = child.boot(lambda: Heir(settings, dead, ends))
    if heir is None:
        return BOOT_FAILED
    heir.run()
    return child.leave()
