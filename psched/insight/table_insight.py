"""Queries about any table, whether of schedules or of tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from psched.error_messages import one_line
from psched.insight.nodes import live_nodes, unrouted_types
from psched.insight.run_stats import RunReport, RunsAt, run_report, runs_by_time
from psched.store import ScheduleStore, TaskStore
from psched.store.counts import Counted, TypeCounts
from psched.store.node_registry import Node
from psched.store.visitor_actions import VisitorAction

MOST = 10_000
"""The maximum number of rows of one state that are counted."""
TYPES = 100
"""The maximum number of types that a query returns."""
MOST_OF_TYPE = 1000
"""The maximum number of rows of one state and type that are counted."""


class Reader(Protocol):
    """An `Insight` or one of its sections. It knows what an error of a query means."""

    def is_unavailable(self, error: Exception) -> bool: ...

    def is_refused(self, error: Exception) -> bool: ...


def problem_of(reader: Reader, error: Exception) -> str:
    """Return a sentence about the error of a query: why the database cannot be used."""
    if reader.is_refused(error):
        return f"the database refuses this user: {one_line(error)}"
    if reader.is_unavailable(error):
        return f"the database does not answer: {one_line(error)}"
    return f"the database cannot be used: {one_line(error)}"


class TableInsight:
    """The queries that schedules and tasks share. Reads only; safe to use from several threads."""

    def __init__(self, store: ScheduleStore | TaskStore) -> None:
        """`store`: must be opened with `read_only`."""
        self._table = store

    def check_tables(self) -> None:
        """Raise ConfigError, with the remedy, if a table is missing or was created by another version."""
        self._table.check_tables()

    def is_unavailable(self, error: Exception) -> bool:
        """Return whether `error` means that the database is unreachable or overloaded, or refuses psched's user."""
        return self._table.is_unavailable(error) or self._table.is_refused(error)

    def is_refused(self, error: Exception) -> bool:
        """Return whether `error` means that the database refuses psched's user: at login, or for lack of a right."""
        return self._table.is_refused(error)

    def counts(self, most: int = MOST) -> Mapping[str, Counted]:
        """Return the number of rows by state or status; see `TableCounts.counts`."""
        return self._table.reads.counts(most)

    def types(self, limit: int = TYPES, most: int = MOST_OF_TYPE) -> list[TypeCounts]:
        """Return the row counts of each type. The type with the row that has been due longest comes first.

        Raises NotSupportedError on `rdb_compat`.
        """
        return self._table.reads.types(limit, most)

    def now(self) -> float:
        """Return the time on the database's clock, in unix seconds."""
        return self._table.now()

    def unrouted(self) -> str | None:
        """Return, as text, the types with due rows that no live node acquires.

        None if there are no such types, or if no node is alive.
        """
        nodes = live_nodes(self._table)
        return (unrouted_types(self._table, nodes) if nodes else "") or None

    def nodes(self) -> list[Node] | None:
        """Return the live nodes of this table; None if the store does not record nodes."""
        return None if self._table.nodes is None else self._table.nodes.alive()

    def known_nodes(self) -> list[Node] | None:
        """Return the live nodes of this table and those that vanished in the last day.

        None if the store does not record nodes.
        """
        return None if self._table.nodes is None else self._table.nodes.known()

    def actions(self, limit: int = 20, key: str | None = None) -> Sequence[VisitorAction]:
        """Return the last actions of visitors of the web pages, the newest first. `key`: only actions on this row."""
        return () if self._table.actions is None else self._table.actions.last(limit, key)

    def run_report(self, seconds: float = 3600) -> RunReport:
        """Return the runs that ended in the last `seconds`, by type. Raises NotSupportedError on `rdb_compat`."""
        return run_report(self._table, seconds)

    def runs_by_time(self, seconds: float = 3600, type: str | None = None, durations: bool = True) -> list[RunsAt]:
        """Return the runs that ended in the last `seconds`, by time; see `psched.insight.run_stats.runs_by_time`."""
        return runs_by_time(self._table, seconds, type, durations)
