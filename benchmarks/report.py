"""Results as objects and as JSON. Runs in the measuring process."""

from __future__ import annotations

import os
import platform
import re
import sqlite3
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.databases import DURABILITY
from benchmarks.goals import GOALS, Goal, Rounds
from faultlab import prerequisites

_DRIVERS = ("psycopg", "PyMySQL", "redis", "SQLAlchemy")
_SERVERS = {"PostgreSQL": ("postgres",), "MariaDB": ("mariadbd", "mysqld"), "Redis": ("redis-server",)}
_VERSION = re.compile(r"\d+\.[\d.]+")


@dataclass
class Series:
    """All values of one metric of one contender with one store."""

    workload: str
    store: str
    contender: str
    metric: str
    values: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The median of the values."""
        return statistics.median(self.values)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """The key that distinguishes this series from others."""
        return self.workload, self.store, self.contender, self.metric


class BenchmarkRecord:
    """The series of one run of the benchmark, or of several runs."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str, str], Series] = {}
        self._seconds: dict[str, float] = {}
        self._about: dict[str, Any] = {}
        self.failures: list[str] = []

    def add(
        self, workload: str, store: str, contender: str, metrics: Mapping[str, float], seconds: float = 0.0
    ) -> None:
        """Record the values of one measurement, with the seconds that it took, and the present load of the machine."""
        self._seconds[workload] = self._seconds.get(workload, 0.0) + seconds
        for metric, value in metrics.items():
            self._keep(Series(workload, store, contender, metric, [value], [os.getloadavg()[0]]))

    def take(self, results: Mapping[str, Any]) -> None:
        """Add the results of another run, in the form of `as_json`. Keep the date and machine of the first run."""
        self._about = self._about or {name: results[name] for name in ("date", "machine", "durability")}
        for each in results["results"]:
            self._keep(Series(**{name: value for name, value in each.items() if name != "median"}))
        for workload, seconds in results["seconds"].items():
            self._seconds[workload] = self._seconds.get(workload, 0.0) + seconds
        self.failures += results["failures"]

    def _keep(self, new: Series) -> None:
        series = self._series.setdefault(new.key, Series(*new.key))
        series.values += new.values
        series.loads += new.loads

    def as_json(self) -> dict[str, Any]:
        """Return all results, and the description of the machine, as a JSON object."""
        return {
            **self.about(),
            "results": [{**vars(series), "median": series.median} for series in self._series.values()],
            "goals": [shown for goal in GOALS if (shown := self._judged(goal))],
            "seconds": self._seconds,
            "failures": self.failures,
        }

    def about(self) -> Mapping[str, Any]:
        """Return the date and the description of the machine."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._about = self._about or {"date": now, "machine": machine(), "durability": DURABILITY}
        return self._about

    def _judged(self, goal: Goal) -> dict[str, Any] | None:
        verdict = goal.reached(self.rounds())
        if verdict is None:
            return None
        ratios = [(each.words, each.reached(self.rounds())) for each in goal.ratios()]
        return {
            **{name: getattr(goal, name) for name in ("workload", "store", "metric", "words")},
            **verdict._asdict(),
            "ratios": [{"words": words, **found._asdict()} for words, found in ratios if found],
        }

    def series(self) -> Sequence[Series]:
        """Return all series, in the order in which they were first measured."""
        return list(self._series.values())

    def seconds(self) -> Mapping[str, float]:
        """Return how many seconds each workload took, including start and stop."""
        return self._seconds

    def rounds(self) -> Rounds:
        """Return the values of each series."""
        return {key: series.values for key, series in self._series.items()}


@cache
def machine() -> dict[str, Any]:
    """Return the properties of this machine on which results depend."""
    return {
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "servers": [*(_version(name) for name in _SERVERS), f"SQLite {sqlite3.sqlite_version}"],
        "drivers": {name: version(name) for name in _DRIVERS},
    }


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open() as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


def _version(server: str) -> str:
    program = prerequisites.find(*_SERVERS[server])
    said = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    found = _VERSION.search(said)
    return f"{server} {found[0] if found else said.strip()}"
