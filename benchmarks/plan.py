"""Plans: when each task is submitted, and how long its handler takes. Also computes the waits in an ideal queue.

Needs only Python's standard library, because peers use another virtualenv.
"""

from __future__ import annotations

import gc
import heapq
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.shared_counter import Tally

WORKERS = 8
TYPES = 50
PADDING = "x" * 2000
"""The payload of each task, besides its numbers."""
LONG = 2.0
"""Seconds that a task of the long tail takes."""
_SUBMITTERS = 4
"""Threads that submit. A single thread would be late if a commit takes long."""
RAISES = 2
"""How many attempts of a failing task in `retry_storm` fail."""


@dataclass(frozen=True)
class PlannedTask:
    """One task. `at`: seconds from the start of the plan to the submit. `raises`: how many attempts fail.

    `seconds`: how long an attempt takes.
    """

    at: float
    type: str
    seconds: float
    is_measured: bool = True
    raises: int = 0


TYPE_NAMES = tuple(f"load-{number:02}" for number in range(TYPES))


def steady(share: float, seconds: float) -> Sequence[PlannedTask]:
    """Return tasks that arrive at random times, and keep the workers busy for `share` of the time.

    The tasks have fifty types, of which the first takes 1 ms and the last 50 ms. Tasks of the first fifth of the time
    are not measured, because their types are new to the workers.
    """
    mean = sum(_seconds_of(number) for number in range(TYPES)) / TYPES
    jobs = _arrivals(WORKERS * share / mean, seconds, _mixed)
    return [replace(job, is_measured=job.at > seconds / 5) for job in jobs]


def backlog(count: int) -> Sequence[PlannedTask]:
    """Return tasks of fifty types that are all submitted at the start."""
    chance = random.Random(2)
    return [_mixed(0.0, chance) for _ in range(count)]


def long_tail(seconds: float, own_type: bool) -> Sequence[PlannedTask]:
    """Return tasks of which one in twenty takes 2 s. The others take no time.

    The long tasks have a type of their own (`own_type`), or the type of the short tasks. On average the long tasks keep
    half of the workers busy. Only the short tasks are measured.
    """

    def drawn(at: float, chance: random.Random) -> PlannedTask:
        if chance.random() >= 0.05:
            return PlannedTask(at, TYPE_NAMES[0], 0.0)
        return PlannedTask(at, TYPE_NAMES[1 if own_type else 0], LONG, is_measured=False)

    return _arrivals(WORKERS * 0.5 / (LONG * 0.05), seconds, drawn)


def retry_storm(count: int) -> Sequence[PlannedTask]:
    """Return tasks of 5 ms that are all submitted at the start. One task in five fails twice."""
    chance = random.Random(3)
    return [PlannedTask(0.0, TYPE_NAMES[4], 0.005, raises=RAISES if chance.random() < 0.2 else 0) for _ in range(count)]


def ideal_waits(jobs: Sequence[PlannedTask]) -> Sequence[float]:
    """Return how long the measured tasks wait in an ideal queue: first come, first served, at no cost."""
    free = [0.0] * WORKERS
    waits = []
    for job in jobs:
        begun = max(job.at, heapq.heappop(free))
        heapq.heappush(free, begun + job.seconds)
        if job.is_measured:
            waits.append(begun - job.at)
    return waits


def least_seconds(jobs: Sequence[PlannedTask]) -> float:
    """Return the least number of seconds in which the workers can run all attempts."""
    return sum(job.seconds * (1 + job.raises) for job in jobs) / WORKERS


def submit_in_time(jobs: Sequence[PlannedTask], submit: Callable[[PlannedTask], object]) -> float:
    """Submit each task at its time. Return how many seconds late the latest submit was.

    Existing objects are hidden from the garbage collector: one full collection stopped all threads for up to 0.1 s.
    """
    gc.collect()
    gc.freeze()
    begun, latest = time.monotonic(), 0.0
    with ThreadPoolExecutor(_SUBMITTERS) as threads:
        submitted = []
        for job in jobs:
            time.sleep(max(0.0, begun + job.at - time.monotonic()))
            latest = max(latest, time.monotonic() - begun - job.at)
            submitted.append(threads.submit(submit, job))
        for each in submitted:
            each.result()
    return latest


def data_of(job: PlannedTask) -> dict[str, Any]:
    """Return the data of a task that is submitted now."""
    sent = time.monotonic() if job.is_measured else None
    return {"sent": sent, "seconds": job.seconds, "raises": job.raises, "padding": PADDING}


def begin(tally: Tally, sent: float | None) -> None:
    """Count the run of a task. If `sent` (monotonic) is not None, record the seconds since then."""
    tally.count()
    if sent is not None:
        tally.sample(time.monotonic() - sent)


def handle(tally: Tally, sent: float | None, seconds: float) -> None:
    """Do the work of a handler: count the run, and sleep for `seconds`."""
    begin(tally, sent)
    time.sleep(seconds)


def write(jobs: Sequence[PlannedTask], path: Path) -> None:
    """Write a plan to a file, for another process."""
    path.write_text(json.dumps([asdict(job) for job in jobs]))


def read(path: Path) -> Sequence[PlannedTask]:
    """Return the plan in a file that `write` wrote."""
    return [PlannedTask(**job) for job in json.loads(path.read_text())]


def _seconds_of(number: int) -> float:
    return (number + 1) * 0.05 / TYPES


def _mixed(at: float, chance: random.Random) -> PlannedTask:
    number = chance.randrange(TYPES)
    return PlannedTask(at, TYPE_NAMES[number], _seconds_of(number))


def _arrivals(
    per_second: float, seconds: float, draw: Callable[[float, random.Random], PlannedTask]
) -> Sequence[PlannedTask]:
    chance = random.Random(1)
    jobs = []
    at = chance.expovariate(per_second)
    while at < seconds:
        jobs.append(draw(at, chance))
        at += chance.expovariate(per_second)
    return jobs
