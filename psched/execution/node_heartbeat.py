"""Records in `psched_nodes` which types this node runs, for `psched doctor` and `psched list`.

The child in the first slot records them for all its siblings, with one statement every ten seconds.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence

from psched.error_text import one_line
from psched.execution.periodic_thread import PeriodicThread
from psched.execution.section_sources import OpenSection
from psched.store.type_filter import TypeFilter

log = logging.getLogger(__name__)

_INTERVAL = 10.0
"""Seconds between two statements, whatever the number of sections."""


class NodeHeartbeat(PeriodicThread):
    """Records each section while it runs, and removes the node at its end."""

    def __init__(self, opened_sections: Sequence[OpenSection], types: Mapping[str, TypeFilter]) -> None:
        """`types`: the types acquired in each section. Call in a child of the master that gives the node its name."""
        self._node = f"{socket.gethostname()[:120]}/{os.getppid()}"
        self._recorded = [
            (nodes, opened.name, types[opened.name].encode())
            for opened in opened_sections
            if (nodes := opened.source.store.nodes) is not None
        ]
        super().__init__("node heartbeat", self.record, _INTERVAL * max(1, len(self._recorded)), self.withdraw)

    def record(self) -> bool:
        """Record every section. Return True while there is one."""
        for nodes, section, types in self._recorded:
            nodes.announce(self._node, section, types)
        return bool(self._recorded)

    def withdraw(self) -> None:
        try:
            for nodes, _, _ in self._recorded:
                nodes.withdraw(self._node)
        except Exception as error:  # noqa: BLE001 – the node counts as gone a minute later
            log.info("removing this node from psched_nodes failed: %s; its entry expires", one_line(error))
