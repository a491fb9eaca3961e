"""Records in `psched_nodes` the types and the current runs of this node, for `psched nodes`, `doctor` and `list`.

The child that polls writes the record for itself and all its siblings, by one statement every ten seconds. If the
running tasks have changed, it writes sooner.
"""

from __future__ import annotations

import logging
import math
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version

import psutil

from psched.clock import boottime, monotonic
from psched.cron import tz_database
from psched.error_messages import one_line
from psched.execution.periodic_thread import PeriodicThread
from psched.store.node_registry import (
    Announcement,
    NodeProcess,
    Nodes,
    encode_processes,
    tz_difference,
    version_difference,
)
from psched.store.type_filter import TypeFilter

log = logging.getLogger(__name__)

_INTERVAL = 10.0
"""The average number of seconds between two statements of an idle node, whatever its number of sections."""
_TICK = 5.0
"""The shortest time between two statements about one section, in seconds. It applies if the running tasks have changed.
"""
_COMPARISON = 300.0
"""Seconds between two comparisons of this node's tz database and psched version with those of other nodes."""


@dataclass(frozen=True, slots=True)
class RecordedSection:
    """A section whose store has a registry of nodes, and the types that this node acquires in it."""

    name: str
    nodes: Nodes
    types: TypeFilter


class NodeHeartbeat(PeriodicThread):
    """While the node runs, keeps its entries in `psched_nodes` current, one for each section.

    Removes the entries when the node ends.
    """

    def __init__(
        self, sections: Sequence[RecordedSection], pid: int, processes: Callable[[], Sequence[NodeProcess]]
    ) -> None:
        """`pid`: the pid of the master, or of the process with an embedded scheduler.

        `processes`: returns the processes that run handlers.
        """
        self._sections = sections
        self._pid = pid
        self._processes = processes
        host = socket.gethostname()
        self._node = f"{host[:120]}/{pid}"
        self._host = host[:255]
        self._version = version("psched")
        self._begun = boottime() - _uptime(pid)
        self._recorded: dict[str, tuple[object, float]] = {}
        """For each section: the last record, and when it was written."""
        self._idle_interval = _INTERVAL * max(1, len(sections))
        self._compared_at = -math.inf
        self._warnings: set[str] = set()
        super().__init__("node heartbeat", self.record, _TICK, self.withdraw)

    def record(self) -> bool:
        """Write each record that is missing, old or no longer correct. Return whether there are sections."""
        processes = self._processes()
        for section in self._sections:
            now = monotonic()
            running = [
                (each.name, each.pid, *(run for run in each.runs if run.section == section.name)) for each in processes
            ]
            recorded, at = self._recorded.get(section.name, (None, -math.inf))
            if running != recorded or now > at + self._idle_interval - _TICK / 2:
                section.nodes.announce(self._announcement(section, processes))
                self._recorded[section.name] = running, now
        self._compare()
        return bool(self._sections)

    def withdraw(self) -> None:
        try:
            for section in self._sections:
                section.nodes.withdraw(self._node)
        except Exception as error:  # noqa: BLE001 – the node counts as gone a minute later
            log.info("removing this node from psched_nodes failed: %s; its entry expires", one_line(error))

    def _announcement(self, section: RecordedSection, processes: Iterable[NodeProcess]) -> Announcement:
        now = boottime()
        return Announcement(
            self._node,
            section.name,
            section.types.encode(),
            self._host,
            self._pid,
            self._version,
            tz_database(),
            now - self._begun,
            encode_processes(processes, section.name, now),
        )

    def _compare(self) -> None:
        """Compare the tz databases and psched versions of the nodes, and log each difference once."""
        if monotonic() < self._compared_at + _COMPARISON:
            return
        self._compared_at = monotonic()
        for section in self._sections:
            nodes = section.nodes.alive()
            for warning in (tz_difference(nodes), version_difference(nodes)):
                if warning is not None and warning not in self._warnings:
                    self._warnings.add(warning)
                    log.warning("%s", warning)


def _uptime(pid: int) -> float:
    """Return how many seconds a process has been running; 0.0 if it has ended."""
    try:
        return max(0.0, time.time() - psutil.Process(pid).create_time())
    except psutil.Error:
        return 0.0
