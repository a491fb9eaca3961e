"""What a daemon costs when there is nothing to do, and what many children on one database get done."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Mapping

import psutil

from tests.bench.places import Place, statements_so_far
from tests.bench.throughput import fill
from tests.bench.worker import Worker
from tests.bench.workload import Contender, Scale, Workload

_CHILDREN = 64
_HANDLER = 0.02
_TASKS = 80_000
_WARMING = 12.0
"""Seconds in which all children are called from their reserve, and open their stores."""
_SECONDS = 10.0
_SETTLING = 12.0
"""Seconds after which a session of PostgreSQL has told what it did, at the latest, and workers have come to rest."""


def idle(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return what a daemon with 4 children costs that has nothing to do: statements, processor time, memory."""
    with Worker(place, processors=4) as worker:
        time.sleep(_SETTLING)
        queries, cpu, begun = statements_so_far(place), worker.cpu(), time.monotonic()
        time.sleep(max(scale.seconds(30), _SETTLING))
        span = time.monotonic() - begun
        used = worker.cpu() - cpu
        found = {"CPU %": used / span * 100, "PSS MB": _memory(worker) / 1e6}
        if queries is not None:
            now = statements_so_far(place)
            assert now is not None
            found["queries/s"] = (now - queries) / span
        return found


def many_children(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return what 64 children get done whose handlers take 20 ms, as a share of what the handlers allow."""
    os.environ["PSCHED_BENCH_ACQUIRES"] = "1"
    try:
        worker = Worker(place, processors=_CHILDREN)
        with worker.queue() as queue:
            fill(queue, scale.count(_TASKS), "waits")
            with worker:
                worker.wait(lambda: worker.counted().done > _CHILDREN * 4)
                time.sleep(scale.seconds(_WARMING))
                before, begun = worker.counted().done, time.monotonic()
                time.sleep(scale.seconds(_SECONDS))
                done, span = worker.counted().done - before, time.monotonic() - begun
        waits = worker.samples()
    finally:
        del os.environ["PSCHED_BENCH_ACQUIRES"]
    return {
        "tasks/s": done / span,
        "share": done / span / (_CHILDREN / _HANDLER),
        "acquire p99 ms": statistics.quantiles(waits, n=100)[98] * 1000,
        "errors": sum(" ERROR " in line or "eadlock" in line for line in worker.log.splitlines()),
    }


def _memory(worker: Worker) -> float:
    """Return the memory of the tree, shared pages counted once (PSS), in bytes."""
    return float(sum(process.memory_full_info().pss for process in worker.tree() if psutil.pid_exists(process.pid)))


WORKLOADS = (
    Workload("idle", "a daemon with 4 children, both sections, nothing to do", (Contender("psched", idle),)),
    Workload(
        "children-64",
        "64 children, handlers of 20 ms",
        (Contender("psched", many_children, ("postgresql", "mariadb")),),
    ),
)
