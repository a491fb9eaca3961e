"""Processes that handlers fork: they answer no signal meant for the worker, and hold no pipe of its. In children."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass, field

from psched.daemon.pipes import ChildEnds
from psched.daemon.signals import VERBS, SignalQueue


@dataclass(eq=False, slots=True)
class Strangers:
    """Makes a stranger of every process that this one forks from now on.

    Our signals are blocked while that happens. One that came to the new process too early would otherwise be written to
    the pipe it still shares with us: it would survive, and we would stop in its stead.
    """

    signals: SignalQueue
    ends: ChildEnds
    _forking: threading.local = field(default_factory=threading.local)

    def expect(self) -> None:
        """Begin. There is no end to it but that of the process."""
        os.register_at_fork(before=self._block, after_in_parent=self._unblock, after_in_child=self._be_a_stranger)

    def _block(self) -> None:
        self._forking.before = signal.pthread_sigmask(signal.SIG_BLOCK, VERBS)

    def _unblock(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._forking.before)

    def _be_a_stranger(self) -> None:
        self.signals.abandon()
        for number in VERBS:
            signal.signal(number, signal.SIG_DFL)
        self.ends.close()
        self._unblock()
