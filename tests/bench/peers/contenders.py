"""Others as contenders: their scripts run on the interpreter of a virtualenv of their own. In the measuring process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

from tests.bench.latency import spread
from tests.bench.places import Place
from tests.bench.tally import VARIABLE, Counted, read_samples, read_tally
from tests.bench.workload import Contender, Scale
from tests.programs import ROOT

_HERE = Path(__file__).parent
_VENV = ROOT / ".bench-peers"
_BACKLOG = 20_000
_SECONDS = 10.0
_PATIENCE = 180.0


def install() -> None:
    """Make the virtualenv of the peers, if it is not there: what the dependency group `bench` names."""
    if (_VENV / ".complete").exists():
        return
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]["bench"]
    subprocess.run([sys.executable, "-m", "venv", _VENV], check=True)
    subprocess.run([_VENV / "bin/python", "-m", "pip", "install", "--quiet", *wanted], check=True)
    (_VENV / ".complete").touch()


class Crew:
    """The processes of one peer at one place."""

    def __init__(self, script: str, place: Place) -> None:
        self._command = [str(_VENV / "bin/python"), str(_HERE / script)]
        self._place = place
        self._folder = place.folder / "tally"
        self._folder.mkdir()
        self._workers: list[psutil.Process] = []
        self._environment = {**os.environ, "PYTHONPATH": str(ROOT), VARIABLE: str(self._folder)}

    def run(self, verb: str, count: int) -> None:
        """Do one thing to its end."""
        subprocess.run(self._words(verb, count), env=self._environment, check=True, stdout=subprocess.DEVNULL)

    @contextmanager
    def at_work(self, processes: int, verb: str = "work", count: int = 0) -> Iterator[list[psutil.Process]]:
        """Yield the workers, and kill them with all their children afterwards."""
        log = (self._place.folder / "peer.log").open("wb")
        words = self._words(verb, count)
        started = [
            subprocess.Popen(words, env=self._environment, stdout=log, stderr=log, start_new_session=True)
            for _ in range(processes)
        ]
        self._workers = workers = [psutil.Process(process.pid) for process in started]
        try:
            yield workers
        finally:
            for process in [child for worker in workers for child in worker.children(recursive=True)] + workers:
                process.kill()
            for each in started:
                each.wait()
            log.close()

    def counted(self) -> Counted:
        """Return what handlers have counted."""
        return read_tally(self._folder)

    def samples(self) -> list[float]:
        """Return what handlers have measured."""
        return read_samples(self._folder)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Return once the condition is true; raises RuntimeError when it never is."""
        deadline = time.monotonic() + _PATIENCE
        while not condition():
            ended = any(not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE for worker in self._workers)
            if ended or time.monotonic() > deadline:
                raise RuntimeError((self._place.folder / "peer.log").read_text()[-2000:])
            time.sleep(0.005)

    def _words(self, verb: str, count: int) -> list[str]:
        return [*self._command, verb, self._place.url, str(count)]


def _cpu(workers: list[psutil.Process]) -> float:
    tree = [*workers, *(child for worker in workers for child in worker.children(recursive=True))]
    return float(sum(sum(process.cpu_times()[:2]) for process in tree))


def run_backlog(script: str, processes: int, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return tasks per second from the first handler to the last, or to the end of the time given."""
    crew = Crew(script, place)
    count = scale.count(_BACKLOG)
    crew.run("fill", count)
    with crew.at_work(processes) as workers:
        crew.wait(lambda: crew.counted().done > 0)
        before, end = _cpu(workers), time.monotonic() + scale.seconds(_SECONDS)
        crew.wait(lambda: crew.counted().done >= count or time.monotonic() > end)
        counted, used = crew.counted(), _cpu(workers) - before
    rate = counted.done / (counted.last - counted.first)
    return {"tasks/s": rate, "CPU s per 10,000": used / counted.done * 10_000}


def pick_up(script: str, processes: int, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how long after the submit a handler of an idle worker began."""
    crew = Crew(script, place)
    crew.run("fill", 1)
    count = scale.count(20)
    with crew.at_work(processes):
        crew.wait(lambda: crew.counted().done == 1)
        crew.run("pick", count)
        crew.wait(lambda: crew.counted().done == count + 1)
        return spread(crew.samples())


def run_due(verb: str, count: int, place: Place, scale: Scale) -> Mapping[str, float]:
    """Return how late APScheduler's schedules ran."""
    crew = Crew("apscheduler_peer.py", place)
    with crew.at_work(1, verb, count):
        crew.wait(lambda: crew.counted().done == count)
        return spread(crew.samples())


_PEERS = (
    ("PgQueuer", "pgqueuer_peer.py", 2, ("postgresql",), "asyncpg, uvloop, batches of 500"),
    ("Procrastinate", "procrastinate_peer.py", 2, ("postgresql",), "asynchronous, concurrency 10"),
    ("huey", "huey_peer.py", 1, ("sqlite", "redis"), "at most once, no results, fsync"),
    ("Celery", "celery_peer.py", 1, ("redis",), "acks_late, prefetch 100, no results"),
)
_APSCHEDULER = ("postgresql", "mariadb", "sqlite")


def _due(verb: str, count: int) -> tuple[Contender, ...]:
    return (Contender("APScheduler 3", partial(run_due, verb, count), _APSCHEDULER, "at most once", peer=True),)


PEERS: dict[str, tuple[Contender, ...]] = {
    "functions": tuple(
        Contender(name, partial(run_backlog, script, many), stores, how, peer=True)
        for name, script, many, stores, how in _PEERS
    ),
    "pick-up": tuple(
        Contender(name, partial(pick_up, script, many), stores, how, peer=True)
        for name, script, many, stores, how in _PEERS
    ),
    "due-alone": _due("due-alone", 10),
    "due-together": _due("due-together", 500),
}
"""Workload → who else does it."""
