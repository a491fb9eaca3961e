"""The thread that beats and obeys: it waits for nothing but orders, signals and the next beat. In children.

So a child that is silent is frozen by definition: its interpreter is held, or the process is stopped.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from collections.abc import Callable
from typing import NoReturn, Protocol

from psched.clock import Clock, monotonic
from psched.execution.forced_exit import kill_descendants
from psched.process import channel as pipes
from psched.process.channel import LOST_MASTER, ChildPipe
from psched.process.linux import KillTimer
from psched.process.signals import SignalQueue

log = logging.getLogger(__name__)

_REOPEN = {pipes.REOPEN, signal.SIGUSR2}
_STOPS: dict[int, bool] = {
    pipes.GRACEFUL: False,
    signal.SIGTERM: False,
    signal.SIGINT: False,
    pipes.IMMEDIATE: True,
    signal.SIGQUIT: True,
}
"""Orders and signals that end the child, and whether at once."""
_ORPHAN_GRACE = 0.4
_ORPHAN_END = 1.7
"""A child without a master gives its handler the first, and is gone after the second: within 2 s in all."""


class HeartbeatTarget(Protocol):
    """What the beating thread commands. Every method returns at once."""

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        """Stop, now or after the running task; `grace` bounds the seconds of an immediate stop."""
        ...

    def reopen(self) -> None:
        """Reopen the log file."""
        ...

    def report_suspects(self) -> None:
        """Name what has run and is not settled, since something of it has spoilt the process."""
        ...

    def beating(self) -> bool:
        """Called at each beat; tell whether nothing was run since the last one, so that the master need not look."""
        ...


class HeartbeatThread(threading.Thread):
    """Beats every `interval` seconds, aloud unless the child rests, and passes orders and signals on to it."""

    def __init__(
        self,
        ends: ChildPipe,
        signals: SignalQueue,
        interval: float,
        longest: float,
        child: HeartbeatTarget,
        clock: Clock = monotonic,
    ) -> None:
        """`longest`: seconds without a beat after which the kernel ends the process, should the master not have."""
        super().__init__(name="beat", daemon=True)
        self._ends = ends
        self._signals = signals
        self._interval = interval
        self._switch = KillTimer(longest)
        self._child = child
        self._clock = clock
        self._end_at: float | None = None

    def run(self) -> None:
        """Beat until the process ends."""
        next_beat = self._clock()
        while True:
            if not self._ends.are_ours():
                self._leave("a handler has closed the pipes to the master")
            if self._clock() >= next_beat:
                next_beat = self._clock() + self._interval
                self._beat()
            told = self._await(next_beat)
            if self._end_at is not None and self._clock() >= self._end_at:
                self._leave("the master is gone, and the running task did not stop")
            if told:
                self._guarded(self._obey)

    def _beat(self) -> None:
        self._switch.press()
        rests = self._guarded(self._child.beating)
        self._ends.beat(self._clock())
        if not rests:
            self._ends.say(pipes.BEAT)

    def _await(self, next_beat: float) -> bool:
        """Wait for the time, an order or a signal; tell whether it was one of these.

        Looks at no descriptor that is not ours any more, and at none for orders once there is no master.
        """
        poll = select.poll()
        for pipe in (self._ends.orders, self._signals.reader):
            if self._end_at is None and pipe.is_ours():
                poll.register(pipe.descriptor, select.POLLIN)
        until = next_beat if self._end_at is None else min(next_beat, self._end_at)
        return bool(poll.poll(max(0.0, until - self._clock()) * 1000))

    def _obey(self) -> None:
        if not self._ends.are_ours():
            return
        orders = self._ends.listen()
        if orders is None:
            self._orphaned()
            return
        for order in [*orders, *self._signals.take()]:
            if order in _REOPEN:
                self._child.reopen()
            elif order in _STOPS:
                self._child.stop(_STOPS[order])

    def _orphaned(self) -> None:
        """Stop now, and be gone soon whatever happens: nobody is there to see us freeze, or to give our leases back."""
        self._end_at = self._clock() + _ORPHAN_END
        log.warning("the master is gone; leaving")
        self._child.stop(immediate=True, grace=_ORPHAN_GRACE)

    def _leave(self, why: str) -> NoReturn:
        """End the process here and now; it gives nothing back.

        Where the pipes are gone the database's connection is gone too, or another file has its number. The master sees
        the death, and the successor gives back.
        """
        try:
            log.error("%s; leaving at once", why)
            self._guarded(self._child.report_suspects)
            kill_descendants()
        finally:
            os._exit(LOST_MASTER)

    def _guarded(self, act: Callable[[], bool | None]) -> bool | None:
        try:
            return act()
        except Exception:
            log.exception("an error in the heartbeat thread; it goes on")
            return None
