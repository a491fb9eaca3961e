"""The threads that each node needs once: heartbeat, statistics, alerts, events. They run in the child that polls."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence

from psched.application import Application
from psched.child.apply_declared_schedules import ApplyDeclaredSchedules
from psched.execution.alert_and_event_threads import AlertAndEventThreads
from psched.execution.node_heartbeat import NodeHeartbeat, RecordedSection
from psched.execution.opened_stores import OpenSection
from psched.execution.run_stats import StatsWriter, counted_tables, run_counter
from psched.store.node_registry import NodeProcess
from psched.store.type_filter import TypeFilter

_WITHDRAWAL = 1.0
"""The maximum number of seconds that an ending child waits until its node is removed from psched_nodes and the node's
statistics are written."""
_LAST_WRITE = 0.3
"""The maximum number of seconds for the last write of the statistics at an immediate stop."""


class NodeThreads:
    def __init__(
        self,
        sections: Sequence[OpenSection],
        application: Application,
        filters: Mapping[str, TypeFilter],
        processes: Callable[[], Sequence[NodeProcess]],
        applied: Callable[[], object] | None,
        claimer: str,
    ) -> None:
        """`filters`: for each section, the filter of the types that the node runs.

        The other parameters are those of `PolledSections`.
        """
        self._alert_and_event_threads = AlertAndEventThreads(sections, claimer)
        self._applying = [
            ApplyDeclaredSchedules(opened.section, application.of(opened.name), applied)
            for opened in sections
            if applied is not None and opened.name == "schedules" and opened.section.apply_at_start
        ]
        recorded = [
            RecordedSection(opened.name, nodes, filters[opened.name])
            for opened in sections
            if (nodes := opened.source.store.nodes) is not None
        ]
        self._heartbeat = NodeHeartbeat(recorded, os.getppid(), processes)
        self.run_counter = run_counter(counted_tables(sections))
        self._stats_writer = StatsWriter(self.run_counter) if self.run_counter.sections else None

    def start(self) -> None:
        self._alert_and_event_threads.start()
        self._heartbeat.start()
        for thread in self._applying:
            thread.start()
        if self._stats_writer is not None:
            self._stats_writer.start()

    def close(self, waits: bool) -> None:
        """End the threads.

        `waits`: whether to wait until the node is removed from psched_nodes. If it is not removed, its entry expires.
        """
        self._heartbeat.close()
        for thread in self._applying:
            thread.close()
        if self._stats_writer is not None:
            self._stats_writer.close()
        self._alert_and_event_threads.close()
        self._alert_and_event_threads.join()
        if waits:
            self._heartbeat.join(_WITHDRAWAL)
        if self._stats_writer is not None:
            self._stats_writer.join(_WITHDRAWAL if waits else _LAST_WRITE)
