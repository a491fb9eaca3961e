"""A node's heartbeat is rare while nothing changes, comes soon after a change, and never more often than every 5 s."""

from __future__ import annotations

import logging
import os

import pytest

from psched.execution import node_heartbeat
from psched.execution.node_heartbeat import NodeHeartbeat, RecordedSection
from psched.store.node_registry import Announcement, Node, NodeProcess, NodeRun
from psched.store.type_filter import TypeFilter


class Registry:
    """A registry of nodes that records the announcements."""

    def __init__(self) -> None:
        self.announced: list[Announcement] = []
        self.other_nodes: list[Node] = []

    def announce(self, announcement: Announcement) -> None:
        self.announced.append(announcement)

    def withdraw(self, name: str) -> None:
        self.announced = [each for each in self.announced if each.name != name]

    def alive(self) -> list[Node]:
        return self.other_nodes

    def known(self) -> list[Node]:
        return self.other_nodes


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(node_heartbeat, "monotonic", clock)
    return clock


def run_of(section: str, key: str) -> NodeRun:
    return NodeRun(section, key, "type1", 1.0)


def announced_in(seconds: int, clock: Clock, heartbeat: NodeHeartbeat, registry: Registry) -> int:
    """Let the heartbeat thread run for `seconds`. Return the number of announcements."""
    before = len(registry.announced)
    for _ in range(round(seconds / heartbeat.interval)):
        clock.now += heartbeat.interval
        assert heartbeat.record()
    return len(registry.announced) - before


@pytest.mark.parametrize("sections", [("queue",), ("schedules", "queue")])
def test_an_idle_node_announces_itself_six_times_a_minute_whatever_its_sections(
    sections: tuple[str, ...], clock: Clock
) -> None:
    registry = Registry()
    recorded = [RecordedSection(name, registry, TypeFilter()) for name in sections]
    heartbeat = NodeHeartbeat(recorded, os.getpid(), lambda: [NodeProcess("one", 1)])
    heartbeat.record()
    assert announced_in(600, clock, heartbeat, registry) == 60


def test_only_the_section_in_which_something_else_runs_is_announced_at_the_next_tick(clock: Clock) -> None:
    schedules, queue, runs = Registry(), Registry(), [run_of("schedules", "job")]
    recorded = [RecordedSection("schedules", schedules, TypeFilter()), RecordedSection("queue", queue, TypeFilter())]
    heartbeat = NodeHeartbeat(recorded, os.getpid(), lambda: [NodeProcess("one", 1, tuple(runs))])
    heartbeat.record()
    runs.append(run_of("queue", "task"))
    assert announced_in(5, clock, heartbeat, queue) == 1
    assert '"task"' in queue.announced[-1].processes
    assert len(schedules.announced) == 1
    assert '"task"' not in schedules.announced[-1].processes


def test_a_busy_node_announces_itself_every_five_seconds(clock: Clock) -> None:
    registry, keys = Registry(), iter(range(1000))
    heartbeat = NodeHeartbeat(
        [RecordedSection("queue", registry, TypeFilter())],
        os.getpid(),
        lambda: [NodeProcess("one", 1, (run_of("queue", str(next(keys))),))],
    )
    heartbeat.record()
    assert announced_in(60, clock, heartbeat, registry) == 12
    heartbeat.withdraw()
    assert registry.announced == []


def test_different_tz_databases_are_logged_once(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    registry = Registry()
    node = Node("a", "queue", TypeFilter(), 0.0, "a", 1, "1.0", "2025b", 0.0, 0.0, ())
    registry.other_nodes = [node, node._replace(name="b", tz_database="2026a")]
    heartbeat = NodeHeartbeat([RecordedSection("queue", registry, TypeFilter())], os.getpid(), list)
    with caplog.at_level(logging.WARNING):
        announced_in(1200, clock, heartbeat, registry)
    assert [record.getMessage() for record in caplog.records if "2025b on a; 2026a on b" in record.getMessage()] == [
        record.getMessage() for record in caplog.records
    ]
    assert len(caplog.records) == 1
