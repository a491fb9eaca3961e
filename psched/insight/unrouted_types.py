"""Finds the types with due rows that no live node acquires."""

from __future__ import annotations

from collections.abc import Sequence

from psched.store import LeaseStore
from psched.store.node_registry import Node


def unrouted_types(store: LeaseStore, workers: Sequence[Node]) -> str:
    """Return, as text, the types with due rows that none of these nodes acquires."""
    due = store.due_by_type()
    return ", ".join(sorted(type_ for type_ in due if not any(worker.types.accepts(type_) for worker in workers)))
