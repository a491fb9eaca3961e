"""Finds out why a schedule or a task is not running."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal, NamedTuple

from psched.model import ScheduleRow, TaskRow
from psched.store import LeaseStore, TaskStore
from psched.store.node_registry import Node
from psched.time_text import local_time

ReasonWord = Literal["broken", "paused", "ended", "not due", "no node", "max_running", "busy"]
BROKEN: Final = "broken"
PAUSED: Final = "paused"
ENDED: Final = "ended"
NOT_DUE: Final = "not due"
NO_NODE: Final = "no node"
MAX_RUNNING: Final = "max_running"
BUSY: Final = "busy"


class Reason(NamedTuple):
    """One reason why a row waits: a word for programs, and a sentence for people. Later versions keep the word."""

    word: ReasonWord
    text: str


def why_waiting(row: ScheduleRow | TaskRow, store: LeaseStore, now: float) -> list[Reason]:
    """Return why `row` is not running. Returns no reason for a running row or an ended task.

    `now`: unix seconds on the database's clock.
    """
    due = row.next_run_time if isinstance(row, ScheduleRow) else row.due
    if due is None or (row.status == "running" and due > now and store.knows_holders):
        return []
    nodes = None if store.nodes is None else store.nodes.alive()
    reasons = list(_reasons(row, due, store, now, nodes))
    return reasons or [Reason(BUSY, routing_hint(nodes, row.type))]


def _reasons(
    row: ScheduleRow | TaskRow, due: float, store: LeaseStore, now: float, nodes: Sequence[Node] | None
) -> Iterator[Reason]:
    if row.problem is not None:
        yield Reason(BROKEN, f"it cannot be run: {row.problem}")
    if isinstance(row, ScheduleRow) and row.paused:
        yield Reason(PAUSED, "it is paused; `psched resume` ends the pause")
    elif isinstance(row, ScheduleRow) and row.ended:
        yield Reason(ENDED, "its rule has no further occurrence; give it another rule with `psched modify`")
        return
    elif due > now:
        retry = f", for attempt {row.attempts + 1}" if row.attempts else ""
        leased = "" if store.knows_holders else ", or a worker has leased it until then"
        yield Reason(NOT_DUE, f"it is due {local_time(due)}{retry}{leased}")
    if nodes is not None and not any(node.types.accepts(row.type) for node in nodes):
        yield Reason(NO_NODE, routing_hint(nodes, row.type))
    if isinstance(row, TaskRow) and row.user is not None and isinstance(store, TaskStore):
        running, least = store.reads.running_of(row.user)
        limit = min((each for each in (row.max_running, least) if each is not None), default=None)
        if limit is not None and running >= limit:
            tasks = "1 task" if running == 1 else f"{running} tasks"
            yield Reason(MAX_RUNNING, f"user {row.user!r} has {tasks} running, and max_running is {limit}")


def routing_hint(nodes: Sequence[Node] | None, type_: str) -> str:
    """Return a question or a hint about nodes that could run a row of this type.

    `nodes`: the live nodes; None if they are unknown.
    """
    if nodes is None:
        return "is a node running that routes its type? (psched run, pschedd status)"
    if not nodes:
        return "no node is running; start one: psched run, or pschedd start"
    routing = sum(node.types.accepts(type_) for node in nodes)
    if not routing:
        return f"no live node routes the type {type_!r}"
    if routing == 1:
        return "1 live node routes its type; are its workers busy? (pschedd status)"
    return f"{routing} live nodes route its type; are their workers busy? (pschedd status)"
