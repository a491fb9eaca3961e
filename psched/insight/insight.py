"""All sections of a configuration, opened for readers, and an overview of them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from psched.config import SectionName, Settings
from psched.insight.doctor import configuration_findings, section_findings, tz_database_finding
from psched.insight.nodes import NodeState, merged
from psched.insight.schedule_insight import ScheduleInsight
from psched.insight.table_insight import TableInsight
from psched.insight.task_insight import TaskInsight
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import Finding, holder_name
from psched.store.counts import Counted
from psched.store.node_registry import Node


@dataclass(frozen=True, slots=True)
class Overview:
    """The numbers of rows by state (see `TableCounts.counts`), and the live nodes.

    The numbers of a section that the configuration does not have are empty.

    `overdue`: whether any schedule is late now; see `ScheduleInsight.overdue`.
    """

    schedules: Mapping[str, Counted]
    tasks: Mapping[str, Counted]
    nodes: tuple[Node, ...]
    overdue: bool


class Insight:
    """The sections of a configuration, opened for readers. A context manager.

    `schedules` and `tasks` are None if the configuration does not have the section.
    """

    def __init__(self, settings: Settings, connections: int = 1) -> None:
        """Opens no connection. `connections`: see `open_insight`. Raises ConfigError."""
        holder = holder_name(f"psched-{os.getpid()}")
        self._settings = settings
        self._tables: dict[SectionName, ScheduleCollection | Queue] = {}
        self.schedules: ScheduleInsight | None = None
        self.tasks: TaskInsight | None = None
        if settings.schedules is not None:
            schedules = self._tables["schedules"] = open_schedules(
                settings.schedules, holder, connections=connections, read_only=True
            )
            self.schedules = ScheduleInsight(schedules)
        if settings.queue is not None:
            queue = self._tables["queue"] = open_queue(settings.queue, holder, connections=connections, read_only=True)
            self.tasks = TaskInsight(queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def overview(self) -> Overview:
        return Overview(
            {} if self.schedules is None else self.schedules.counts(),
            {} if self.tasks is None else self.tasks.counts(),
            tuple(node for part in self._parts for node in part.nodes() or ()),
            self.schedules is not None and bool(self.schedules.overdue(1)),
        )

    def nodes(self) -> list[NodeState]:
        """Return the nodes of all sections, with the tasks that they run.

        Includes nodes that vanished in the last day.
        """
        return merged(node for part in self._parts for node in part.known_nodes() or ())

    def doctor(self) -> list[Finding]:
        """Return the findings of `psched doctor`, except those about the application and about writing to tables.

        An unreachable database is one of the findings.
        """
        found = [*configuration_findings(self._settings), tz_database_finding()]
        for name, section in self._settings.named_sections:
            found += section_findings(name, section, self._tables[name], writing=False)
        return found

    def check_tables(self) -> None:
        """Raise ConfigError, with the remedy, if a table is missing or was created by another version."""
        for part in self._parts:
            part.check_tables()

    def is_unavailable(self, error: Exception) -> bool:
        """Return whether `error` means that a database is unreachable or overloaded, or refuses psched's user."""
        return any(part.is_unavailable(error) for part in self._parts)

    def is_refused(self, error: Exception) -> bool:
        """Return whether `error` means that a database refuses psched's user: at login, or for lack of a right."""
        return any(part.is_refused(error) for part in self._parts)

    @property
    def _parts(self) -> Sequence[TableInsight]:
        return [part for part in (self.schedules, self.tasks) if part is not None]

    def close(self) -> None:
        """Close every connection; idempotent."""
        for table in self._tables.values():
            table.close()


def open_insight(settings: Settings, connections: int = 1) -> Insight:
    """Return the sections of a configuration for readers. Opens no connection. Raises ConfigError.

    `connections`: the maximum number of idle connections that each section keeps open. Each thread uses one connection
    while it queries.
    """
    return Insight(settings, connections)
