"""Measures the loads that users have: steady arrivals, mixed backlogs, slow neighbours, failing handlers.

A daemon with eight workers and default settings runs each load. Each load is also simulated in an ideal queue.
"""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from benchmarks import plan
from benchmarks.databases import Place
from benchmarks.plan import WORKERS, PlannedTask
from benchmarks.throughput import run_backlog
from benchmarks.worker import BenchmarkWorker
from benchmarks.workload import Contender, Scale, Workload
from psched.model import NewTask

_STEADY = 20.0
"""Seconds for which tasks arrive."""
_TAIL = 60.0
"""Seconds for which the tasks of the long tail arrive: in 30 s, eleven of them decided the 99th percentile."""
_REST = 3.0
"""Seconds after which workers that were just started are idle."""
_BACKLOG = 6_000
_STORM = 6_000
_MILLION = 1_000_000
_PAGE = 500

Plan = Callable[[Scale], Sequence[PlannedTask]]


def waits(make: Plan, place: Place, scale: Scale) -> Mapping[str, float]:
    """Submit the tasks of a plan at their times, and return how long the tasks waited."""
    jobs = make(scale)
    worker = BenchmarkWorker(place, processors=WORKERS)
    with worker.queue() as queue, worker:
        time.sleep(_REST)
        numbers, before = itertools.count(), worker.cpu()
        late = plan.submit_in_time(jobs, lambda job: queue.submit(f"task-{next(numbers)}", job.type, plan.data_of(job)))
        worker.wait(lambda: worker.counted().done >= len(jobs), pause=0.05)
        used = (worker.cpu() - before) / len(jobs)
        return {**spread(worker.samples()), "CPU ms per task": used * 1000, "submitted late by ms": late * 1000}


def ideal_waits(make: Plan, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how long the tasks of a plan wait in an ideal queue."""
    return spread(plan.ideal_waits(make(scale)))


def share(make: Plan, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the throughput of a daemon that starts with a backlog, as a share of what its handlers allow.

    Also returns the time from the first run of the first child to the first run of the last child.
    """
    jobs = make(scale)
    worker = BenchmarkWorker(place, processors=WORKERS, retry_wait=_RETRY_WAIT)
    with worker.queue() as queue:
        for start in range(0, len(jobs), _PAGE):
            numbered = enumerate(jobs[start : start + _PAGE], start)
            queue.submit_many([NewTask(f"task-{number}", job.type, plan.data_of(job)) for number, job in numbered])
        with worker:
            attempts = sum(1 + job.raises for job in jobs)
            worker.wait(lambda: worker.counted().done >= attempts, pause=0.02)
            counted, firsts = worker.counted(), worker.firsts()
    return {
        "share": plan.least_seconds(jobs) / (counted.last - counted.first),
        "last child ms": (max(firsts) - min(firsts)) * 1000,
    }


def spread(seconds: Sequence[float]) -> Mapping[str, float]:
    """Return the median, the 99th percentile and the maximum, in milliseconds."""
    percentiles = statistics.quantiles(seconds, n=100)
    return {"p50 ms": percentiles[49] * 1000, "p99 ms": percentiles[98] * 1000, "longest ms": max(seconds) * 1000}


_IDEAL = "simulated: eight workers, first come, first served, at no cost"
_RETRY_WAIT = {"first": 0.5, "factor": 1, "limit": 0.5, "jitter": 0}


def _steady(percent: int, scale: Scale) -> Sequence[PlannedTask]:
    return plan.steady(percent / 100, scale.seconds(_STEADY))


def _long_tail(own_type: bool, scale: Scale) -> Sequence[PlannedTask]:
    return plan.long_tail(scale.seconds(_TAIL), own_type)


def mixed_backlog(scale: Scale) -> Sequence[PlannedTask]:
    """Return the tasks of a mixed backlog."""
    return plan.backlog(scale.count(_BACKLOG))


ARRIVALS: dict[str, tuple[str, Plan]] = {
    **{
        f"steady-{percent}": (
            f"tasks of 50 types that take 1–50 ms arrive at random, at {percent} % of the capacity of 8 workers: waits",
            partial(_steady, percent),
        )
        for percent in (30, 60, 90)
    },
    "long-tail-other": (
        "short tasks that do nothing; one task in twenty takes 2 s and has another type: waits of the short tasks",
        partial(_long_tail, True),
    ),
    "long-tail-same": (
        "short tasks that do nothing; one task in twenty takes 2 s and has the same type: waits of the short tasks",
        partial(_long_tail, False),
    ),
}
"""The workloads in which tasks arrive over time: for each, what it measures, and its plan."""

WORKLOADS = (
    *(
        Workload(
            name,
            what,
            (
                Contender("psched", partial(waits, make)),
                Contender("ideal", partial(ideal_waits, make), setting=_IDEAL, once=True),
            ),
        )
        for name, (what, make) in ARRIVALS.items()
    ),
    Workload(
        "mixed-backlog",
        "a daemon with 8 workers starts on a backlog of tasks of 50 types, 1–50 ms long: share of the ideal tasks/s",
        (Contender("psched", partial(share, mixed_backlog)),),
    ),
    Workload(
        "retry-storm",
        "the same with tasks of 5 ms, of which one in five fails twice",
        (Contender("psched", partial(share, lambda scale: plan.retry_storm(scale.count(_STORM)))),),
    ),
    Workload(
        "million",
        "no-op function handlers, of which a million wait",
        (Contender("psched", partial(run_backlog, "returns", _MILLION)),),
    ),
)
