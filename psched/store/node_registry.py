"""The registry of nodes: which nodes are alive, which types they route, and what they are running."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from psched.store.type_filter import TypeFilter

ALIVE = 60.0
"""A node counts as alive for this many seconds after its last heartbeat."""
FORGOTTEN = 86_400.0
"""A node that did not withdraw is deleted this many seconds after its last heartbeat."""


class NodeRun(NamedTuple):
    """One task in progress.

    `since`: when the task began. In a `Node`, unix seconds by the database's clock; for `encode_processes`, boottime
    seconds.
    """

    section: str
    key: str
    type: str
    since: float


class NodeProcess(NamedTuple):
    """A handler child of a node, or a process with an embedded scheduler, with its runs in progress."""

    name: str
    pid: int
    runs: tuple[NodeRun, ...] = ()


@dataclass(frozen=True, slots=True)
class Announcement:
    """What a node announces about itself and one of its sections.

    - `pid`: the pid of the master, or of the process with an embedded scheduler.
    - `uptime`: seconds since the start of the master.
    - `processes`: encoded by `encode_processes`, with the runs of this section.
    """

    name: str
    section: str
    types: str
    host: str
    pid: int
    version: str
    tz_database: str
    uptime: float
    processes: str = "[]"


class Node(NamedTuple):
    """The workers that one master has for one section, last seen `age` seconds ago by the database's clock.

    - `started`: unix seconds by the database's clock.
    - `clock_offset`: the node's clock minus the database's clock, in seconds; only for display.
    - `processes`: what the node was running when it was last seen.
    """

    name: str
    section: str
    types: TypeFilter
    age: float
    host: str
    pid: int
    version: str
    tz_database: str
    started: float
    clock_offset: float
    processes: tuple[NodeProcess, ...]

    @property
    def has_vanished(self) -> bool:
        """Whether the node has sent no heartbeat for `ALIVE` seconds. A node that stops normally is removed instead."""
        return self.age > ALIVE


class Nodes(Protocol):
    """The nodes that work on one table. Safe to use from several threads."""

    def announce(self, announcement: Announcement) -> None:
        """Record the announcement of a living node. Each call after the first executes one statement."""

    def withdraw(self, name: str) -> None:
        """Remove a node that is stopping."""

    def alive(self) -> list[Node]:
        """Return the nodes that were seen within the last `ALIVE` seconds."""

    def known(self) -> list[Node]:
        """Return the living nodes, and those that have vanished within the last `FORGOTTEN` seconds."""


def encode_processes(processes: Iterable[NodeProcess], section: str, now: float) -> str:
    """Return the processes as text, with the runs of one section. `now`: in boottime seconds."""
    return json.dumps(
        [
            [each.name, each.pid, [[run.key, run.type, round(now - run.since, 3)] for run in _of(each, section)]]
            for each in processes
        ]
    )


def read_node(row: Mapping[Any, Any]) -> Node | None:
    """Return a stored node, or None if another version of psched or another program wrote it.

    `row` has the fields of `Announcement`, with `node` instead of `name`. Instead of `uptime` it has `seen`, `started`,
    `now` and `clock_offset`, all in milliseconds by the database's clock.
    """
    try:
        seen, section = int(row["seen"]) / 1000, str(row["section"])
        return Node(
            str(row["node"]),
            section,
            TypeFilter.decode(row["types"]),
            max(0.0, int(row["now"]) / 1000 - seen),
            str(row["host"]),
            int(row["pid"]),
            str(row["version"]),
            str(row["tz_database"]),
            int(row["started"]) / 1000,
            int(row["clock_offset"]) / 1000,
            tuple(
                NodeProcess(
                    str(name),
                    int(pid),
                    tuple(NodeRun(section, str(key), str(type_), seen - float(age)) for key, type_, age in runs),
                )
                for name, pid, runs in json.loads(row["processes"])
            ),
        )
    except (KeyError, TypeError, ValueError):
        return None


def read_nodes(rows: Iterable[Mapping[Any, Any]]) -> list[Node]:
    """Return the stored nodes that can be read, sorted by name."""
    return sorted((node for node in map(read_node, rows) if node is not None), key=lambda node: node.name)


def tz_difference(nodes: Iterable[Node], here: str | None = None) -> str | None:
    """Return the tz databases of the nodes as text, with the remedy; None if all are the same.

    `here`: the tz database of this process, if the process does not belong to a node.
    """
    pairs = [(node.tz_database, node.name) for node in nodes]
    found = _differing(pairs if here is None else [*pairs, (here, "this host")])
    if found is None:
        return None
    return f"nodes have different tz databases, so times may differ: {found}; install the same tzdata on all nodes"


def version_difference(nodes: Iterable[Node]) -> str | None:
    """Return the psched versions of the nodes as text; None if all are the same."""
    found = _differing((node.version, node.name) for node in nodes)
    return None if found is None else f"nodes run different versions of psched: {found}"


def _differing(found: Iterable[tuple[str, str]]) -> str | None:
    """Return each value with its nodes as text; None if all values are equal. `found`: pairs of value and node."""
    named: dict[str, set[str]] = {}
    for value, node in found:
        named.setdefault(value, set()).add(node)
    if len(named) < 2:
        return None
    return "; ".join(f"{value} on {', '.join(sorted(nodes))}" for value, nodes in sorted(named.items()))


def _of(process: NodeProcess, section: str) -> Sequence[NodeRun]:
    return [run for run in process.runs if run.section == section]
