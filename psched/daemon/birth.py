"""Becoming a process of one's own after a fork: group, input, and the wish to die with the master. In children."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from typing import Any

_PR_SET_PDEATHSIG = 1


def _load_libc() -> Any:
    return ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


_LIBC = _load_libc()  # in the master, once: a child must not look for libraries first


def be_own_process(master: int) -> None:
    """Lead a process group of our own, read nothing from the terminal, and be told when the master dies.

    The kernel's word (Linux) is a second belt beside the end of the orders pipe. It comes when the *thread* that
    forked us ends; the master has one only. It is blocked until the child has its signal queue.
    """
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    if nothing != 0:
        os.close(nothing)
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGQUIT, 0, 0, 0)
    if os.getppid() != master:  # it died before we asked
        os.kill(os.getpid(), signal.SIGQUIT)
