"""Builds, runs and closes the parts of a child: pollers, handler threads, lease renewers, run watchdog."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from functools import partial

from psched.application import Application
from psched.backends import is_driver_error
from psched.error_text import ESCAPES, one_line
from psched.errors import ConfigError
from psched.execution.alert_hooks import open_alert_threads
from psched.execution.batch_size import batch_sizer_for
from psched.execution.forced_exit import ForcedExit
from psched.execution.handler_thread import ActiveRuns, HandlerLoop, WaitingTaskReleaser, give_back
from psched.execution.lease_renewal import LeaseRenewer
from psched.execution.node_heartbeat import NodeHeartbeat
from psched.execution.poller import PollTimer, SectionPoller
from psched.execution.run_watchdog import RunWatchdog
from psched.execution.section_sources import open_sections
from psched.execution.stop_event import StopEvent
from psched.process import child_protocol as pipes
from psched.process.child_role import FIRST_SLOT, ChildRole, ChildSpec, DeadChild
from psched.process.logs import log_runs
from psched.process.poll_election import ElectionMember
from psched.store.type_filter import mismatch
from psched.task_source import ClaimableTypes

log = logging.getLogger(__name__)

_WITHDRAWAL = 1.0
"""Seconds for which a child waits at its end until its node is removed from psched_nodes."""


class ChildWorker(ChildRole):
    """Runs handlers in the main thread, or with `processor_type: thread` in as many threads as there are processors."""

    def __init__(self, spec: ChildSpec, application: Application, send: Callable[[str], None]) -> None:
        """`send` sends the master a message of `psched.process.child_protocol`."""
        log_runs()
        settings = spec.settings
        self._spec = spec
        self._send = send
        self._stopping = StopEvent()
        self._stops_now = False
        most = math.inf if settings.max_request_per_child is None else settings.max_request_per_child
        stop = partial(self.stop, immediate=False)
        self._runs = ActiveRuns(spec.running_table, partial(send, pipes.RAN), most, stop)
        self._sections = open_sections(settings, spec.holder)
        served = {
            opened.name: application.of(opened.name).types().serving(opened.section.types) for opened in self._sections
        }
        self._mismatch = mismatch(served.values())
        self._runs_nothing = all(types.is_nothing for types in served.values())
        self._types = {opened.name: ClaimableTypes(opened.source, served[opened.name]) for opened in self._sections}
        sources = [opened.source for opened in self._sections]
        self._forced_exit = ForcedExit(sources, self._runs, send)
        self._watchdog = RunWatchdog(self._runs, settings.child_kill_interval, self._forced_exit.leave)
        self._pollers: list[SectionPoller] = []
        self._loops = [self._handler_loop(cell, application) for cell in range(self._runs.cells)]
        interval = min(opened.section.task_heartbeat_interval for opened in self._sections)
        self._alert_threads = open_alert_threads(self._sections, spec.slot)
        self._releaser = WaitingTaskReleaser(self._loops)
        self._runs.threads = [
            self._watchdog,
            LeaseRenewer(sources, self._loops, interval),
            LeaseRenewer(sources, self._loops, interval, prefetched=True),
            self._releaser,
        ]
        self._node_heartbeats = [NodeHeartbeat(self._sections, served)] if spec.slot == FIRST_SLOT else []

    def run(self) -> None:
        for thread in (*self._runs.threads, *self._alert_threads, *self._node_heartbeats):
            thread.start()
        try:
            self._release_dead()
            if len(self._loops) == 1:
                self._loops[0].run()
            else:
                threads = [
                    threading.Thread(target=loop.run, name=f"handler {cell}", daemon=True)
                    for cell, loop in enumerate(self._loops)
                ]
                for runner_thread in threads:
                    runner_thread.start()
                for runner_thread in threads:
                    runner_thread.join()
        finally:
            self._close()

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        self._stopping.set()
        self._releaser.stop()
        self._watchdog.wind_up()
        if immediate:
            self._stops_now = True
            self._watchdog.stop(grace)

    def expect(self) -> None:
        """Poll at once: rows may be due."""
        for poller in self._pollers:
            poller.expect()

    def running(self) -> str | None:
        shows_key = self._spec.settings.proc_title == "key"
        names = [run.task.key if shows_key else run.task.type for run in self._runs.active()]
        return ", ".join(names).translate(ESCAPES) or None

    def trouble(self) -> str | None:
        troubles = dict.fromkeys(poller.trouble for poller in self._pollers if poller.trouble is not None)
        if self._mismatch is not None and self._runs_nothing:
            troubles[self._mismatch] = None
        return "; ".join(troubles) or None

    def was_idle(self) -> bool:
        worked, self._runs.has_worked = self._runs.has_worked, False
        return not worked and self.running() is None

    def report_suspects(self) -> None:
        """Freeze the running table with the runs in progress and, for idle threads, the last runs not settled yet.

        Otherwise a handler that breaks its process and returns would be run again at once, without end.
        """
        unsettled = [
            f"{opened.name}:{task.key}" for opened in self._sections for task in opened.source.held if task.concluded
        ]
        runs = {cell: self._runs.at(cell) for cell in range(self._runs.cells)}
        names = {cell: run.name for cell, run in runs.items() if run is not None}
        idle = [cell for cell, run in runs.items() if run is None]
        self._spec.running_table.freeze(names | dict(zip(idle, reversed(unsettled), strict=False)))

    def _handler_loop(self, cell: int, application: Application) -> HandlerLoop:
        """Return the loop of one handler thread, with a poller for each section."""
        settings, election = self._spec.settings, self._spec.election
        pollers = []
        for opened in self._sections:
            section, member = opened.section, None
            if election is not None:
                member = ElectionMember(election, self._spec.slot, opened.name, section.poll_interval)
            poller = SectionPoller(
                opened.name,
                opened.source,
                application.of(opened.name),
                batch_sizer_for(section.task_prefetch),
                PollTimer(section.poll_interval),
                section.task_timeout,
                min(settings.child_kill_interval + 1.0, section.alive_time / 4),
                member,
                self._types[opened.name],
            )
            pollers.append(poller)
        self._pollers += pollers
        return HandlerLoop(cell, pollers, self._runs, self._stopping)

    def prepare(self) -> None:
        """Check the tables and join the poll elections. The first child logs which `types` match no handler.

        If the database does not answer or refuses the login, the pollers go on trying and log it.

        Raises:
            ConfigError: a table is missing, belongs to another program, or cannot be used.
        """
        if self._spec.slot == FIRST_SLOT and self._mismatch is not None:
            log.warning("%s", self._mismatch)
        for opened in self._sections:
            store = opened.source.store
            try:
                store.check_tables()
                self._types[opened.name].prepare()
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
                for poller in self._pollers:
                    if poller.name == opened.name:
                        poller.report_trouble(error)
        for poller in self._pollers:
            poller.join_election()

    def _release_dead(self) -> None:
        """Release the leases of dead predecessors before the first poll; retry until the database answers."""
        for dead in self._spec.dead:
            what = f"releasing the leases of dead worker {dead.holder}"
            self._stopping.retry(what, partial(self._give_back, dead))
        if self._spec.dead and not self._stopping.is_set():
            self._send(pipes.RECOVERED)
            self.expect()

    def _give_back(self, dead: DeadChild) -> None:
        for opened in self._sections:
            opened.give_back(dead)

    def _close(self) -> None:
        for node_heartbeat in self._node_heartbeats:
            node_heartbeat.close()
        for alert_thread in self._alert_threads:
            alert_thread.close()
        for opened in self._sections:
            for task in opened.source.held:
                give_back(task)
        if not self._stops_now:  # an immediate stop waits for nothing; the node's entry then expires by itself
            for node_heartbeat in self._node_heartbeats:
                node_heartbeat.join(_WITHDRAWAL)
        for opened in self._sections:
            opened.source.store.close()
        self._stopping.close()
        for thread in self._runs.threads:
            thread.close()
