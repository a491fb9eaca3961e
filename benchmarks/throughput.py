"""Measures how many no-op tasks run per second: with two children of a daemon, and with bare loops."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from benchmarks.databases import Place
from benchmarks.driver_loops import PROCESSES, claiming, inserting_many, names, rate
from benchmarks.floors import FLOORS
from benchmarks.worker import BenchmarkWorker
from benchmarks.workload import Contender, Scale, Workload
from psched.model import NewTask
from psched.queue.queue import Queue

_PAGE = 5000
_BACKLOG = 60_000
_FEW = 30_000
"""The number of tasks if each is finished by a statement of its own: more than can run in the measured time."""
_SECONDS = 8.0
_FLOOR_SECONDS = 4.0


def fill(queue: Queue, count: int, type: str) -> None:
    """Submit a backlog of `count` tasks."""
    keys = list(names(count, "task"))
    for start in range(0, count, _PAGE):
        queue.submit_many([NewTask(key, type, {}) for key in keys[start : start + _PAGE]])


def run_backlog(type: str, backlog: int, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the tasks per second from the first handler until all tasks are settled, or until the time is over."""
    count = scale.count(backlog)
    worker = BenchmarkWorker(place)
    with worker.queue() as queue:
        fill(queue, count, type)
        with worker:
            worker.wait(lambda: worker.counted().done > 0, pause=0.001)
            before = worker.cpu()
            end = worker.counted().first + scale.seconds(_SECONDS)
            worker.wait(lambda: worker.counted().done >= count or time.monotonic() > end, pause=0.02)
            counted, ended = worker.counted(), time.monotonic()
            if counted.done >= count:
                ended = _all_settled(worker, queue)
            used = worker.cpu() - before
    if counted.done > count:
        raise RuntimeError(f"{count} tasks were run {counted.done} times")
    return {"tasks/s": counted.done / (ended - counted.first), "CPU s per 10,000": used / counted.done * 10_000}


def _all_settled(worker: BenchmarkWorker, queue: Queue) -> float:
    """Wait until no task is leased or waits, and return this time (monotonic)."""
    worker.wait(lambda: queue.store.next_due() is None, pause=0.001)
    return time.monotonic()


def run_floor(batch: int, together: bool, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the tasks per second of two bare loops."""
    floor = FLOORS[place.store](place.url)
    floor.connect()
    floor.create()
    floor.close()
    rate(floor, inserting_many(scale.count(_BACKLOG if together else _FEW) // PROCESSES))
    return {"tasks/s": rate(floor, claiming(batch, together, scale.seconds(_FLOOR_SECONDS)))}


_SINGLY = Contender("floor 1/1", partial(run_floor, 1, False), setting="claim 1, finish 1")
_BATCHES = tuple(
    Contender(f"floor {batch}/{batch}", partial(run_floor, batch, True), setting=f"claim {batch}, finish {batch}")
    for batch in (50, 500)
)

WORKLOADS = (
    Workload(
        "functions",
        "no-op functions, whose runs finish when they return",
        (Contender("psched", partial(run_backlog, "returns", _BACKLOG)), _SINGLY, *_BATCHES),
    ),
    Workload(
        "finishes",
        "no-op handlers that call task.finish(), which returns when the end is durable",
        (Contender("psched", partial(run_backlog, "finishes", _FEW)), _SINGLY),
    ),
)
