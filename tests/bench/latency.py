"""How soon a handler begins: after a submit to an idle daemon, and after a schedule's time. Defaults throughout."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Mapping, Sequence
from functools import partial

from psched.schedules import ScheduleCollection
from tests.bench.places import Place
from tests.bench.stored import store_schedules
from tests.bench.worker import Worker
from tests.bench.workload import Contender, Scale, Workload

_PICKED = 20
_SINGLE = 10
_TOGETHER = 500
_CRON = "0 0 1 1 *"
_LEAD = 3.0
"""Seconds between the adding of schedules and the first one's time."""
_ADDING = 0.02
"""Seconds that adding one may take."""


def pick_up(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how long after the submit a handler of an idle daemon began."""
    worker = Worker(place)
    with worker.queue() as queue, worker:
        time.sleep(2)
        for number in range(scale.count(_PICKED) + 1):
            queue.submit(f"task-{number}", "picked", {"sent": time.monotonic()})
            worker.wait(lambda expected=number: worker.counted().done > expected)  # type: ignore[misc]
            time.sleep(random.uniform(0.7, 1.7))  # at any place in an interval of polling
        return spread(worker.samples())


def run_due(single: int, together: int, stored: int, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how late schedules ran: `single` ones, each while all is idle, or several `together` in one second."""
    worker = Worker(place)
    with worker.schedules() as schedules:
        if stored:
            _add(schedules, "model", 4_000_000_000.0)
            store_schedules(place, scale.count(stored))
        with worker:
            time.sleep(2)
            first = schedules.store.now() + _LEAD + together * _ADDING
            dues = [float(int(first) + 1)] * together
            dues += [first + number * 1.3 + random.uniform(0, 0.9) for number in range(single)]
            for number, due in enumerate(dues):
                _add(schedules, f"due-{number}", due)
            if together and time.time() > dues[0]:
                raise RuntimeError(f"adding {together} schedules took longer than until they were due")
            worker.wait(lambda: worker.counted().done >= len(dues))
            return spread(worker.samples())


def _add(schedules: ScheduleCollection, key: str, due: float) -> None:
    schedules.add(key, "late", cron=_CRON, next_run_time=due, data={"due": due})


def spread(seconds: Sequence[float]) -> Mapping[str, float]:
    """Return the median and the largest, in milliseconds."""
    return {"p50 ms": statistics.median(seconds) * 1000, "last ms": max(seconds) * 1000}


_SQL = ("postgresql", "mariadb", "sqlite")

WORKLOADS = (
    Workload("pick-up", "submit → handler begins, daemon idle", (Contender("psched", pick_up),)),
    Workload(
        "due-alone",
        "a schedule due while all is idle, late by",
        (
            Contender("psched", partial(run_due, _SINGLE, 0, 0)),
            Contender("1,000 stored", partial(run_due, _SINGLE, 0, 1_000), _SQL),
            Contender("1,000,000 stored", partial(run_due, _SINGLE, 0, 1_000_000), _SQL),
        ),
    ),
    Workload(
        "due-together",
        "500 schedules due in the same second, late by",
        (
            Contender("psched", partial(run_due, 0, _TOGETHER, 0)),
            Contender("1,000 stored", partial(run_due, 0, _TOGETHER, 1_000), _SQL),
            Contender("1,000,000 stored", partial(run_due, 0, _TOGETHER, 1_000_000), _SQL),
        ),
    ),
)
