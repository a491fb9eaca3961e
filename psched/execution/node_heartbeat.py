"""Announces what types this node's workers route, for `psched doctor` and `psched list`. In children.

The child in the first slot does so for all of its siblings, by one statement every ten seconds.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Mapping, Sequence

from psched.execution.periodic_thread import PeriodicThread
from psched.execution.sections import OpenSection
from psched.process.logs import one_line
from psched.store.type_filter import TypeFilter

log = logging.getLogger(__name__)

_INTERVAL = 10.0
"""Seconds between two statements, whatever the number of sections."""
_FIRST_SLOT = 1


class NodeHeartbeat:
    """Announces each section in turn while its ticker runs, and withdraws all of them at the end."""

    def __init__(self, opened_sections: Sequence[OpenSection], types: Mapping[str, TypeFilter], name: str) -> None:
        """`types`: what is claimed of each section. `name`: of this node."""
        self._told = [
            (open_section, types[open_section.name].encode())
            for open_section in opened_sections
            if open_section.source.store.nodes is not None
        ]
        self._name = name
        self._failing = False
        self.ticker = PeriodicThread("announcer", self.tick, _INTERVAL * max(1, len(self._told)), self._withdraw)

    def tick(self) -> bool:
        """Announce every section; True, to be called again."""
        try:
            for open_section, types in self._told:
                assert open_section.source.store.nodes is not None
                open_section.source.store.nodes.announce(self._name, open_section.name, types)
            self._failing = False
        except Exception as error:  # noqa: BLE001 – nothing but what `doctor` says depends on it
            if not self._failing:
                log.warning("recording this node in psched_nodes failed: %s; retrying", one_line(error))
            self._failing = True
        return bool(self._told)

    def _withdraw(self) -> None:
        try:
            for open_section, _ in self._told:
                assert open_section.source.store.nodes is not None
                open_section.source.store.nodes.withdraw(self._name)
        except Exception as error:  # noqa: BLE001 – it counts as gone a minute later
            log.info("removing this node from psched_nodes failed: %s; its entry expires", one_line(error))


def open_node_heartbeats(
    opened_sections: Sequence[OpenSection], types: Mapping[str, TypeFilter], slot: int
) -> list[NodeHeartbeat]:
    """Return what announces this node: in the first slot's child alone."""
    return [NodeHeartbeat(opened_sections, types, node_name())] if slot == _FIRST_SLOT else []


def node_name() -> str:
    """Return the name of this host and its master. Call it in a child of that master."""
    return f"{socket.gethostname()[:120]}/{os.getppid()}"
