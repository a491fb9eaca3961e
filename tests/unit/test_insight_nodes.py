"""Which of the runs that several nodes report are shown."""

from __future__ import annotations

from psched.insight import merged
from psched.store.node_registry import ALIVE, Node, NodeProcess, NodeRun
from psched.store.type_filter import TypeFilter


def _node(name: str, section: str, *processes: NodeProcess, age: float = 1.0) -> Node:
    return Node(name, section, TypeFilter(), age, name, 1, "1.0", "tz", 0.0, 0.0, processes)


def _run(section: str, key: str, since: float) -> NodeRun:
    return NodeRun(section, key, "type", since)


def test_of_several_reported_runs_of_a_row_only_the_latest_is_shown() -> None:
    """A process reports the end of a run some seconds late.

    Meanwhile the next run may have begun in another process.
    """
    ended, running = _run("schedules", "key", 100.0), _run("schedules", "key", 102.0)
    same_key, other = _run("queue", "key", 99.0), _run("schedules", "other", 98.0)
    nodes = [
        _node("a", "schedules", NodeProcess("worker 1", 11, (ended, other)), NodeProcess("worker 2", 12)),
        _node("a", "queue", NodeProcess("worker 1", 11, (same_key,)), NodeProcess("worker 2", 12)),
        _node("b", "schedules", NodeProcess("worker 1", 21, (running,))),
    ]
    shown = {(node.name, process.name): process.runs for node in merged(nodes) for process in node.processes}
    assert shown == {("a", "worker 1"): (other, same_key), ("a", "worker 2"): (), ("b", "worker 1"): (running,)}


def test_a_vanished_section_of_a_living_node_hides_no_run() -> None:
    shown, stale = _run("schedules", "key", 100.0), _run("schedules", "key", 102.0)
    nodes = [
        _node("a", "schedules", NodeProcess("worker 1", 11, (stale,)), age=ALIVE + 1),
        _node("a", "queue", NodeProcess("worker 1", 11)),
        _node("b", "schedules", NodeProcess("worker 1", 21, (shown,))),
    ]
    assert {node.name: [process.runs for process in node.processes] for node in merged(nodes)} == {
        "a": [()],
        "b": [(shown,)],
    }
