"""The control thread of a child: it sends heartbeats and handles orders and signals. It waits for nothing else.

A child without heartbeats is therefore frozen: a handler holds the interpreter, or the process is stopped.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import threading
from typing import NoReturn

from setproctitle import setproctitle

from psched.clock import monotonic
from psched.config import Settings
from psched.error_messages import ESCAPES
from psched.execution.forced_exit import KEEPS_RUNNING, kill_descendants
from psched.process.child_base import ChildBase
from psched.process.child_protocol import (
    BEAT,
    BYE,
    DONE,
    LOST_MASTER,
    READY,
    TROUBLE,
    ChildPipe,
)
from psched.process.escalation import RELEASE
from psched.process.linux import KillTimer
from psched.process.logs import Log
from psched.process.signals import SignalQueue
from psched.telemetry import emit

log = logging.getLogger(__name__)

_STOPS: dict[int, bool] = {signal.SIGTERM: False, signal.SIGINT: False, signal.SIGQUIT: True}
"""Whether each signal stops the child immediately. The master's orders use the numbers of these signals."""
_ORPHAN_GRACE = 0.4
"""Seconds from the death of the master until running handlers are stopped."""
_ORPHAN_END = 1.7
"""Seconds from the death of the master until the process ends in any case."""


class ControlThread(threading.Thread):
    """Sends the child's heartbeats, handles orders and signals, and updates the process title.

    Each heartbeat restarts a kernel timer. The timer kills a frozen child if the master does not.
    """

    def __init__(self, name: str, pipe: ChildPipe, signals: SignalQueue, settings: Settings, log_file: Log) -> None:
        super().__init__(name="control", daemon=True)
        self._child_name = name
        self._pipe = pipe
        self._signals = signals
        self._interval = settings.child_heartbeat_interval
        self._kill_timer = KillTimer(settings.child_heartbeat_limit + settings.child_kill_interval + RELEASE)
        self._log_file = log_file
        self._role: ChildBase | None = None
        self._role_lock = threading.Lock()
        self._title = ""
        self._running = 0
        """The number of runs in progress at the last heartbeat."""
        self._trouble: str | None = None
        self._end_at: float | None = None

    def started(self, role: ChildBase) -> None:
        """Pass orders to `role` from now on, and report to the master that the child is ready."""
        with self._role_lock:  # an order without a role ends the process, so no order may be handled here
            self._role = role
        self._report()  # reports what keeps the child from working, before the child counts as ready
        emit("heartbeat", is_ready=True, running=self._running)
        self._pipe.send(READY)

    def run(self) -> None:
        next_beat = monotonic()
        while True:
            if not self._pipe.are_ours():
                self._end_process("a handler has closed the pipes to the master")
            if monotonic() >= next_beat:
                next_beat = monotonic() + self._interval
                self._beat()
            has_orders = self._wait(next_beat)
            if self._end_at is not None and monotonic() >= self._end_at:
                self._end_process("the master is gone, and the running task did not stop")
            if has_orders:
                self._obey()

    def _beat(self) -> None:
        self._kill_timer.restart()
        was_idle = False
        try:
            was_idle = self._report()
        except Exception:
            log.exception("an error in the control thread; the thread continues")
        self._pipe.beat(monotonic())
        emit("heartbeat", is_ready=self._role is not None, running=self._running)
        if not was_idle:
            self._pipe.send(BEAT)

    def _report(self) -> bool:
        """Update the process title, and tell the master if `ChildBase.trouble` has changed.

        Return whether the child was idle since the last heartbeat.
        """
        role = self._role
        if role is None:
            self._set_title("booting")
            return False
        role.check()
        trouble, running = role.trouble(), role.running()
        if trouble != self._trouble:
            self._pipe.send(TROUBLE, trouble or "")
            self._trouble = trouble
        self._running = len(running)
        if running:
            self._set_title(f"running {', '.join(running).translate(ESCAPES)}")
        else:
            self._set_title("idle" if trouble is None else "waiting for the database")
        return role.was_idle()

    def _set_title(self, state: str) -> None:
        if state != self._title:
            setproctitle(f"psched: {self._child_name} {state}")
            self._title = state

    def _wait(self, next_beat: float) -> bool:
        """Wait until `next_beat`, an order or a signal. Return whether an order or a signal came.

        Only descriptors that no handler has closed are polled.
        """
        poll = select.poll()
        for descriptor in (self._pipe.orders, self._signals.reader):
            if self._end_at is None and descriptor.is_ours():
                poll.register(descriptor.descriptor, select.POLLIN)
        until = next_beat if self._end_at is None else min(next_beat, self._end_at)
        return bool(poll.poll(max(0.0, until - monotonic()) * 1000))

    def _obey(self) -> None:
        if not self._pipe.are_ours():
            return
        try:
            orders = self._pipe.receive()
            if orders is None:
                self._stop_as_orphan()
                return
            for order in [*orders, *self._signals.take()]:
                if order == signal.SIGUSR2:
                    self._log_file.reopen()
                elif order in _STOPS:
                    self._stop_role(_STOPS[order])
        except Exception:
            log.exception("an error in the control thread; the thread continues")

    def _stop_role(self, immediate: bool, grace: float | None = None) -> None:
        """Stop the child's `ChildBase`. If it has not started, no row is leased, so end the process."""
        with self._role_lock:
            if self._role is None:
                self._pipe.send(BYE)
                os._exit(DONE)
            self._role.stop(immediate, grace)

    def _stop_as_orphan(self) -> None:
        """Stop, because the master is dead. End soon in any case, because no master is left to kill a frozen child."""
        self._end_at = monotonic() + _ORPHAN_END
        log.warning("the master is gone; exiting")
        self._stop_role(immediate=True, grace=_ORPHAN_GRACE)

    def _end_process(self, why: str) -> NoReturn:
        """End the process immediately, without releasing leases. The master notices the death and releases them.

        A handler that has closed the pipes to the master has probably also closed the database connection. So this
        process cannot release leases.
        """
        log.error("%s; exiting immediately", why)
        try:
            if self._role is not None:
                self._role.report_suspects()
        except Exception:
            log.exception("the running tasks could not be reported to the master; exiting immediately")
        try:
            for pid in kill_descendants():
                log.warning(KEEPS_RUNNING, pid)
        finally:
            os._exit(LOST_MASTER)
