"""Sees that what dead children held is given back although no worker is being born to do it. In the master.

So it is when the master stops, or has become smaller, or a slot waits before its next child. Times are monotonic
seconds, and nothing here waits.
"""

from __future__ import annotations

import logging
import math
from functools import partial

from psched.config import Settings
from psched.daemon import heir
from psched.daemon.boot import DeadChild
from psched.daemon.estate import Estate
from psched.daemon.forked import Forked
from psched.daemon.logs import Log
from psched.daemon.nursery import Nursery

log = logging.getLogger(__name__)

_LIMIT = 3.0
"""An heir that takes longer has a database that does not answer; a stop waits no longer for it."""
_PAUSE = 5.0
"""Between an heir that failed and the next one, while the master goes on."""


class Executor:
    """Forks heirs for the `estate`, one at a time."""

    def __init__(self, estate: Estate, nursery: Nursery, log_file: Log) -> None:
        self._estate = estate
        self._nursery = nursery
        self._log_file = log_file
        self._heir: Forked | None = None
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
            self._tend(self._heir, now, last)
        if self._heir is None and not self._estate.empty and (last or now >= self._due):
            self._fork(now, settings, last)

    def forgive(self, now: float) -> None:
        """Count no time before `now`."""
        if self._heir is not None:
            self._due = now + _LIMIT

    def _fork(self, now: float, settings: Settings, last: bool) -> None:
        self._dead = self._estate.claim()
        job = partial(heir.inherit, settings, self._dead, self._log_file)
        try:
            self._heir = self._nursery.fork("lease recovery", job)
        except OSError as error:
            self._failed(f"cannot fork: {error.strerror}", now, last)
        else:
            self._due = now + _LIMIT
            log.info("%s gives back the leases of %d dead workers", self._heir, len(self._dead))

    def _tend(self, child: Forked, now: float, last: bool) -> None:
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
