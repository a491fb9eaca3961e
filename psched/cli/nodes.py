"""psched nodes: lists the nodes on all hosts, and the tasks that they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack

import click

from psched.cli.formatting import Fields, ListColumns, json_lines, with_local_times, write, write_rows
from psched.cli.opened_sections import opened_section
from psched.cli.options import Chosen, common_options
from psched.insight import NodeState, merged
from psched.store.node_registry import Node, tz_difference, version_difference
from psched.time_text import span

_NODES = ListColumns(
    brief={"node": 8, "state": 7, "seen": 3, "started": 2, "version": 4, "tz_database": 5, "clock": 1, "running": 6},
    wide=("node", "state", "seen", "started", "version", "tz_database", "clock", "running", "routes"),
)
_RUNS = ListColumns(
    brief={"node": 5, "process": 2, "pid": 3, "section": 1, "key": 8, "type": 6, "since": 7},
    wide=("node", "process", "pid", "section", "key", "type", "since"),
)


@click.command("nodes")
@click.option("--running", is_flag=True, help="List running tasks instead of nodes.")
@common_options()
def nodes(chosen: Chosen, running: bool) -> None:
    """List the nodes on all hosts, and the tasks that they run.

    A node is a daemon, or a process with an embedded scheduler. Each node reports its tasks every ten seconds (every
    twenty with two sections), and within a few seconds after a change. A node has vanished if it did not report for a
    minute and did not stop normally. A vanished node is listed for a day. The column clock is the node's clock minus
    the database's clock: + if the node's clock is ahead. Differing tz databases or versions of psched are reported on
    standard error. `type: rdb_compat` records no nodes.

    --json prints one array of objects with name, host, pid, version, tz_database, started, clock_offset (seconds; the
    node's clock minus the database's clock), age (seconds since the last report), vanished, sections (an object with,
    for each section, the types that the node routes, as text) and processes: an array of objects with name, pid and
    runs: an array of objects with section, key, type and since.
    """
    known = _known(chosen)
    found = merged(known)
    if chosen.json:
        write(json_lines(map(_as_json, found)))
    elif running:
        write_rows(_runs(found), ("since",), _RUNS, listed=lambda row: row, as_json=False)
    else:
        write_rows(map(_row, found), ("started",), _NODES, listed=lambda row: row, as_json=False)
    alive = [node for node in known if not node.has_vanished]
    for difference in (tz_difference(alive), version_difference(alive)):
        if difference is not None:
            click.echo(f"warning: {difference}", err=True)


def _known(chosen: Chosen) -> list[Node]:
    found: list[Node] = []
    with ExitStack() as stack:
        for name, section in chosen.settings().named_sections:
            collection = stack.enter_context(opened_section(chosen, name, read_only=True))
            if collection.store.nodes is None:
                click.echo(f"{name}: {section.type} records no nodes", err=True)
            else:
                found += collection.store.nodes.known()
    return found


def _row(node: NodeState) -> Fields:
    count = sum(len(process.runs) for process in node.processes)
    return {
        "node": node.name,
        "state": "vanished" if node.vanished else "alive",
        "seen": f"{span(node.age)} ago",
        "started": node.started,
        "version": node.version,
        "tz_database": node.tz_database,
        "clock": f"{node.clock_offset:+z.1f} s",
        "running": f"{count} in {len(node.processes)} processes",
        "routes": "; ".join(f"{name}: {types.describe()}" for name, types in sorted(node.sections.items())),
    }


def _runs(nodes: Sequence[NodeState]) -> Iterator[Fields]:
    for node in nodes:
        for process in node.processes:
            for run in process.runs:
                yield {"node": node.name, "process": process.name, "pid": process.pid, **run._asdict()}


def _as_json(node: NodeState) -> Fields:
    return with_local_times(
        {
            "name": node.name,
            "host": node.host,
            "pid": node.pid,
            "version": node.version,
            "tz_database": node.tz_database,
            "started": node.started,
            "clock_offset": node.clock_offset,
            "age": node.age,
            "vanished": node.vanished,
            "sections": {name: types.describe() for name, types in sorted(node.sections.items())},
            "processes": [
                {
                    "name": process.name,
                    "pid": process.pid,
                    "runs": [with_local_times(run._asdict(), ("since",)) for run in process.runs],
                }
                for process in node.processes
            ],
        },
        ("started",),
    )
