"""Reads from the shared counters whether the daemon of a node runs, is healthy and is ready."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from psched.clock import monotonic
from psched.metrics.counter_file import CounterFileError, Counters, Process, is_alive, read_counters

MASTER = "master"
"""The name of a master's block in the file of counters."""

ABSENT = "absent"
STARTING = "starting"
BUSY = "busy"
IDLE = "idle"
FROZEN = "frozen"
STATES = (ABSENT, STARTING, BUSY, IDLE, FROZEN)
"""The states of a child, in this order: no process, loading the application, running tasks, waiting, without
heartbeats."""


class ChildHealth(NamedTuple):
    """One child. `seconds`: since its last heartbeat. Before the first heartbeat: since its fork.

    None without a process.
    """

    name: str
    pid: int
    state: str
    running: int
    seconds: float | None


class NodeHealth(NamedTuple):
    """The daemon of a node. `masters` is empty if no master runs. `problem`: why the state of the daemon is unknown."""

    masters: tuple[int, ...] = ()
    version: str = ""
    tzdata: str = ""
    children: tuple[ChildHealth, ...] = ()
    problem: str | None = None

    @property
    def is_healthy(self) -> bool:
        """Whether a master runs and no child is frozen."""
        return bool(self.masters) and all(child.state != FROZEN for child in self.children)

    @property
    def is_ready(self) -> bool:
        """Whether the daemon is healthy and each child is up."""
        ready = (IDLE, BUSY)
        return self.is_healthy and bool(self.children) and all(child.state in ready for child in self.children)

    def why_not(self) -> str:
        """Return what is wrong, in one line for people; "ok" if nothing is wrong."""
        if not self.masters:
            return self.problem or "no daemon is running"
        wrong = [f"{child.name} is {child.state}" for child in self.children if child.state not in (IDLE, BUSY)]
        return "; ".join(wrong) or "ok"


def node_text(version: str, tzdata: str, heartbeat_limit: float) -> str:
    """Return the text that a master writes to its block in the file of counters. `health_of` reads this text."""
    return f"{version} {tzdata} {heartbeat_limit:g}"


def read_health(path: Path | None) -> NodeHealth:
    """Return the health of the node whose counters are in the file `path`. None: the daemon writes no such file."""
    if path is None:
        return NodeHealth(problem="the daemon has no metrics_file")
    try:
        return health_of(read_counters(path))
    except CounterFileError as error:
        return NodeHealth(problem=str(error))


def health_of(counters: Counters) -> NodeHealth:
    masters = [each for each in counters.processes if each.name == MASTER and is_alive(each.master)]
    if not masters:
        return NodeHealth(problem="no daemon is running: its master has ended")
    newest = max(masters, key=lambda each: each.forked_at)
    version, tzdata, limit = _parsed(newest.text)
    pids = {each.master for each in masters}
    now = monotonic()
    children = [_child(each, limit, now) for each in counters.processes if each.master in pids and each.name != MASTER]
    children.sort(key=lambda child: (len(child.name), child.name))
    return NodeHealth(tuple(each.master for each in masters), version, tzdata, tuple(children))


def _parsed(text: str) -> tuple[str, str, float]:
    """Return the arguments from which `node_text` made this text.

    Checks the text, because the daemon's user can write anything into the file.
    """
    try:
        version, tzdata, limit = text.split(" ")
        return version, tzdata, float(limit)
    except ValueError:
        return "", "", 0.0


def _child(found: Process, limit: float, now: float) -> ChildHealth:
    if not found.pid:
        return ChildHealth(found.name, 0, ABSENT, 0, None)
    seconds = max(0.0, now - max(found.heartbeat, found.forked_at))
    if seconds > limit:
        state = FROZEN
    elif not found.is_ready:
        state = STARTING
    else:
        state = BUSY if found.running > 0 else IDLE
    return ChildHealth(found.name, found.pid, state, max(0, found.running), seconds)


def as_json(health: NodeHealth) -> dict[str, Any]:
    """Return the JSON object of the node for `pschedd status --json`."""
    return {
        "healthy": health.is_healthy,
        "ready": health.is_ready,
        "reason": health.why_not(),
        "version": health.version,
        "tzdata": health.tzdata,
        "children": [
            {
                "name": child.name,
                "pid": child.pid or None,
                "state": child.state,
                "running": child.running,
                "heartbeat_age": None if child.seconds is None else round(child.seconds, 3),
            }
            for child in health.children
        ],
    }
