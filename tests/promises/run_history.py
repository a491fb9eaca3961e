"""The history that `recording_handlers` write, and its checker.

Handlers append one line at a time, with the time of CLOCK_BOOTTIME, which no test changes. A violation is excused only
by a death that the test has recorded. A history without runs is a violation.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Any

from psched.clock import boottime
from tests.daemon.harness import read_lines

_TOLERANCE = 0.05
"""The largest difference in seconds between two readings of clocks on one host that are made together."""


@dataclass(frozen=True)
class Run:
    """One run as its handler recorded it. Times are boottime seconds. `end`: None if the run was cut off.

    `outcome`: the result of settling: "finished", the name of an exception, or None if none was recorded.
    """

    key: str
    occurrence: int
    pid: int
    begin: float
    end: float | None = None
    outcome: str | None = None
    master: int = 0
    fence: int | None = None


def read_runs(path: Path) -> list[Run]:
    """Return the recorded runs in the order in which they began."""
    runs: dict[str, dict[str, Any]] = {}
    for line in read_lines(path):
        run = runs.setdefault(line["run"], {})
        if line["event"] == "begin":
            run |= {name: line[name] for name in ("key", "occurrence", "pid", "master", "fence")}
            run["begin"] = line["at"]
        elif line["event"] == "end":
            run["end"] = line["at"]
        elif line["event"] == "settled":
            run["outcome"] = line["outcome"]
    return sorted((Run(**run) for run in runs.values()), key=lambda run: run.begin)


def judge(
    runs: Sequence[Run], required: Mapping[str, Iterable[int]], deaths: Mapping[int, float] | None = None
) -> list[str]:
    """Return the violations in a history. There are none if each required occurrence ran once and in order.

    A schedule may have run later occurrences too, but without a gap if `required` has none. `deaths`: the boottime at
    which the test killed each pid. A run that such a death has cut off may run again afterwards.
    """
    declared = {} if deaths is None else deaths
    by_key: dict[str, list[Run]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.begin):
        by_key[run.key].append(run)
    found = [] if runs and any(required.values()) else ["nothing was run, or nothing was to be"]
    found += [f"{key}: nobody asked for this to be run" for key in by_key.keys() - required.keys()]
    for key, occurrences in required.items():
        found += _lost(key, by_key[key], occurrences)
        found += _early(by_key[key])
        found += _overlapping(by_key[key], declared)
        found += _out_of_order(by_key[key])
        found += _repeated(by_key[key], declared)
    return found


def _lost(key: str, runs: Sequence[Run], required: Iterable[int]) -> Iterator[str]:
    complete = {run.occurrence for run in runs if run.end is not None}
    wanted = set(required)
    last = max(wanted, default=0)
    for occurrence in sorted(wanted - complete):
        yield f"{key}: {occurrence} was lost"
    for run in runs:
        if run.occurrence not in wanted and run.occurrence < last:
            yield f"{key}: {run.occurrence} is no occurrence"


def _early(runs: Sequence[Run]) -> Iterator[str]:
    boot = time.time() - boottime()
    for run in runs:
        early = run.occurrence - (boot + run.begin)
        if early > _TOLERANCE:
            yield f"{run.key}: {run.occurrence} was begun {early:.3f} s early"


def _overlapping(runs: Sequence[Run], deaths: Mapping[int, float]) -> Iterator[str]:
    over, whose = 0.0, 0
    for run in runs:
        if run.begin < over:
            yield f"{run.key}: {run.occurrence} was begun in {run.pid} before it was over in {whose}"
        over, whose = max((over, whose), (_over(run, deaths), run.pid))


def _over(run: Run, deaths: Mapping[int, float]) -> float:
    """Return the latest boottime at which the run can have been over."""
    return deaths.get(run.pid, inf) if run.end is None else run.end


def _out_of_order(runs: Sequence[Run]) -> Iterator[str]:
    for before, after in pairwise(runs):
        if after.occurrence < before.occurrence:
            yield f"{after.key}: {after.occurrence} was run after {before.occurrence}"
        if before.fence is not None and after.fence is not None and after.fence <= before.fence:
            yield f"{after.key}: the fence {after.fence} came after {before.fence}"


def _repeated(runs: Sequence[Run], deaths: Mapping[int, float]) -> Iterator[str]:
    for number, run in enumerate(runs):
        again = any(later.occurrence == run.occurrence for later in runs[number + 1 :])
        if again and (run.outcome == "finished" or run.pid not in deaths):
            yield f"{run.key}: {run.occurrence} was run again after it was {run.outcome or 'not settled'} in {run.pid}"
