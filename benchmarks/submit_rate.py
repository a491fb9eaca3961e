"""Measures how many tasks and schedules clients create per second, with psched and with bare loops."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import psched
from benchmarks.databases import Place
from benchmarks.driver_loops import Floor, Loop, adding_many, inserting, inserting_many, rate
from benchmarks.floors import FLOORS
from benchmarks.worker import BenchmarkWorker
from benchmarks.workload import Contender, Scale, Workload
from psched.model import NewSchedule, NewTask
from psched.queue.queue import Queue

_SINGLY = 20_000
_BULK = 50_000
_SCHEDULES = 10_000
_EXPRESSIONS = 100
_SECONDS = 2.0


class Client:
    """A client of psched in the form of a `Floor`, so that the loops of the floors can use it."""

    def __init__(self, place: Place) -> None:
        self._config = BenchmarkWorker(place).config
        self._queue: Queue | None = None

    def connect(self) -> None:
        """Open the queue."""
        self._queue = psched.open_queue(self._config)

    def create(self) -> None:
        """Do nothing: `BenchmarkWorker` has created the tables."""

    def insert(self, key: str) -> None:
        """Submit one task."""
        assert self._queue is not None
        self._queue.submit(key, "returns")

    def insert_many(self, keys: list[str]) -> None:
        """Submit many tasks by one call."""
        assert self._queue is not None
        self._queue.submit_many(NewTask(key, "returns") for key in keys)

    def add_many(self, keys: list[str]) -> None:
        """Not used for psched's client."""
        raise NotImplementedError

    def claim(self, limit: int) -> tuple[list[Any], Any]:
        """Not used for psched's client."""
        raise NotImplementedError

    def finish(self, keys: list[Any], fence: Any) -> None:
        """Not used for psched's client."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the queue."""
        assert self._queue is not None
        self._queue.close()


def _loop(bulk: bool, scale: Scale) -> Loop:
    if bulk:
        return inserting_many(scale.count(_BULK))
    return inserting(scale.count(_SINGLY), scale.seconds(_SECONDS))


def submit(bulk: bool, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how many tasks two clients of psched submit per second."""
    return {"tasks/s": rate(Client(place), _loop(bulk, scale))}


def insert(bulk: bool, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how many rows two bare loops write per second."""
    return {"tasks/s": rate(_prepared(place), _loop(bulk, scale))}


def _prepared(place: Place) -> Floor:
    floor: Floor = FLOORS[place.store](place.url)
    floor.connect()
    floor.create()
    floor.close()
    return floor


def add_many_schedules(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how many schedules one client adds per second, by a single call."""
    count = scale.count(_BULK)
    with BenchmarkWorker(place).schedules() as schedules:
        begun = time.monotonic()
        present = schedules.add_many(NewSchedule(f"schedule-{n:07}", "late", _expression(n)) for n in range(count))
        if present:
            raise RuntimeError(f"{len(present)} schedules existed before")
        return {"schedules/s": count / (time.monotonic() - begun)}


def add_rows(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how many rows one bare loop writes per second. The rows are as wide as schedules."""
    return {"schedules/s": rate(_prepared(place), adding_many(scale.count(_BULK)), 1)}


def _expression(number: int) -> str:
    """Return one of a hundred cron expressions."""
    minute, hour = number % 50, number // 50 % (_EXPRESSIONS // 50)
    return f"{minute} {hour} * * *"


def add_schedules(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how many schedules one client adds per second, one by one."""
    count = scale.count(_SCHEDULES)
    with BenchmarkWorker(place).schedules() as schedules:
        begun = time.monotonic()
        for number in range(count):
            schedules.add(f"schedule-{number:07}", "late", cron=_expression(number))
            if time.monotonic() > begun + scale.seconds(_SECONDS):
                count = number + 1
                break
        return {"schedules/s": count / (time.monotonic() - begun)}


WORKLOADS = (
    Workload(
        "submit",
        "tasks submitted one by one",
        (Contender("psched", partial(submit, False)), Contender("floor", partial(insert, False))),
    ),
    Workload(
        "submit-many",
        "tasks submitted in bulk",
        (
            Contender("psched", partial(submit, True)),
            Contender("floor", partial(insert, True), setting="executemany, in one transaction; Redis: 1,000 a script"),
        ),
    ),
    Workload(
        "add",
        "schedules added, 100 expressions",
        (
            Contender("psched", add_many_schedules, setting="add_many"),
            Contender("psched, one by one", add_schedules, setting="add"),
            Contender("floor", add_rows, setting="one process; executemany, in one transaction; Redis: 1,000 a script"),
        ),
    ),
)
