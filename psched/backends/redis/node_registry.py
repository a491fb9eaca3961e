"""The registry of nodes: sections, their routed types and when each was last seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from psched.store.node_registry import ALIVE, Node, read_node


class RedisNodes:
    """`Nodes` of one table; `run` runs a script that is safe to run twice."""

    def __init__(self, run: Callable[..., Any]) -> None:
        self._run = run

    def announce(self, name: str, section: str, types: str) -> None:
        self._run("announce", name, section, types)

    def withdraw(self, name: str) -> None:
        self._run("announce", name)

    def alive(self) -> list[Node]:
        found = self._run("alive_nodes", round(ALIVE * 1000))
        rows = [([text.decode() for text in texts], int(age) / 1000) for *texts, age in found]
        read = (read_node(name, section, types, age) for (name, section, types), age in rows)
        return sorted(node for node in read if node is not None)
