"""Processor time and memory of a process tree. In the measuring process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from contextlib import suppress

import psutil


def tree_of(roots: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Return these processes and all that come from them."""
    return [process for root in roots for process in (root, *root.children(recursive=True))]


def processor_time(tree: Iterable[psutil.Process]) -> float:
    """Return the processor time that these processes have used, in seconds, that of ended threads included."""
    return sum(_used(process) for process in tree)


def _used(process: psutil.Process) -> float:
    """Linux has a clock of each process, in nanoseconds; what /proc and psutil tell is cut off to hundredths."""
    if sys.platform == "linux":
        return time.clock_gettime(~process.pid << 3 | 2)  # MAKE_PROCESS_CPUCLOCK(pid, CPUCLOCK_SCHED) of the kernel
    return float(sum(process.cpu_times()[:2]))


def memory(tree: Iterable[psutil.Process]) -> float:
    """Return the memory of these processes, pages that several share counted once (PSS), in bytes."""
    total = 0.0
    for process in tree:
        with suppress(psutil.NoSuchProcess):
            total += process.memory_full_info().pss
    return total
