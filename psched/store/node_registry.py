"""Which worker processes are alive, and what types each of them routes."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from psched.store.type_filter import TypeFilter

ALIVE = 60.0
"""Seconds after its last heartbeat for which a node counts as alive."""


class Node(NamedTuple):
    """One master's workers of one section, last seen `age` seconds ago by the database's clock."""

    name: str
    section: str
    types: TypeFilter
    age: float


class Nodes(Protocol):
    """The nodes that work on one table. Safe to use from several threads."""

    def announce(self, name: str, section: str, types: str) -> None:
        """Record that a node is alive, with its encoded `TypeFilter`. One statement, except for the first call."""

    def withdraw(self, name: str) -> None:
        """Remove a node that stops."""

    def alive(self) -> list[Node]:
        """Return the nodes that were seen within the last `ALIVE` seconds."""


def read_node(name: str, section: str, types: str, age: float) -> Node | None:
    """Return a stored node, or None if another version of psched encoded its types."""
    try:
        return Node(name, section, TypeFilter.decode(types), age)
    except ValueError:
        return None
