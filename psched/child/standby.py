"""A child that nobody needs yet: it stands by with its application loaded and opens no store. In children.

A store's first use costs a connection, a tenth of a second and many megabytes of memory that was shared until then. So
of a master's children the first is at work from the start, the others from when a sibling first calls them, or when
nobody keeps watch.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence

from psched.application import Application
from psched.clock import Clock, monotonic
from psched.errors import ConfigError
from psched.execution.stop_event import StopEvent
from psched.execution.worker import ChildWorker, join_election
from psched.process import channel as pipes
from psched.process.channel import BOOT_FAILED, DONE
from psched.process.child_spec import ChildSpec
from psched.process.poll_election import ElectionMember

log = logging.getLogger(__name__)

_FIRST_SLOT = 1
_PATIENCE = 1.0
"""Seconds at the most in which a sibling that is born as well may take the watch."""


class StandbyChild:
    """Becomes the work that `make` makes when it is needed."""

    def __init__(
        self,
        members: Sequence[ElectionMember],
        patience: float,
        make: Callable[[], ChildWorker],
        say: Callable[..., None],
        clock: Clock = monotonic,
    ) -> None:
        """`patience`: seconds from now in which nobody need keep watch yet. `say` sends the master a word."""
        self._seats = members
        self._make = make
        self._say = say
        self._clock = clock
        self._alone_at = clock() + patience
        self._stopping = StopEvent()
        self._lock = threading.Lock()
        self._work: ChildWorker | None = None
        self._is_called = False

    def prepare(self) -> None:
        """Check nothing: the first child has looked at the tables."""

    def run(self) -> None:
        """Stand by, then work. What cannot work although the first child can ends the process, and is replaced."""
        while not self._stopping.is_set() and not self._is_needed():
            pass
        if self._stopping.is_set():
            return
        work = self._prepared()
        with self._lock:  # an order to stop finds either no work, or all of it
            self._work = work
        if self._stopping.is_set():
            work.stop(immediate=False)
        if self._is_called:
            work.expect()
        work.run()

    def _prepared(self) -> ChildWorker:
        try:
            work = self._make()
            work.prepare()
        except ConfigError as error:
            log.debug("cannot begin", exc_info=True)
            self._say(pipes.WHY, str(error))
            self._say(pipes.EMPTY)
            os._exit(BOOT_FAILED)
        return work

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Stop the work. Before there is any nothing is held, and `immediate` ends the process where it waits."""
        with self._lock:
            work = self._work
            self._stopping.set()
        if work is not None:
            work.stop(immediate, grace)
        elif immediate:
            os._exit(DONE)

    def running(self) -> str | None:
        """Return what is being run; None when idle."""
        return None if self._work is None else self._work.running()

    def was_idle(self) -> bool:
        """Tell whether nothing was run since the last call."""
        return self._work is None or self._work.was_idle()

    def trouble(self) -> str | None:
        """Return what keeps it from working at present."""
        return None if self._work is None else self._work.trouble()

    def report_suspects(self) -> None:
        """Have the master suspect what has run and is not settled, too."""
        if self._work is not None:
            self._work.report_suspects()

    def _is_needed(self) -> bool:
        """Rest for a while; True when a sibling has called, or nobody has been keeping watch."""
        rests = {member: member.stand_by() for member in self._seats}
        unkept = [member for member, rest in rests.items() if rest is None]
        left = self._alone_at - self._clock()
        if unkept and left <= 0:
            for member in unkept:
                member.keep()  # for the others not to do the same
            return True
        wakeups = {wakeup: member for member in self._seats if (wakeup := member.descriptor) is not None}
        rung = self._stopping.wait_for(wakeups, min(left if rest is None else rest for rest in rests.values()))
        calls = [wakeups[wakeup].heard() for wakeup in rung]  # each is taken, as all are answered
        self._is_called = any(calls)
        return self._is_called


def build(boot: ChildSpec, application: Application, say: Callable[..., None]) -> ChildWorker | StandbyChild:
    """Return the work of the child that `boot` describes. Call it in the child's main thread.

    The first child sees whether the tables are there, and looks out for what is overdue; one that has dead predecessors
    has their leases to give back.
    """

    def make() -> ChildWorker:
        return ChildWorker(boot, application, say)

    if boot.watch is None or boot.slot == _FIRST_SLOT or boot.dead:
        return make()
    named = boot.settings.named_sections
    members = [join_election(boot.watch, boot.slot, name, section) for name, section in named]
    return StandbyChild(members, min(_PATIENCE, *(section.poll_interval for _, section in named)), make, say)
