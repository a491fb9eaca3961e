"""A child on standby: its application is loaded, but it opens no store until a sibling wakes it.

The first use of a store costs a connection, a tenth of a second and many megabytes of memory that was shared until
then. So only the first child of a master works from the start. The others begin when a sibling wakes them, or when no
sibling polls.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from functools import partial

from psched.application import load
from psched.child.worker import ChildWorker
from psched.clock import monotonic
from psched.errors import ConfigError
from psched.execution.stop_event import StopEvent
from psched.process.child_protocol import BOOT_FAILED, DONE, EMPTY, START_ERROR, ChildPipe
from psched.process.child_role import FIRST_SLOT, ChildRole, ChildSpec
from psched.process.poll_election import ElectionMember

log = logging.getLogger(__name__)

_PATIENCE = 1.0
"""Seconds at the most in which a sibling that starts at the same time may become the polling child."""


class StandbyChild(ChildRole):
    """Waits until it is needed; the `ChildWorker` that `make` returns follows."""

    def __init__(
        self,
        members: Sequence[ElectionMember],
        patience: float,
        make: Callable[[], ChildWorker],
        pipe: ChildPipe,
    ) -> None:
        """`members`: one for each section. `patience`: seconds for which no sibling has to poll yet."""
        self._members = members
        self._make = make
        self._pipe = pipe
        self._alone_at = monotonic() + patience
        self._stopping = StopEvent()
        self._was_woken = False

    def run(self) -> ChildWorker | None:
        """Return the worker, once it is needed. A child that cannot become a worker ends, and is replaced."""
        while not self._stopping.is_set() and not self._is_needed():
            pass
        return None if self._stopping.is_set() else self._prepared()

    def _prepared(self) -> ChildWorker:
        try:
            worker = self._make()
            if self._was_woken:  # rows wait: the sibling has checked the tables, and what is used is compiled then
                worker.expect()
            else:
                worker.prepare()
        except ConfigError as error:
            log.debug("cannot start", exc_info=True)
            self._pipe.send(START_ERROR, str(error))
            self._pipe.send(EMPTY)
            os._exit(BOOT_FAILED)
        return worker

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Nothing is leased, so `immediate` ends the process where it waits."""
        self._stopping.set()
        if immediate:
            os._exit(DONE)

    def _is_needed(self) -> bool:
        """Wait for a while; True when a sibling has woken this child, or no sibling polls."""
        waits = {member: member.defer() for member in self._members}
        unpolled = [member for member, wait in waits.items() if wait is None]
        left = self._alone_at - monotonic()
        for member in unpolled:
            if left > 0:
                member.stand_by(left)
            else:
                member.lead()  # so that no other child on standby does the same
        if unpolled and left <= 0:
            return True
        wakeups = {wakeup: member for member in self._members if (wakeup := member.descriptor) is not None}
        ready = self._stopping.wait_for(wakeups, min(left if wait is None else wait for wait in waits.values()))
        reasons = [wakeups[wakeup].wake_reason() for wakeup in ready]  # a list, so that each wake-up is consumed
        self._was_woken = any(reasons)
        return self._was_woken


def worker_or_standby(spec: ChildSpec, pipe: ChildPipe) -> ChildRole:
    """Load the application and return the role of the child that `spec` describes. Call it in the child's main thread.

    The first child works at once: it checks the tables and alerts of overdue runs. So does a child that gives back
    leases of dead children, or that has no election.
    """
    make = partial(ChildWorker, spec, load(spec.application), pipe.send)
    if spec.election is None or spec.slot == FIRST_SLOT or spec.dead:
        return make()
    named = spec.settings.named_sections
    members = [ElectionMember(spec.election, spec.slot, name, section.poll_interval) for name, section in named]
    return StandbyChild(members, min(_PATIENCE, *(section.poll_interval for _, section in named)), make, pipe)
