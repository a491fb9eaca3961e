"""Processor time and memory of a process tree. Runs in the measuring process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil


def tree_of(roots: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return the processes and all their descendants."""
    return [process for root in roots for process in (root, *root.children(recursive=True))]


def processor_time(tree: Iterable[psutil.Process]) -> float:
    """Return the processor time that these processes have used, including their ended threads, in seconds."""
    return sum(_used(process) for process in tree)


def _used(process: psutil.Process) -> float:
    """Return the processor time of a process, in seconds.

    Linux has a clock for each process, in nanoseconds. The values of /proc and psutil are rounded down to hundredths of
    a second.
    """
    if sys.platform == "linux":
        return time.clock_gettime(~process.pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel
    return float(sum(process.cpu_times()[:2]))


def memory(tree: Iterable[psutil.Process]) -> float:
    """Return the memory of these processes in bytes (PSS: each shared page counts once)."""
    total = 0.0
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total
