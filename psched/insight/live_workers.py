"""Finds the live workers of a table, and the types of due rows that none of them routes."""

from __future__ import annotations

from collections.abc import Sequence

from psched.store import LeaseStore
from psched.store.node_registry import Node


def live_workers(store: LeaseStore) -> Sequence[Node]:
    """Return the live workers of a table; an empty sequence if the store does not record workers."""
    return () if store.nodes is None else store.nodes.alive()


def unrouted_types(store: LeaseStore, workers: Sequence[Node]) -> str:
    """Return the types that have due rows, and that no worker routes."""
    due = store.due_by_type()
    return ", ".join(sorted(type_ for type_ in due if not any(worker.types.accepts(type_) for worker in workers)))
