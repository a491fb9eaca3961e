"""The sections of a child that polls: which types it acquires, its pollers, and the threads that a node needs once."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any

from psched.acquisition.claimable_types import ClaimableTypes
from psched.application import Application
from psched.backends import is_driver_error
from psched.child.apply_at_start import ApplyAtStart
from psched.error_messages import one_line
from psched.errors import ConfigError
from psched.execution.alert_and_event_threads import AlertAndEventThreads
from psched.execution.node_heartbeat import NodeHeartbeat, RecordedSection
from psched.execution.open_sections import OpenSection
from psched.execution.run_stats import StatsWriter, counted_tables, run_counter
from psched.execution.section_poller import RowPoller
from psched.store.node_registry import NodeProcess
from psched.store.type_filter import mismatch

log = logging.getLogger(__name__)

_WITHDRAWAL = 1.0
"""Seconds for which a child waits at its end until its node is removed from psched_nodes, and statistics written."""
_LAST_WRITE = 0.3
"""Seconds that the statistics may take at an immediate stop."""


class PolledSections:
    def __init__(
        self,
        sections: Sequence[OpenSection],
        application: Application,
        processes: Callable[[], Sequence[NodeProcess]],
        is_first: bool,
    ) -> None:
        """`processes` returns the children of this node that run handlers, and what they run. Any thread.

        `is_first`: as in `ChildSpec`; only the first child applies the schedules of the application.
        """
        self._sections = sections
        served = {opened.name: application.of(opened.name).types().serving(opened.section.types) for opened in sections}
        self._mismatch = mismatch(served.values())
        self._runs_nothing = all(types.is_nothing for types in served.values())
        self.types = {opened.name: ClaimableTypes(opened.source, served[opened.name]) for opened in sections}
        self.pollers: list[RowPoller[Any]] = []
        self._alert_and_event_threads = AlertAndEventThreads(sections)
        self._applying = [
            ApplyAtStart(opened.section, application.of(opened.name))
            for opened in sections
            if is_first and opened.name == "schedules" and opened.section.apply_at_start
        ]
        recorded = [
            RecordedSection(opened.name, nodes, served[opened.name])
            for opened in sections
            if (nodes := opened.source.store.nodes) is not None
        ]
        self._heartbeat = NodeHeartbeat(recorded, os.getppid(), processes)
        self.run_counter = run_counter(counted_tables(sections))
        self._stats_writer = StatsWriter(self.run_counter) if self.run_counter.sections else None

    def prepare(self) -> None:
        """Check the tables, and log which `types` match no handler.

        If the database does not answer or refuses the login, the pollers keep trying and log it.

        Raises:
            ConfigError: a table is missing, belongs to another program, or cannot be used.
        """
        if self._mismatch is not None:
            log.warning("%s", self._mismatch)
        for opened in self._sections:
            store = opened.source.store
            try:
                store.check_tables()
                self.types[opened.name].prepare()
            except Exception as error:
                if store.is_unavailable(error):
                    log.warning("section=%s the database does not answer yet: %s", opened.name, one_line(error))
                elif store.is_refused(error):
                    log.debug("section=%s the database refuses this user: %s", opened.name, one_line(error))
                elif is_driver_error(error):
                    words = f"{opened.name}: the database refuses: {one_line(error)}"
                    raise ConfigError(f"{words} (is `url:` right? `psched doctor` looks closer)") from error
                else:
                    raise
                for poller in self.pollers:
                    if poller.name == opened.name:
                        poller.report_trouble(error)

    def start(self) -> None:
        self._alert_and_event_threads.start()
        self._heartbeat.start()
        for thread in self._applying:
            thread.start()
        if self._stats_writer is not None:
            self._stats_writer.start()

    def expect(self) -> None:
        """Poll at once: rows may be due."""
        for poller in self.pollers:
            poller.expect()

    def trouble(self) -> str | None:
        troubles = dict.fromkeys(poller.trouble for poller in self.pollers if poller.trouble is not None)
        if self._mismatch is not None and self._runs_nothing:
            troubles[self._mismatch] = None
        return "; ".join(troubles) or None

    def close(self, waits: bool) -> None:
        """End the threads.

        If not `waits`, the node's entry in psched_nodes may expire by itself.
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
