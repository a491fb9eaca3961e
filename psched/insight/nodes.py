"""The nodes that use the same tables: on which host each runs, what it routes, and the tasks that its processes run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from psched.store import LeaseStore
from psched.store.node_registry import Node, NodeProcess, NodeRun
from psched.store.type_filter import TypeFilter


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of a node, in all its sections together.

    - `age`: seconds since the last report of the node.
    - `vanished`: whether the reports ended without a normal stop.
    - `clock_offset`: the node's clock minus the database's clock, in seconds.
    - `sections`: the types that the node acquires in each section.
    - `processes`: the node's processes and their runs at the last report.

    `started`, and `since` of a run, are unix seconds on the database's clock.
    """

    name: str
    host: str
    pid: int
    version: str
    tz_database: str
    started: float
    clock_offset: float
    age: float
    vanished: bool
    sections: Mapping[str, TypeFilter]
    processes: tuple[NodeProcess, ...]


def live_nodes(store: LeaseStore) -> Sequence[Node]:
    """Return the live nodes of a table; an empty sequence if the store does not record nodes."""
    return () if store.nodes is None else store.nodes.alive()


def unrouted_types(store: LeaseStore, nodes: Sequence[Node]) -> str:
    """Return, as text, the types with due rows that none of these nodes acquires."""
    due = store.due_by_type()
    return ", ".join(sorted(type_ for type_ in due if not any(node.types.accepts(type_) for node in nodes)))


def merged(nodes: Iterable[Node]) -> list[NodeState]:
    """Return the nodes of all sections without duplicates: live nodes first, then by name.

    If several processes have reported a run of the same row, only the latest run is in the result. The earlier runs
    have ended since those reports.
    """
    by_name: dict[str, list[Node]] = {}
    for node in nodes:
        by_name.setdefault(node.name, []).append(node)
    shown = [process for parts in by_name.values() for process in _processes(parts)]
    runs = sorted((run for process in shown for run in process.runs), key=lambda run: run.since)
    latest = {(run.section, run.key): run.since for run in runs}
    states = [_state(parts, latest) for parts in by_name.values()]
    return sorted(states, key=lambda state: (state.vanished, state.name))


def _processes(parts: list[Node]) -> Iterator[NodeProcess]:
    """Yield the processes of a node from its records. If the node is alive, leave out its vanished sections."""
    is_alive = any(not part.has_vanished for part in parts)
    return (process for part in parts if not (is_alive and part.has_vanished) for process in part.processes)


def _state(parts: list[Node], latest: Mapping[tuple[str, str], float]) -> NodeState:
    """Return the state of a node from its records in each of its sections.

    `latest`: when the last run of each row began, by section and key. The earlier runs of a row are left out.
    """
    last = min(parts, key=lambda part: part.age)
    runs: dict[tuple[str, int], list[NodeRun]] = {}
    for process in _processes(parts):
        last_runs = [run for run in process.runs if run.since == latest[run.section, run.key]]
        runs.setdefault((process.name, process.pid), []).extend(last_runs)
    return NodeState(
        last.name,
        last.host,
        last.pid,
        last.version,
        last.tz_database,
        last.started,
        last.clock_offset,
        last.age,
        last.has_vanished,
        {part.section: part.types for part in parts},
        tuple(
            NodeProcess(name, pid, tuple(sorted(found, key=lambda run: run.since)))
            for (name, pid), found in sorted(runs.items())
        ),
    )
