"""Runs the measurements in rounds. Measurements that mostly wait run side by side. Runs in the measuring process."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.databases import Grounds
from benchmarks.report import BenchmarkRecord
from benchmarks.workload import Contender, Scale, Workload


@dataclass(frozen=True)
class Measurement:
    """One measurement: a workload, a store, and a contender."""

    workload: Workload
    store: str
    contender: Contender

    @property
    def name(self) -> str:
        """The name for reports."""
        return f"{self.workload.name}, {self.store}, {self.contender.name}"

    @property
    def kind(self) -> str:
        """The kind of contender. Only measurements with contenders of the same kind run side by side."""
        return "peer" if self.contender.peer else self.contender.name


@dataclass(frozen=True)
class BenchmarkOutcome:
    """The result of a measurement, or why it failed. `seconds`: how long the measurement took."""

    measurement: Measurement
    metrics: Mapping[str, float]
    seconds: float
    failure: str = ""


def in_groups(wanted: Iterable[Measurement], apart: bool) -> Iterator[Sequence[Measurement]]:
    """Yield the measurements that run at the same time: single ones, or several of a `side_by_side` workload."""
    for workload, same in itertools.groupby(wanted, key=lambda each: each.workload):
        measurements = list(same)
        if apart or not workload.side_by_side:
            yield from ([each] for each in measurements)
        else:
            kinds = dict.fromkeys(each.kind for each in measurements)
            yield from ([each for each in measurements if each.kind == kind] for kind in kinds)


def measure(grounds: Grounds, record: BenchmarkRecord, group: Sequence[Measurement], scale: Scale) -> None:
    """Make the measurements of a group once, and record the results. A failure is reported, and the others continue."""
    begun = time.monotonic()
    if len(group) == 1:  # in this thread, so that an interrupt ends the measurement immediately
        outcomes = [_outcome(grounds, group[0], scale)]
    else:
        with ThreadPoolExecutor(len(group)) as threads:
            outcomes = list(threads.map(lambda each: _outcome(grounds, each, scale), group))
    for outcome in outcomes:
        _keep(record, outcome, (time.monotonic() - begun) / len(group))


def _outcome(grounds: Grounds, measurement: Measurement, scale: Scale) -> BenchmarkOutcome:
    contender, store, begun = measurement.contender, measurement.store, time.monotonic()
    name = measurement.workload.name
    try:
        with grounds.lasting(store, name) if contender.lasting else grounds.place(store) as place:
            metrics = contender.measure(place, scale)
    except Exception as error:  # noqa: BLE001 – whatever went wrong is in the report
        failure = f"{measurement.name}: {type(error).__name__}: {error}"
        return BenchmarkOutcome(measurement, {}, time.monotonic() - begun, failure)
    return BenchmarkOutcome(measurement, metrics, time.monotonic() - begun)


def _keep(record: BenchmarkRecord, outcome: BenchmarkOutcome, share: float) -> None:
    """Record an outcome, and print it. `share`: the outcome's share of the group's time, in seconds."""
    measured = outcome.measurement
    record.add(measured.workload.name, measured.store, measured.contender.name, outcome.metrics, share)
    if outcome.failure:
        record.failures.append(outcome.failure)
    found = ", ".join(f"{value:,.4g} {metric}" for metric, value in outcome.metrics.items())
    line = f"FAILED {outcome.failure}" if outcome.failure else f"{measured.name}: {found}"
    print(f"{line} (load {os.getloadavg()[0]:.1f}, {outcome.seconds:.1f} s)", file=sys.stderr, flush=True)
