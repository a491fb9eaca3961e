"""The rehearsal of a restart: a child that loads the new application, while the old children go on. In the master."""

from __future__ import annotations

from functools import partial

from psched.daemon import child_process
from psched.daemon.child_handle import ChildHandle, Order
from psched.daemon.logs import Log
from psched.daemon.nursery import Nursery
from psched.daemon.plan import Plan


class Probe:
    """One rehearsal of `plan`. After `limit` seconds it has failed."""

    def __init__(self, plan: Plan, nursery: Nursery, log_file: Log, limit: float, now: float) -> None:
        """Raises OSError when the system has no process left."""
        self.plan = plan
        self._limit = limit
        job = partial(child_process.rehearse, plan.application, plan.settings, log_file)
        self._child = nursery.fork("probe", job)
        self._handle = ChildHandle(plan.limits, now)
        self._late = False
        self._over = now + limit

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest, monotonic."""
        return min(self._over, self._handle.deadline)

    def tick(self, now: float) -> bool:
        """Watch the rehearsal; True when it is over."""
        self._handle.hear(self._child.heard)
        if self._child.gone:
            return True
        if self._handle.tick(now) is Order.KILL or now >= self._over:
            self._late = True
            self.abort()
        return False

    def forgive(self, now: float) -> None:
        """Count no silence before `now`."""
        self._handle.hear(now)

    def abort(self) -> None:
        """End it; it holds nothing."""
        self._over = float("inf")
        self._child.kill()

    @property
    def problem(self) -> str | None:
        """Once it is over: why the application cannot be loaded, or None when it can."""
        if self._child.ready:
            return None
        if self._late:
            return f"the application was not loaded within {self._limit:g} s"
        return self._child.why or f"the process that loaded it {self._child.end}"
