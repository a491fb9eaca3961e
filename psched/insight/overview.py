"""All sections of a configuration, opened for readers, and what they hold at a glance."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from psched.config import Settings
from psched.insight.nodes import NodeState, merged
from psched.insight.schedules import ScheduleInsight
from psched.insight.table import TableInsight
from psched.insight.tasks import TaskInsight
from psched.queue.queue import Queue, open_queue
from psched.schedules.collection import ScheduleCollection, open_schedules
from psched.store import holder_name
from psched.store.node_registry import Node
from psched.store.reads import Counted


@dataclass(frozen=True, slots=True)
class Overview:
    """The numbers of rows by state, as `Reads.counts` returns them, and the live workers; empty without that section.

    `overdue`: whether schedules are late now; the first of them are in `ScheduleInsight.overdue`.
    """

    schedules: Mapping[str, Counted]
    tasks: Mapping[str, Counted]
    nodes: tuple[Node, ...]
    overdue: bool


class Insight:
    """The sections of a configuration, opened for readers. A context manager.

    `schedules` and `tasks` are None where the configuration has no such section.
    """

    def __init__(self, schedules: ScheduleCollection | None, queue: Queue | None) -> None:
        self._tables = [table for table in (schedules, queue) if table is not None]
        self.schedules = None if schedules is None else ScheduleInsight(schedules)
        self.tasks = None if queue is None else TaskInsight(queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def overview(self) -> Overview:
        """Return all sections at a glance."""
        return Overview(
            {} if self.schedules is None else self.schedules.counts(),
            {} if self.tasks is None else self.tasks.counts(),
            tuple(node for part in self._parts for node in part.nodes() or ()),
            self.schedules is not None and bool(self.schedules.overdue(1)),
        )

    def nodes(self) -> list[NodeState]:
        """Return the workers of all sections and what they run, also those that have vanished in the last day."""
        return merged(node for part in self._parts for node in part.known_nodes() or ())

    @property
    def _parts(self) -> Sequence[TableInsight]:
        return [part for part in (self.schedules, self.tasks) if part is not None]

    def close(self) -> None:
        """Close every connection; idempotent."""
        for table in self._tables:
            table.close()


def open_insight(settings: Settings) -> Insight:
    """Return the sections of a configuration for readers. Connects to nothing yet. Raises ConfigError."""
    holder = holder_name(f"psched-{os.getpid()}")
    schedules, queue = settings.schedules, settings.queue
    return Insight(
        None if schedules is None else open_schedules(schedules, holder, read_only=True),
        None if queue is None else open_queue(queue, holder, read_only=True),
    )
