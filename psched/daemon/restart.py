"""A restart up to the point of no return: new plan, its libraries, its rehearsal, its log. Until then nothing changes.

In the master. The configuration's loader is the only code of the user's that runs there.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from psched.daemon.logs import Log
from psched.daemon.nursery import Nursery
from psched.daemon.plan import Plan
from psched.daemon.preload import preload
from psched.daemon.probe import Probe
from psched.errors import ConfigError

log = logging.getLogger(__name__)


class Restart:
    """Rehearses restarts, one at a time. `limit`: seconds that loading the application may take."""

    def __init__(self, make_plan: Callable[[], Plan], nursery: Nursery, log_file: Log, limit: float) -> None:
        self._make_plan = make_plan
        self._nursery = nursery
        self._log_file = log_file
        self._limit = limit
        self._probe: Probe | None = None
        self.immediate = False
        """Whether running tasks are to be given back when it succeeds."""
        self.refusal: str | None = None
        """Why the last rehearsal, once it is over, has led to nothing; None when it has succeeded."""

    @property
    def active(self) -> bool:
        """Whether a rehearsal is on."""
        return self._probe is not None

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest, monotonic."""
        return float("inf") if self._probe is None else self._probe.deadline

    def begin(self, immediate: bool, now: float) -> bool:
        """Load the configuration and begin the rehearsal; False, and a line in the log, when that fails already.

        A restart asked for during another one starts it afresh: the files may have changed once more.
        """
        self.immediate = immediate or (self.active and self.immediate)
        self.abort("another reload was asked for")
        try:
            plan = self._make_plan()
            preload(plan.settings)
            self._probe = Probe(plan, self._nursery, self._log_file, self._limit, now)
            self.refusal = None
        except (ConfigError, OSError) as error:
            self.refusal = str(error)
            log.error("not restarted: %s; everything goes on as it was", error)
        except (Exception, SystemExit) as error:
            self.refusal = f"loading the configuration failed: {error!r}"
            log.error(
                "not restarted: loading the configuration failed: %r; everything goes on as it was",
                error,
                exc_info=error,
            )
        return self.active

    def tick(self, now: float) -> Plan | None:
        """Watch the rehearsal and return the plan when it has succeeded; the log is then where the plan says."""
        probe = self._probe
        if probe is None or not probe.tick(now):
            return None
        self._probe = None
        problem = probe.problem
        if problem is None:
            problem = self._move_log(probe.plan)
        self.refusal = problem
        if problem is None:
            return probe.plan
        log.error("not restarted: %s; the old workers go on", problem)
        return None

    def forgive(self, now: float) -> None:
        """Count no silence before `now`."""
        if self._probe is not None:
            self._probe.forgive(now)

    def abort(self, why: str) -> None:
        """End a rehearsal without a result."""
        probe, self._probe = self._probe, None
        if probe is not None:
            self.refusal = why
            probe.abort()

    def _move_log(self, plan: Plan) -> str | None:
        if plan.settings.log == self._log_file.path:
            return None
        try:
            self._log_file.move(plan.settings.log)
        except ConfigError as error:
            return str(error)
        return None
