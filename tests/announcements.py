"""Registers nodes as workers do, for tests that run no worker."""

from __future__ import annotations

from dataclasses import replace

from psched.cron import tz_database
from psched.store.node_registry import Announcement, Nodes
from psched.store.type_filter import TypeFilter

_WORKER = Announcement("host/1", "schedules", "", "host", 1, "1.0", tz_database(), 60.0)


def announce(nodes: Nodes | None, name: str, section: str, types: TypeFilter, **told: object) -> None:
    """Register a node of this name, like a live worker. `told`: further fields of the announcement."""
    assert nodes is not None
    nodes.announce(replace(_WORKER, name=name, section=section, types=types.encode(), **told))  # type: ignore[arg-type]
