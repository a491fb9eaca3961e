"""Loops of bare driver calls: the throughput of a driver and a database without psched. Forked processes.

A floor is a class with the statements of one database; here is what they have in common: the processes, the clock.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

PROCESSES = 2
_EMPTY = 3
"""After how many claims that got nothing there is nothing left: where claimers collide, one may go without."""


class Floor(Protocol):
    """The statements of one store, on a bare table of its own. Each method commits before it returns."""

    def connect(self) -> None:
        """Connect, in the process that calls the others."""
        ...

    def create(self) -> None:
        """Make the table."""
        ...

    def insert(self, key: str) -> None:
        """Write one task."""
        ...

    def insert_many(self, keys: list[str]) -> None:
        """Write many tasks, in the fastest way that the driver has."""
        ...

    def add_many(self, keys: list[str]) -> None:
        """Write many schedules, as wide as psched's, into a table of their own with an index of when they are due."""
        ...

    def claim(self, limit: int) -> tuple[list[Any], Any]:
        """Lease up to `limit` due tasks; returns their keys and what proves the lease."""
        ...

    def finish(self, keys: list[Any], fence: Any) -> None:
        """Settle tasks under their lease, and keep them, as finished ones are kept."""
        ...

    def close(self) -> None:
        """Let go of the connection."""
        ...


Loop = Callable[[Floor, int], int]


def rate(floor: Floor, loop: Loop, many: int = PROCESSES) -> float:
    """Run `loop(floor, number of the process)` in so many processes at once; return what they do together per second.

    A loop returns how many it has done. Raises RuntimeError when one fails.
    """
    context = multiprocessing.get_context("fork")
    start = context.Barrier(many, timeout=30)
    answers = context.SimpleQueue()
    processes = [context.Process(target=_in_process, args=(floor, each, loop, start, answers)) for each in range(many)]
    for process in processes:
        process.start()
    found = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    if any(done is None for done, _, _ in found):
        raise RuntimeError(f"{floor}: a process failed")
    span = max(ended for _, _, ended in found) - min(begun for _, begun, _ in found)
    return float(sum(done for done, _, _ in found) / span)


def _in_process(floor: Floor, number: int, loop: Loop, start: Any, answers: Any) -> None:
    answer: tuple[int | None, float, float] = (None, 0.0, 0.0)
    try:
        floor.connect()
        start.wait()
        begun = time.monotonic()
        done = loop(floor, number)
        answer = (done, begun, time.monotonic())
        floor.close()
    finally:
        answers.put(answer)


def claiming(batch: int, together: bool, seconds: float) -> Loop:
    """Return the loop that claims `batch` tasks and finishes them, together or one by one, while there are any."""

    def loop(floor: Floor, number: int) -> int:
        end = time.monotonic() + seconds
        done = empty = 0
        while empty < _EMPTY and time.monotonic() < end:
            keys, fence = floor.claim(batch)
            for group in [keys] if together and keys else [[key] for key in keys]:
                floor.finish(group, fence)
            done += len(keys)
            empty = 0 if keys else empty + 1
        return done

    return loop


def inserting(count: int, seconds: float) -> Loop:
    """Return the loop that writes up to `count` tasks one by one."""

    def loop(floor: Floor, number: int) -> int:
        end = time.monotonic() + seconds
        done = 0
        for key in names(count, f"task-{number}"):
            floor.insert(key)
            done += 1
            if time.monotonic() > end:
                break
        return done

    return loop


def inserting_many(count: int) -> Loop:
    """Return the loop that writes `count` tasks in one go."""

    def loop(floor: Floor, number: int) -> int:
        floor.insert_many(list(names(count, f"task-{number}")))
        return count

    return loop


def adding_many(count: int) -> Loop:
    """Return the loop that writes `count` schedules in one go."""

    def loop(floor: Floor, number: int) -> int:
        floor.add_many(list(names(count, f"schedule-{number}")))
        return count

    return loop


def names(count: int, prefix: str) -> Iterable[str]:
    """Return keys as they are common."""
    return (f"{prefix}-{number:07}" for number in range(count))
