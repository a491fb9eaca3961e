"""Loops of bare driver calls, in forked processes: the throughput of a driver and a database without psched.

A class derived from `Floor` has the statements of one database. This module starts the processes and measures the time.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable
from typing import Any, Protocol

PROCESSES = 2
_EMPTY = 3
"""After this many claims in a row without a task, no tasks are left. A single claim may get no task because claimers
collide.
"""


class Floor(Protocol):
    """The statements of one store, on a bare table of its own. Each method commits before it returns."""

    def connect(self) -> None:
        """Connect. Called in the process that calls the other methods."""
        ...

    def create(self) -> None:
        """Create the tables."""
        ...

    def insert(self, key: str) -> None:
        """Write one task."""
        ...

    def insert_many(self, keys: list[str]) -> None:
        """Write many tasks, by the fastest way of the driver."""
        ...

    def add_many(self, keys: list[str]) -> None:
        """Write many schedules, in rows as wide as psched's, into another table with an index on the due time."""
        ...

    def claim(self, limit: int) -> tuple[list[Any], Any]:
        """Lease up to `limit` due tasks. Return their keys, and the fence of the lease."""
        ...

    def finish(self, keys: list[Any], fence: Any) -> None:
        """Finish tasks under their lease. The rows stay, as finished tasks of psched do."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


Loop = Callable[[Floor, int], int]


def rate(floor: Floor, loop: Loop, many: int = PROCESSES) -> float:
    """Return how many items all processes together handle per second.

    Runs `loop(floor, number of the process)` in `many` processes at the same time. A loop returns how many items it has
    handled. Raises RuntimeError if a process fails.
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
    """Return a loop that claims `batch` tasks at a time, and finishes them together or one by one.

    The loop ends if no tasks are left, or after `seconds`.
    """

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
    """Return a loop that writes up to `count` tasks, one by one, for up to `seconds`."""

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
    """Return a loop that writes `count` tasks by one call."""

    def loop(floor: Floor, number: int) -> int:
        floor.insert_many(list(names(count, f"task-{number}")))
        return count

    return loop


def adding_many(count: int) -> Loop:
    """Return a loop that writes `count` schedules by one call."""

    def loop(floor: Floor, number: int) -> int:
        floor.add_many(list(names(count, f"schedule-{number}")))
        return count

    return loop


def names(count: int, prefix: str) -> Iterable[str]:
    """Return keys of a usual form, such as `task-0000001`."""
    return (f"{prefix}-{number:07}" for number in range(count))
