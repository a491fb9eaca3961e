"""The fetching child: it acquires rows for the handler children. It runs no handlers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from psched.application import Application
from psched.child.polled_sections import PolledSections
from psched.execution.fetcher import Fetcher
from psched.execution.fetcher_settlement import GroupSettlementThread
from psched.execution.opened_stores import open_sections
from psched.execution.stop_event import StopEvent
from psched.process.child_base import ChildBase
from psched.process.child_protocol import APPLIED, RECOVERED
from psched.process.child_spec import ChildSpec
from psched.store.node_registry import NodeProcess

_SETTLEMENT = 1.0
"""The maximum number of seconds that a stopping fetching child waits for its last settlement to end. Handler children
that get no answer settle their runs themselves."""

_CONNECTIONS = 2
"""The number of idle connections of each section: one to acquire rows, and one to settle runs at the same time."""


class FetchingChild(ChildBase):
    def __init__(self, spec: ChildSpec, application: Application, send: Callable[[str], None]) -> None:
        """`send`: sends the master a message of `psched.process.child_protocol`."""
        assert spec.dispatch is not None
        self._stopping = StopEvent()
        self._stops_now = False
        self._opened = open_sections(spec.settings, spec.holder, _CONNECTIONS)
        applied = partial(send, APPLIED) if spec.applies_schedules else None
        self._sections = PolledSections(self._opened, application, self._processes, applied, spec.claimer)
        recovered = partial(send, RECOVERED)
        self._fetcher = Fetcher(
            self._opened,
            self._sections.types,
            spec.dispatch,
            self._stopping,
            spec.dead,
            spec.siblings,
            spec.name,
            recovered,
            count=self._sections.node_threads.run_counter.add,
        )
        sources = {opened.name: opened.source for opened in self._opened}
        self._settlement = GroupSettlementThread(sources, spec.dispatch.settlements, self._stopping)
        self._sections.pollers += self._fetcher.pollers.values()

    def prepare(self) -> None:
        self._sections.prepare()

    def run(self) -> None:
        self._sections.node_threads.start()
        self._settlement.start()
        try:
            self._fetcher.run()
        finally:
            self._stopping.set()  # even after an error, the thread must end before the stores are closed
            self._settlement.join(_SETTLEMENT)
            self._sections.node_threads.close(waits=not self._stops_now)
            for opened in self._opened:
                opened.source.store.close()
            self._stopping.close()

    def _processes(self) -> list[NodeProcess]:
        return self._fetcher.processes()

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        self._stops_now = immediate
        self._stopping.set()

    def trouble(self) -> str | None:
        return self._sections.trouble()

    def was_idle(self) -> bool:
        worked, self._fetcher.has_worked = self._fetcher.has_worked, False
        return not worked
