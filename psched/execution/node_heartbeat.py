"""Records in psched_nodes which types this node runs, for `psched doctor` and `psched list`.

The child in the first slot records them for all its siblings, with one statement every ten seconds.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence

from psched.execution.periodic_thread import PeriodicThread
from psched.execution.sections import FIRST_SLOT, OpenSection
from psched.process.logs import one_line
from psched.store.type_filter import TypeFilter

log = logging.getLogger(__name__)

_INTERVAL = 10.0
"""Seconds between two statements, whatever the number of sections."""


class NodeHeartbeat:
    """Records each section while its thread runs, and removes the node at its end."""

    def __init__(self, opened_sections: Sequence[OpenSection], types: Mapping[str, TypeFilter], name: str) -> None:
        """`types`: the types acquired in each section. `name`: of this node."""
        self._recorded = [
            (open_section, types[open_section.name].encode())
            for open_section in opened_sections
            if open_section.source.store.nodes is not None
        ]
        self._name = name
        self._failing = False
        self.thread = PeriodicThread(
            "node heartbeat", self.tick, _INTERVAL * max(1, len(self._recorded)), self._withdraw
        )

    def tick(self) -> bool:
        """Record every section; True while there is one."""
        try:
            for open_section, types in self._recorded:
                assert open_section.source.store.nodes is not None
                open_section.source.store.nodes.announce(self._name, open_section.name, types)
            self._failing = False
        except Exception as error:  # noqa: BLE001 – only `doctor` and `list` depend on it
            if not self._failing:
                log.warning("recording this node in psched_nodes failed: %s; retrying", one_line(error))
            self._failing = True
        return bool(self._recorded)

    def _withdraw(self) -> None:
        try:
            for open_section, _ in self._recorded:
                assert open_section.source.store.nodes is not None
                open_section.source.store.nodes.withdraw(self._name)
        except Exception as error:  # noqa: BLE001 – it counts as gone a minute later
            log.info("removing this node from psched_nodes failed: %s; its entry expires", one_line(error))


def open_node_heartbeats(
    opened_sections: Sequence[OpenSection], types: Mapping[str, TypeFilter], slot: int
) -> list[NodeHeartbeat]:
    """Return the heartbeat of this node, in the first slot's child alone."""
    return [NodeHeartbeat(opened_sections, types, node_name())] if slot == FIRST_SLOT else []


def node_name() -> str:
    """Return the name of this host and its master. Call it in a child of that master."""
    return f"{socket.gethostname()[:120]}/{os.getppid()}"
