"""Linux system calls of master and children: death signal, sub-reaper, kill timer.

On other systems these functions do nothing.
"""

from __future__ import annotations

import ctypes
import signal
import struct
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLOCK_MONOTONIC = 1
_SIGEV_SIGNAL = 0
_SIGEVENT_SIZE = 64

_LIBC: Any = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None
"""Loaded at import, in the master, because looking for libraries would delay each child."""


def signal_at_death_of_parent(number: int) -> None:
    """Request a signal for the moment when the *thread* that forked this process ends.

    If that thread has ended already, no signal comes.
    """
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans(yes: bool) -> None:
    """Become the parent of each descendant whose own parent dies. `yes` False: stop doing so."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


class KillTimer:
    """A kernel timer that kills this process `seconds` after the timer's last restart.

    The timer needs no interpreter, and also kills a stopped process. So a frozen child dies in time even if its master
    is dead. Forked processes do not inherit the timer.
    """

    def __init__(self, seconds: float) -> None:
        self._setting = (ctypes.c_long * 4)(0, 0, int(seconds), int(seconds % 1 * 1e9))  # struct itimerspec
        self._timer = ctypes.c_void_p()
        # struct sigevent: value, signal, way of delivery
        event = ctypes.create_string_buffer(struct.pack("Pii", 0, signal.SIGKILL, _SIGEV_SIGNAL), _SIGEVENT_SIZE)
        create = getattr(_LIBC, "timer_create", None)  # before glibc 2.34 the timer functions are in a separate library
        self._works = create is not None and create(_CLOCK_MONOTONIC, event, ctypes.byref(self._timer)) == 0

    def restart(self) -> None:
        if self._works:
            _LIBC.timer_settime(self._timer, 0, ctypes.byref(self._setting), None)
