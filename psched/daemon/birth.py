"""Becoming a process of one's own after a fork: group, input, and the wish to die with the master. In children."""

from __future__ import annotations

import os
import signal

from psched.daemon.kernel import signal_at_death_of_parent


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
    signal_at_death_of_parent(signal.SIGQUIT)
    if os.getppid() != master:  # it died before we asked
        os.kill(os.getpid(), signal.SIGQUIT)
