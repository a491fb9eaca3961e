"""The timeline from entries of the ledger: waits, overlaps, outages, and what is left out."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

import pytest

from psched.insight import Timeline
from psched.insight.nodes import NodeState
from psched.insight.timeline import Outage, timeline
from psched.model import NEVER, Rule, ScheduleRow
from psched.store.ledger import Definition, DefinitionTimes, Ledger, LedgerFilter, LedgerRow
from psched.store.node_registry import NodeProcess, NodeRun

NOW = 1_795_424_400.0
RULE = Rule("* * * * *", "UTC", 5)


def entry(time: float, started: float | None, ended: float, **more: Any) -> LedgerRow:
    given: dict[str, Any] = {"key": "k", "attempts": 1, "node": "host/1/a", "error": None} | more
    time = int(NOW + time)
    begun = None if started is None else NOW + started
    return LedgerRow(
        scheduled_time=time,
        fence=time,
        version=1,
        previous=None,
        started=begun,
        ended=NOW + ended,
        reckoning="",
        **given,
    )


class Records:
    """A ledger with these entries, all of one definition."""

    def __init__(self, *rows: LedgerRow) -> None:
        self._rows = sorted(rows, key=lambda row: row.ended)

    def rows(self, wanted: LedgerFilter) -> Iterator[LedgerRow]:
        found = [row for row in self._rows if row.had_trouble or not wanted.failed]
        return iter(found if wanted.last is None else found[-wanted.last :])

    def run_times(self, wanted: Collection[Definition]) -> Mapping[Definition, DefinitionTimes]:
        return {name: DefinitionTimes(RULE.delay, 0, NEVER) for name in wanted if name.key != "old"}


def of(*rows: LedgerRow, **more: Any) -> Timeline:
    given: dict[str, Any] = {"nodes": [], "waiting": []} | more
    return timeline(cast("Ledger", Records(*rows)), NOW - 3600, NOW, NOW, given["nodes"], given["waiting"])


def test_a_run_waits_from_its_time_and_delay() -> None:
    unknown, known = of(entry(-600, -590, -580), entry(-900, -880, -870, key="old")).runs
    assert (known.due, known.began, known.ended) == (NOW - 595, NOW - 590, NOW - 580)
    assert unknown.due == NOW - 900


def test_runs_of_one_schedule_that_overlap_are_marked() -> None:
    rows = entry(-600, -590, -500), entry(-540, -520, -510), entry(-480, -470, -460), entry(-530, -529, -400, key="b")
    assert [(run.key, run.overlap) for run in of(*rows).runs] == [("k", 0), ("b", 0), ("k", 10), ("k", 0)]


def test_an_outage_is_when_nothing_runs_though_something_is_due() -> None:
    rows = entry(-3000, -2990, -2900), entry(-2705, -1500, -1490), entry(-2405, -1500, -1400, key="b")
    assert of(*rows).outages == [Outage(NOW - 2700, NOW - 1500, 2)]
    busy = entry(-2900, -2890, -1450, key="c")
    assert of(*rows, busy).outages == []
    assert of(entry(-2705, -2690, -2600), entry(-605, -590, -580)).outages == [], "a short wait is none"
    retried = entry(-2705, -1500, -1490, attempts=3)
    assert of(retried).outages == [], "nothing tells when the earlier attempts ran"


def test_an_occurrence_that_later_ones_overtake_makes_no_outage() -> None:
    """While workers run what was due later, this occurrence does not wait for a worker, but perhaps for a handler."""
    row = ScheduleRow("unrouted", "a", {}, "waiting", rule=RULE, next_time=int(NOW) - 3005, next_run_time=NOW - 3000)
    rows = [entry(-60 * number - 5, -60 * number, -60 * number + 10) for number in (40, 30, 20, 10)]
    assert of(*rows, waiting=[row]).outages == [Outage(NOW - 3000, NOW - 2400, 1)]
    late = entry(-3005, -100, -90, key="late")
    assert of(*rows, late).outages == [Outage(NOW - 3000, NOW - 2400, 1)]
    stopped = [entry(-2405, -1500, -1400, key=key) for key in "ab"]
    assert of(*stopped, waiting=[row]).outages == [Outage(NOW - 3000, NOW - 1500, 3)]


def test_what_runs_and_waits_now_is_there() -> None:
    runs = (NodeRun("schedules", "k", "a", NOW - 100), NodeRun("queue", "task", "a", NOW - 100))
    node = NodeState("n", "host", 7, "", "", NOW, 0, 1, False, {}, (NodeProcess("child", 8, runs),))
    row = ScheduleRow("late", "a", {}, "waiting", rule=RULE, next_time=int(NOW) - 705, next_run_time=NOW - 700)
    waiting = [row, replace(row, key="k"), replace(row, key="paused", paused_from=NOW)]
    late, running = of(nodes=[node], waiting=waiting).runs
    assert (late.key, late.due, late.began, late.ended) == ("late", NOW - 700, None, None)
    assert (running.key, running.began, running.ended, running.node) == ("k", NOW - 100, None, "host/7/child")
    assert of(nodes=[node], waiting=waiting).outages == [Outage(NOW - 700, NOW - 100, 1)]
    assert of(nodes=[replace(node, vanished=True)]).runs == []


def test_of_too_many_runs_those_with_trouble_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.insight.timeline.MOST_RUNS", 3)
    rows = [entry(-60 * number, -60 * number + 6, -60 * number + 10) for number in range(1, 20)]
    failed = entry(-3000, -2990, -2980, outcome="failed", attempts=3)
    found = of(*rows, failed)
    assert [run.outcome for run in found.runs] == ["failed", *["finished"] * 4]
    assert (found.complete_from, found.troubles_from) == (NOW - 4 * 60 + 10, NOW - 3600)
    assert of(*rows[:3]).complete_from == NOW - 3600


def test_skips_count_and_those_of_a_pause_are_no_trouble() -> None:
    skipped = entry(-600, None, -10, outcome="skipped", detail="superseded", last=int(NOW) - 300, count=6)
    paused = entry(-900, None, -800, outcome="skipped", detail="paused", attempts=0)
    first, second = of(skipped, paused).runs
    assert first.is_paused
    assert (second.count, second.is_paused, second.began) == (6, False, None)
