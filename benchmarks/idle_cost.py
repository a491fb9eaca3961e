"""Measures the costs of an idle daemon, and the throughput of many children on one database."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from benchmarks.databases import Place
from benchmarks.driver_loops import Floor, Loop, inserting_many, rate
from benchmarks.floors import FLOORS
from benchmarks.process_usage import memory, processor_time
from benchmarks.shared_counter import ACQUIRES, Tally, in_environment, read_samples
from benchmarks.statement_counter import Asked, counting
from benchmarks.throughput import fill
from benchmarks.worker import BenchmarkWorker
from benchmarks.workload import Contender, Scale, Workload

IDLE_CHILDREN = 4
_CHILDREN = 64
_HANDLER = 0.02
_TASKS = 64_000
_WARMING = 4.0
"""Seconds for which 64 children run before the measurement begins, so that batches reach their full size."""
_SECONDS = 8.0
_SETTLING = 6.0
"""Seconds after which workers that were just started are idle."""
_IDLE = 30.0
"""Seconds of an idle measurement: three times the longest interval of psched's periodic work."""
_CLAIMED = 20
"""How many tasks a bare loop claims together: 0.4 s of work, as with psched."""


def idle(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the costs of an idle daemon with 4 children: statements per second, processor time, memory."""
    with counting(place) as asked, BenchmarkWorker(place, processors=IDLE_CHILDREN) as worker:
        return at_rest(worker.tree, asked, scale)


def at_rest(tree: Callable[[], Sequence[psutil.Process]], asked: Asked, scale: Scale) -> Mapping[str, float]:
    """Wait until a tree of processes is idle, and return its costs."""
    time.sleep(scale.seconds(_SETTLING))
    statements, used, begun = asked(), processor_time(tree()), time.monotonic()
    time.sleep(scale.seconds(_IDLE))
    span = time.monotonic() - begun
    return {
        "CPU %": (processor_time(tree()) - used) / span * 100,
        "PSS MB": memory(tree()) / 1e6,
        "queries/s": (asked() - statements) / span,
    }


def many_children(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the throughput of 64 children whose handlers take 20 ms.

    The share is the throughput divided by the throughput that the handlers allow. Also returns the time of acquires,
    and the number of errors in the log.
    """
    with in_environment(ACQUIRES):
        worker = BenchmarkWorker(place, processors=_CHILDREN)
        with worker.queue() as queue:
            fill(queue, scale.count(_TASKS), "waits")
            with worker:
                worker.wait(lambda: worker.working() >= _CHILDREN or scale.quick, pause=0.1)
                time.sleep(scale.seconds(_WARMING))
                before, cpu, begun = worker.counted().done, worker.cpu(), time.monotonic()
                time.sleep(scale.seconds(_SECONDS))
                done, span = worker.counted().done - before, time.monotonic() - begun
                used = (worker.cpu() - cpu) / max(done, 1)
    errors = sum(" ERROR " in line or "eadlock" in line for line in worker.log.splitlines())
    return {**_among_many(done / span, worker.samples()), "CPU ms per task": used * 1000, "errors": errors}


def bare_loops(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the throughput of 64 bare loops.

    A loop claims 20 tasks, waits 20 ms for each, and finishes all 20 together.
    """
    floor = FLOORS[place.store](place.url)
    floor.connect()
    floor.create()
    floor.close()
    rate(floor, inserting_many(scale.count(_TASKS // 4)))
    done = rate(floor, _waiting(place.folder, scale.seconds(_SECONDS)), _CHILDREN)
    return _among_many(done, read_samples(place.folder))


def _waiting(folder: Path, seconds: float) -> Loop:
    def loop(floor: Floor, number: int) -> int:
        tally, end, done = Tally(folder), time.monotonic() + seconds, 0
        while (begun := time.monotonic()) < end:
            keys, fence = floor.claim(_CLAIMED)
            tally.sample(time.monotonic() - begun)
            for _ in keys:
                time.sleep(_HANDLER)
            if keys:
                floor.finish(keys, fence)
            done += len(keys)
        return done

    return loop


def _among_many(done: float, acquires: Sequence[float]) -> dict[str, float]:
    return {
        "tasks/s": done,
        "share": done / (_CHILDREN / _HANDLER),
        "acquire p99 ms": statistics.quantiles(acquires, n=100)[98] * 1000,
    }


_LARGE = ("postgresql", "mariadb")

WORKLOADS = (
    Workload("idle", "a daemon with 4 children, both sections, nothing to do", (Contender("psched", idle),)),
    Workload(
        "children-64",
        "64 children, handlers of 20 ms",
        (
            Contender("psched", many_children, _LARGE),
            Contender("floor", bare_loops, _LARGE, setting="64 loops: claim 20, wait 20 ms for each, finish 20"),
        ),
    ),
)
