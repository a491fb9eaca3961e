"""What the kernel does for processes that cannot help themselves. Linux; elsewhere nothing happens."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_CLOCK_MONOTONIC = 1


class _Event(ctypes.Structure):
    """struct sigevent: deliver `number` to the process (SIGEV_SIGNAL)."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("padding", ctypes.c_char * 64),
    )


class _Setting(ctypes.Structure):
    """struct itimerspec."""

    _fields_ = (
        ("interval_seconds", ctypes.c_long),
        ("interval_nanoseconds", ctypes.c_long),
        ("seconds", ctypes.c_long),
        ("nanoseconds", ctypes.c_long),
    )


def _load() -> Any:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


_LIBC = _load()  # in the master, once: a newborn child must not look for libraries first


def signal_at_death_of_parent(number: int) -> None:
    """Ask for a signal when the *thread* that forked us ends. Who asks too late is not told."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def adopt_orphans(yes: bool) -> None:
    """Become the parent of all descendants whose own parent dies, or stop becoming it."""
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


class KillTimer:
    """A timer of the kernel that kills this process unless it is pressed every `seconds`.

    It needs no interpreter and works on a stopped process, so a frozen child does not outlive its master, and its own
    lease, by more than that. Forked processes do not inherit it.
    """

    def __init__(self, seconds: float) -> None:
        self._setting = _Setting(0, 0, int(seconds), int(seconds % 1 * 1e9))
        self._timer = ctypes.c_void_p()
        event = _Event(None, signal.SIGKILL, 0, b"")
        create = getattr(_LIBC, "timer_create", None)  # glibc before 2.34 has it in a library of its own
        self._works = (
            create is not None and create(_CLOCK_MONOTONIC, ctypes.byref(event), ctypes.byref(self._timer)) == 0
        )

    def press(self) -> None:
        """Begin the time anew."""
        if self._works:
            _LIBC.timer_settime(self._timer, 0, ctypes.byref(self._setting), None)
