"""The nodes that work on one table on Redis: a hash, written by one script. Used in children and clients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psched.store.node_registry import ALIVE, Node, read_node


class RedisNodes:
    """`Nodes` of one table; `run` runs a script that may be done twice."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def announce(self, name: str, section: str, types: str) -> None:
        """Record that a node is alive."""
        self._run("announce", name, section, types)

    def withdraw(self, name: str) -> None:
        """Remove a node."""
        self._run("announce", name)

    def alive(self) -> list[Node]:
        """Return the nodes that are alive."""
        found = self._run("nodes", round(ALIVE * 1000))
        told = [([text.decode() for text in texts], int(age) / 1000) for *texts, age in found]
        read = (read_node(name, section, types, age) for (name, section, types), age in told)
        return sorted(node for node in read if node is not None)
