"""What was measured, as a table for people and as JSON. In the measuring process."""

from __future__ import annotations

import os
import platform
import sqlite3
import statistics
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.bench.goals import GOALS
from tests.bench.places import DURABILITY
from tests.lab import absent

_DRIVERS = ("psycopg", "PyMySQL", "redis", "SQLAlchemy")


@dataclass
class Series:
    """All that was measured of one metric of one contender at one store."""

    workload: str
    store: str
    contender: str
    metric: str
    values: list[float] = field(default_factory=list)
    loads: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """What tells one series from another."""
        return self.workload, self.store, self.contender, self.metric


class Record:
    """The series of one run."""

    def __init__(self) -> None:
        self._series: dict[tuple[str, str, str, str], Series] = {}
        self.failures: list[str] = []

    def add(self, workload: str, store: str, contender: str, metrics: Mapping[str, float]) -> None:
        """Keep what was measured once, with the load of the machine then."""
        for metric, value in metrics.items():
            series = Series(workload, store, contender, metric)
            series = self._series.setdefault(series.key, series)
            series.values.append(value)
            series.loads.append(os.getloadavg()[0])

    def as_json(self) -> dict[str, Any]:
        """Return all of it, the machine included."""
        return {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": machine(),
            "durability": DURABILITY,
            "results": [{**vars(series), "median": series.median} for series in self._series.values()],
            "goals": [
                {**vars(goal), "words": goal.words, "found": found[0], "reached": found[1]}
                for goal in GOALS
                if (found := goal.reached(self._medians()))
            ],
            "failures": self.failures,
        }

    def as_text(self) -> Iterator[str]:
        """Yield the lines of the tables, in Markdown."""
        yield "| workload | store | who | metric | median | lowest – highest | load |"
        yield "|---|---|---|---|---|---|---|"
        for series in sorted(self._series.values(), key=lambda each: each.key[:2]):
            low, high = _shown(min(series.values)), _shown(max(series.values))
            load = f"{min(series.loads):.1f}–{max(series.loads):.1f}"
            names = " | ".join((series.workload, series.store, series.contender, series.metric))
            yield f"| {names} | {_shown(series.median)} | {low} – {high} | {load} |"
        yield ""
        yield "| goal | store | who | found | wanted | reached |"
        yield "|---|---|---|---|---|---|"
        for goal in GOALS:
            found = goal.reached(self._medians())
            if found is not None:
                names = f"{goal.workload}, {goal.metric} | {goal.store} | {goal.contender}"
                yield f"| {names} | {found[0]:,.3g} | {goal.words} | {'yes' if found[1] else 'NO'} |"
        for failure in self.failures:
            yield f"FAILED {failure}"

    def _medians(self) -> Mapping[tuple[str, str, str, str], float]:
        return {key: series.median for key, series in self._series.items()}


def _shown(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def machine() -> dict[str, Any]:
    """Return what the figures depend on."""
    return {
        "cpus": os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "servers": [*_servers(), f"SQLite {sqlite3.sqlite_version}"],
        "drivers": {name: version(name) for name in _DRIVERS},
    }


def _processor() -> str:
    try:
        with Path("/proc/cpuinfo").open() as file:
            return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


def _servers() -> Sequence[str]:
    programs = (absent.find("postgres"), absent.find("mariadbd", "mysqld"), absent.find("redis-server"))
    return [
        subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        for program in programs
    ]
