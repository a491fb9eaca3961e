"""The peers as contenders of the benchmark's workloads. Runs in the measuring process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

from benchmarks import plan
from benchmarks.databases import Place
from benchmarks.idle_cost import IDLE_CHILDREN, at_rest
from benchmarks.latency import PICKED, REST, SINGLE, TOGETHER, spread
from benchmarks.peers.peer_processes import Crew
from benchmarks.plan import WORKERS
from benchmarks.statement_counter import counting
from benchmarks.user_loads import ARRIVALS, Plan, mixed_backlog
from benchmarks.user_loads import spread as spread_of_load
from benchmarks.workload import Contender, Measure, Scale

_SECONDS = 4.0
_CHILDREN = 2
_ADDED = 2_000


@dataclass(frozen=True)
class Library:
    """A peer: its script, whether its process forks children, and the size of its backlog."""

    name: str
    script: str
    stores: tuple[str, ...]
    setting: str
    forks: bool
    backlog: int = 20_000

    def crews(self, children: int) -> tuple[int, str, int]:
        """Return how many processes to start, their verb, and the number of children of each."""
        return (1 if self.forks else children), "work", children

    def servers(self) -> tuple[int, str, int]:
        """Return how many processes to start for a plan, their verb, and the number of workers of each."""
        return 1, "serve", WORKERS


def run_backlog(library: Library, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the tasks per second from the first handler to the last, or until the time is over."""
    crew = Crew(library.script, place)
    count = scale.count(library.backlog)
    crew.run("fill", count)
    with crew.at_work(*library.crews(_CHILDREN)):
        crew.wait(lambda: crew.counted().done > 0, pause=0.002)
        before, end = crew.cpu(), time.monotonic() + scale.seconds(_SECONDS)
        crew.wait(lambda: crew.counted().done >= count or time.monotonic() > end)
        counted, used = crew.counted(), crew.cpu() - before
    rate = counted.done / (counted.last - counted.first)
    return {"tasks/s": rate, "CPU s per 10,000": used / counted.done * 10_000}


def pick_up(library: Library, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the delay from a submit to the start of the handler, with idle workers."""
    crew = Crew(library.script, place)
    crew.run("fill", 1)
    count = scale.count(PICKED)
    with crew.at_work(*library.crews(_CHILDREN)):
        crew.wait(lambda: crew.counted().done == 1)
        crew.run("pick", count)
        crew.wait(lambda: crew.counted().done == count + 1)
        return spread(crew.samples())


def idle(library: Library, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the costs of four idle workers."""
    crew = Crew(library.script, place)
    crew.run("fill", 1)
    with counting(place) as asked, crew.at_work(*library.crews(IDLE_CHILDREN)):
        crew.wait(lambda: crew.counted().done == 1)
        return at_rest(crew.tree, asked, scale)


def waits(library: Library, make: Plan, place: Place, scale: Scale) -> Mapping[str, float]:
    """Submit the tasks of a plan at their times, and return how long the tasks waited."""
    crew, jobs = Crew(library.script, place), make(scale)
    crew.run("fill", 0)
    path = place.folder / "plan.json"
    plan.write(jobs, path)
    with crew.at_work(*library.servers()):
        time.sleep(REST)
        late = float(crew.run("load", path))
        crew.wait(lambda: crew.counted().done >= len(jobs))
        return {**spread_of_load(crew.samples()), "submitted late by ms": late * 1000}


def share(library: Library, make: Plan, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return the throughput as a share of the throughput that the handlers allow."""
    crew, jobs = Crew(library.script, place), make(scale)
    crew.run("fill", 0)
    path = place.folder / "plan.json"
    plan.write(jobs, path)
    crew.run("load", path)
    with crew.at_work(*library.servers()):
        crew.wait(lambda: crew.counted().done >= len(jobs))
        counted = crew.counted()
    return {"share": plan.least_seconds(jobs) / (counted.last - counted.first)}


def due_alone(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how late single schedules of APScheduler ran."""
    crew, count = Crew(_APSCHEDULER, place), scale.count(SINGLE)
    with crew.at_work(1, "due-alone", count):
        crew.wait(lambda: crew.counted().done == count)
        return spread(crew.samples())


def due_together(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how late many schedules of the same second ran, in a first burst and in a second."""
    crew, count = Crew(_APSCHEDULER, place), scale.count(TOGETHER)
    with crew.at_work(1, "due-together", count):
        crew.wait(lambda: crew.counted().done == count, pause=0.1)
        first = crew.samples()
        crew.wait(lambda: crew.counted().done == 2 * count, pause=0.1)
        second = (Counter(crew.samples()) - Counter(first)).elements()
    return {**spread(first), **{f"second {name}": value for name, value in spread(list(second)).items()}}


def add_schedules(place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how many schedules one scheduler adds per second."""
    return {"schedules/s": float(Crew(_APSCHEDULER, place).run("add", scale.count(_ADDED)))}


_APSCHEDULER = "apscheduler_peer.py"
_LIBRARIES = (
    Library("PgQueuer", "pgqueuer_peer.py", ("postgresql",), "asyncpg, uvloop, batches of 500", False, 60_000),
    Library("Procrastinate", "procrastinate_peer.py", ("postgresql",), "asynchronous, concurrency 10", False, 6_000),
    Library("huey", "huey_peer.py", ("sqlite", "redis"), "at most once, no results, fsync", True),
    Library("Celery", "celery_peer.py", ("redis",), "acks_late, prefetch 100, no results", True, 6_000),
)


def _each(measure: Callable[[Library, Place, Scale], Mapping[str, float]]) -> tuple[Contender, ...]:
    return tuple(
        Contender(each.name, partial(measure, each), each.stores, each.setting, peer=True) for each in _LIBRARIES
    )


def _once(contender: Contender) -> Contender:
    """Return `contender` for a single round, because an idle measurement is long and its results differ little.

    Leaves out SQLite, where the statements of peers cannot be counted.
    """
    return replace(contender, once=True, stores=tuple(store for store in contender.stores if store != "sqlite"))


def _planned(
    measure: Callable[[Library, Plan, Place, Scale], Mapping[str, float]], make: Plan
) -> tuple[Contender, ...]:
    return _each(lambda library, place, scale: measure(library, make, place, scale))


def _scheduler(measure: Measure) -> tuple[Contender, ...]:
    return (Contender("APScheduler 3", measure, setting="at most once, one process", peer=True),)


PEERS: dict[str, tuple[Contender, ...]] = {
    "functions": _each(run_backlog),
    "pick-up": _each(pick_up),
    "idle": tuple(_once(each) for each in _each(idle)),
    "due-alone": _scheduler(due_alone),
    "due-together": _scheduler(due_together),
    "add": _scheduler(add_schedules),
    **{name: _planned(waits, make) for name, (_, make) in ARRIVALS.items()},
    "mixed-backlog": _planned(share, mixed_backlog),
}
"""For each workload, the peers that take part in it."""
