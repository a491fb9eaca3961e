"""The metrics of a node as families of prometheus_client. At most 2,000 series, whatever the node runs."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from psched.clock import monotonic
from psched.exporter.database import SectionFacts, SectionReader
from psched.histogram import BOUNDS, BUCKETS
from psched.metrics.counter_file import (
    COUNT,
    FIRST_BUCKETS,
    FIRST_SUM,
    SECOND_BUCKETS,
    SECOND_SUM,
    CounterFileError,
    Counters,
    read_counters,
)
from psched.metrics.event_counters import LEASE_LOST, MOST_TYPES, OTHER, RESTART, RUN, STORE
from psched.metrics.health import STATES, NodeHealth, health_of, read_health

DATABASE_LIMIT = 2.5
"""The maximum number of seconds that a scrape waits for the database."""
_MOST_CHILDREN = 32
_RUN_BOUNDS = (0.01, 0.1, 1.0, 5.0, 20.0, 100.0, 1000.0)
_STORE_BOUNDS = (0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0)
"""Bounds in seconds for calls to the database. These are only a few of the bounds of `psched.histogram`, because each
bound makes one more series for each operation.
"""
_OUTCOMES = ("finished", "retried", "failed")
_CAUSES = ("left", "exit", "frozen", "killed", "out_of_memory", "SIGKILL", "SIGSEGV")

Numbers = Sequence[float]


class NodeCollector(Collector):
    """Reads the counters, and the database, at each scrape."""

    def __init__(self, path: Path | None, readers: Sequence[SectionReader]) -> None:
        """`path`: the file of counters; None: export only the metrics of the database."""
        self._path = path
        self._readers = readers
        self._lock = threading.Lock()

    def health(self) -> NodeHealth:
        return read_health(self._path)

    def database_is_up(self) -> bool:
        return all(facts is not None for _, facts in self._facts())

    def collect(self) -> Iterator[Metric]:
        if self._path is not None:
            counters = self._counters()
            yield from _node_families(health_of(counters))
            yield from _run_families(counters)
            yield from _event_families(counters)
        yield from _database_families(self._facts())

    def describe(self) -> Iterator[Metric]:
        """Return nothing, because the families are known only after a scrape."""
        return iter(())

    def _counters(self) -> Counters:
        try:
            return Counters((), {}) if self._path is None else read_counters(self._path)
        except CounterFileError:
            return Counters((), {})

    def _facts(self) -> list[tuple[str, SectionFacts | None]]:
        with self._lock:  # several Prometheus servers may scrape at the same time
            until = monotonic() + DATABASE_LIMIT
            for reader in self._readers:
                reader.begin()
            return [(reader.name, reader.facts(until)) for reader in self._readers]


def _node_families(health: NodeHealth) -> Iterator[Metric]:
    up = GaugeMetricFamily("psched_daemon_up", "Whether the daemon of this node is running.")
    up.add_metric([], bool(health.masters))
    yield up
    if not health.masters:
        return
    yield InfoMetricFamily(
        "psched_node", "Version of psched and of its tz database.", {"version": health.version, "tzdata": health.tzdata}
    )
    running = GaugeMetricFamily("psched_running", "Runs in progress on this node.")
    running.add_metric([], sum(child.running for child in health.children))
    yield running
    children = GaugeMetricFamily("psched_children", "Child processes by state.", labels=["state"])
    for state in STATES:
        children.add_metric([state], sum(child.state == state for child in health.children))
    yield children
    age = GaugeMetricFamily(
        "psched_child_heartbeat_age_seconds", "Seconds since the last heartbeat of a child.", labels=["child"]
    )
    ages = {child.name: child.seconds for child in health.children if child.seconds is not None}
    for name, seconds in sorted(ages.items(), key=lambda each: -each[1])[:_MOST_CHILDREN]:
        age.add_metric([name], seconds)
    yield age


def _run_families(counters: Counters) -> Iterator[Metric]:
    outcomes: dict[tuple[str, str, str], float] = {}
    durations: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * (BUCKETS + 1))
    waits: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0.0] * (BUCKETS + 1))
    types: set[tuple[str, str]] = set()
    for label, numbers in counters.sums.items():
        if label[0] != RUN:
            continue
        _, section, outcome, type_ = label
        if type_ != OTHER and (section, type_) not in types:
            if len(types) < MOST_TYPES:
                types.add((section, type_))
            else:
                type_ = OTHER
        for each in _OUTCOMES:  # export 0 first: a counter that starts with 1 shows no increase
            outcomes.setdefault((section, type_, each), 0.0)
        outcomes[section, type_, outcome] = outcomes.get((section, type_, outcome), 0.0) + numbers[COUNT]
        _add(durations[section, type_], numbers, FIRST_SUM, FIRST_BUCKETS)
        _add(waits[section, type_], numbers, SECOND_SUM, SECOND_BUCKETS)
    runs = CounterMetricFamily("psched_runs", "Runs that ended.", labels=["section", "type", "outcome"])
    for kind, count in outcomes.items():
        runs.add_metric(kind, count)
    yield runs
    duration = HistogramMetricFamily(
        "psched_run_duration_seconds", "How long handlers ran.", labels=["section", "type"]
    )
    for (section, type_), numbers in durations.items():
        _histogram(duration, (section, type_), numbers, _RUN_BOUNDS)
    yield duration
    late = HistogramMetricFamily(
        "psched_run_lateness_seconds", "How late occurrences of schedules started (first attempts).", labels=["type"]
    )
    waited = HistogramMetricFamily(
        "psched_task_wait_seconds", "How long tasks waited from their due time to their first attempt.", labels=["type"]
    )
    for (section, type_), numbers in waits.items():
        _histogram(late if section == "schedules" else waited, (type_,), numbers, _RUN_BOUNDS)
    yield late
    yield waited


def _event_families(counters: Counters) -> Iterator[Metric]:
    lost = CounterMetricFamily("psched_leases_lost", "Leases that were lost during a run.")
    lost.add_metric([], counters.sums[(LEASE_LOST,)][COUNT] if (LEASE_LOST,) in counters.sums else 0)
    yield lost
    restarts = CounterMetricFamily(
        "psched_child_restarts",
        "Child processes that ended, by cause; the cause of a stop or reload is `left`.",
        labels=["reason"],
    )
    ends = dict.fromkeys(_CAUSES, 0.0)
    store = HistogramMetricFamily(
        "psched_store_seconds", "How long calls to the database took.", labels=["section", "operation"]
    )
    for label, numbers in counters.sums.items():
        if label[0] == RESTART:
            ends[label[1]] = numbers[COUNT]
        elif label[0] == STORE:
            merged = [0.0] * (BUCKETS + 1)
            _add(merged, numbers, FIRST_SUM, FIRST_BUCKETS)
            _histogram(store, label[1:], merged, _STORE_BOUNDS)
    for cause, count in ends.items():
        restarts.add_metric([cause], count)
    yield restarts
    yield store


def _database_families(found: Sequence[tuple[str, SectionFacts | None]]) -> Iterator[Metric]:
    up = GaugeMetricFamily("psched_database_up", "Whether the database answers within 2.5 s.", labels=["section"])
    due = GaugeMetricFamily("psched_due", "Rows that are due now, counted up to 10,000.", labels=["section"])
    oldest = GaugeMetricFamily(
        "psched_oldest_due_seconds",
        "For how long the first due row of a type has been due.",
        labels=["section", "type"],
    )
    overdue = GaugeMetricFamily(
        "psched_schedule_overdue_seconds", "How late a schedule is, for the 50 most overdue schedules.", labels=["key"]
    )
    schedules = GaugeMetricFamily(
        "psched_schedules", "Schedules by state, each counted up to 10,000.", labels=["state"]
    )
    tasks = GaugeMetricFamily("psched_tasks", "Tasks by state, each counted up to 10,000.", labels=["state"])
    offset = GaugeMetricFamily(
        "psched_clock_offset_seconds", "This host's clock minus the database's clock.", labels=["section"]
    )
    for section, facts in found:
        up.add_metric([section], facts is not None)
        if facts is None:
            continue
        offset.add_metric([section], facts.clock_offset)
        by_state = schedules if section == "schedules" else tasks
        for state, counted in facts.counts.items():
            if state == "due":
                due.add_metric([section], counted.count)
            by_state.add_metric([state], counted.count)
        for each in facts.types:
            if each.oldest is not None:
                oldest.add_metric([section, each.type], each.oldest)
        for key, seconds in facts.overdue.items():
            overdue.add_metric([key], seconds)
    yield from (up, due, oldest, overdue, schedules, tasks, offset)


def _add(sums: list[float], numbers: Numbers, sum_at: int, buckets_at: int) -> None:
    """Add one histogram in `numbers` to `sums`. `sums` has the buckets, and at its end the sum in seconds."""
    for number in range(BUCKETS):
        sums[number] += numbers[buckets_at + number]
    sums[BUCKETS] += numbers[sum_at]


def _histogram(family: HistogramMetricFamily, labels: Sequence[str], sums: Numbers, bounds: Sequence[float]) -> None:
    """Add a histogram. An empty histogram is left out. `bounds`: a subset of BOUNDS."""
    total = sum(sums[:BUCKETS])
    if not total:
        return
    shown = [(str(bound), sum(sums[: bisect_left(BOUNDS, bound) + 1])) for bound in bounds]
    family.add_metric(labels, [*shown, ("+Inf", total)], sums[BUCKETS])


def registry_of(collector: NodeCollector) -> CollectorRegistry:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(collector)
    return registry
