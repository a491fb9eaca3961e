"""Measures the delay from a submit, or from a schedule's time, to the start of the handler."""

from __future__ import annotations

import statistics
import time
from collections import Counter
from collections.abc import Mapping, Sequence

from benchmarks.databases import Place
from benchmarks.floors.acquired import begun_after
from benchmarks.floors.calls import called_after
from benchmarks.pauses import pauses
from benchmarks.process_usage import memory
from benchmarks.worker import BenchmarkWorker
from benchmarks.workload import Contender, Scale, Workload
from psched.model import NewSchedule
from psched.queue.queue import Queue
from psched.schedules.collection import ScheduleCollection

PICKED = 13
"""How many single tasks are measured. With a Fibonacci number, `pauses` covers an interval most evenly."""
SINGLE = 8
TOGETHER = 500
STORED = 1_000
"""How many schedules are stored that are not due."""
REST = 3.0
"""Seconds after which workers that were just started are idle."""
_CRON = "0 0 1 1 *"
_LEAD = 2.0
"""The minimum number of seconds from adding schedules to the time of the first. By then the pollers are idle."""
_FAR = 4_000_000_000.0


def pick_up(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the delay from a submit to the start of the handler, with an idle daemon."""
    worker = BenchmarkWorker(place)
    store_some(worker)
    with worker.queue() as queue, worker:
        time.sleep(REST)
        return spread(submit_singly(worker, queue, scale.count(PICKED)))


def due_alone(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how late single schedules ran."""
    worker = BenchmarkWorker(place)
    store_some(worker)
    with worker.schedules() as schedules, worker:
        time.sleep(REST)
        return spread(add_singly(worker, schedules, scale.count(SINGLE)))


def due_together(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how late many schedules of the same second ran, in a first burst and in a second."""
    worker = BenchmarkWorker(place)
    store_some(worker)
    with worker.schedules() as schedules, worker:
        time.sleep(REST)
        return bursts(worker, schedules, scale)


def bursts(worker: BenchmarkWorker, schedules: ScheduleCollection, scale: Scale) -> Mapping[str, float]:
    """Return how late the runs of two bursts were, and the memory of the daemon's processes after them."""
    first = spread(add_together(worker, schedules, scale.count(TOGETHER)))
    second = spread(add_together(worker, schedules, scale.count(TOGETHER)))
    again = {f"second {metric}": value for metric, value in second.items()}
    return {**first, **again, "PSS MB": memory(worker.tree()) / 1e6}


def submit_singly(worker: BenchmarkWorker, queue: Queue, count: int) -> Sequence[float]:
    """Submit one task after another. Return for each task how many seconds later its handler began."""
    known, done = worker.samples(), worker.counted().done
    for number, pause in enumerate(pauses(count), 1):
        time.sleep(pause)
        sent = time.monotonic()
        queue.submit(f"task-{sent}", "picked", {"sent": sent})
        time.sleep(0.02)  # checking immediately would take processor time from the worker
        worker.wait(lambda expected=done + number: worker.counted().done >= expected, pause=0.02)  # type: ignore[misc]
    return _new(worker, known)


def add_singly(worker: BenchmarkWorker, schedules: ScheduleCollection, count: int) -> Sequence[float]:
    """Add schedules that are due one after another. Return how many seconds late each run began."""
    due, dues = schedules.store.now() + _LEAD, []
    for pause in pauses(count):
        due += pause
        dues.append(due)
    return _run(worker, schedules, dues)


def add_together(worker: BenchmarkWorker, schedules: ScheduleCollection, count: int) -> Sequence[float]:
    """Add schedules that are due in the same second. Return how many seconds late each run began."""
    return _run(worker, schedules, [float(int(schedules.store.now() + _LEAD) + 1)] * count)


def _run(worker: BenchmarkWorker, schedules: ScheduleCollection, dues: Sequence[float]) -> Sequence[float]:
    known, done = worker.samples(), worker.counted().done
    schedules.add_many(
        NewSchedule(f"due-{due}-{number}", "late", _CRON, next_run_time=due, data={"due": due})
        for number, due in enumerate(dues)
    )
    if time.time() > dues[0] - _LEAD / 2:
        raise RuntimeError(
            f"adding {len(dues)} schedules took too long: the pollers would not be idle when the first is due"
        )
    time.sleep(max(0.0, dues[-1] - time.time()) + 0.2)  # checking earlier would take processor time from the workers
    worker.wait(lambda: worker.counted().done >= done + len(dues), pause=0.02)
    return _new(worker, known)


def _new(worker: BenchmarkWorker, known: Sequence[float]) -> Sequence[float]:
    return list((Counter(worker.samples()) - Counter(known)).elements())


def store_some(worker: BenchmarkWorker) -> None:
    """Add a thousand schedules that are not due."""
    with worker.schedules() as schedules:
        schedules.add_many(NewSchedule(f"far-{number}", "late", _CRON, next_run_time=_FAR) for number in range(STORED))


def called(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how soon a bare driver is notified of a row that another process has written."""
    return spread(called_after(place.store, place.url, pauses(scale.count(PICKED))))


def acquired(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how soon a bare driver in psched's three processes begins what was written."""
    return spread(begun_after(place.store, place.url, pauses(scale.count(PICKED))))


def spread(seconds: Sequence[float]) -> Mapping[str, float]:
    """Return the median and the largest value, in milliseconds."""
    return {"p50 ms": statistics.median(seconds) * 1000, "last ms": max(seconds) * 1000}


WORKLOADS = (
    Workload(
        "pick-up",
        "submit → handler begins, daemon idle",
        (
            Contender("psched", pick_up),
            Contender(
                "floor", called, ("postgresql", "redis"), setting="a row and its NOTIFY in one statement; LPUSH, BLPOP"
            ),
            Contender(
                "floor, acquired",
                acquired,
                ("postgresql", "redis"),
                setting="the same, then a durable lease and a message to a third process",
            ),
        ),
        side_by_side=True,
    ),
    Workload(
        "due-alone",
        "one schedule is due while everything is idle: lateness",
        (Contender("psched", due_alone),),
        side_by_side=True,
    ),
    Workload(
        "due-together", "500 schedules are due in the same second: lateness", (Contender("psched", due_together),)
    ),
)
