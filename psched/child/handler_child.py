"""Creates, runs and closes the parts of a handler child: pollers, handler threads, lease renewers, run watchdog."""

from __future__ import annotations

import logging
import math
import os
import resource
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial

from psched.application import Application
from psched.application.default_queue import default_queue
from psched.child.polled_sections import PolledSections
from psched.config import attach_listeners
from psched.error_messages import one_line
from psched.execution.active_runs import ActiveRuns
from psched.execution.batch_size import batch_sizer_for
from psched.execution.fetched_task_poller import FetchedTaskPoller, SettlementThread
from psched.execution.fetcher_connection import FetcherConnection
from psched.execution.fetcher_settlement import GroupSettlement, SettlementConnection
from psched.execution.forced_exit import ForcedExit
from psched.execution.handler_loop import HandlerLoop, WaitingTaskReleaser, give_back
from psched.execution.healthcheck_pings import start_pings
from psched.execution.lease_renewal import LeaseRenewer
from psched.execution.opened_stores import OpenSection, open_sections
from psched.execution.poll_timer import PollTimer
from psched.execution.poller import Poller, SectionPoller
from psched.execution.run_stats import CountReporter, counted_tables, run_counter, write_rest
from psched.execution.run_watchdog import RunWatchdog
from psched.execution.stop_event import StopEvent
from psched.process import child_protocol as pipes
from psched.process.child_base import ChildBase
from psched.process.child_spec import ChildSpec
from psched.process.dead_child import DeadChild
from psched.process.descriptor_reserve import DescriptorReserve
from psched.process.run_outcome_log import log_runs
from psched.process.running_table import RunRecord
from psched.store.node_registry import NodeProcess
from psched.telemetry import attach

log = logging.getLogger(__name__)


class HandlerChild(ChildBase):
    """Runs handlers in the main thread or, with `processor_type: thread`, in `processors` threads."""

    def __init__(
        self,
        spec: ChildSpec,
        application: Application,
        send: Callable[[str], None],
        connection: FetcherConnection | None = None,
    ) -> None:
        """`send`: sends the master a message of `psched.process.child_protocol`.

        `connection`: the connection to the fetching child; None if this child polls.
        """
        settings = spec.settings
        log_runs(json=settings.log_format == "json")
        self._close_pings = start_pings(settings)
        attach_listeners(settings, in_worker=True)
        default_queue.serve(settings)
        self._spec = spec
        self._send = send
        self._stopping = StopEvent()
        self._stops_now = False
        self._descriptors = DescriptorReserve()
        most = math.inf if settings.max_request_per_child is None else settings.max_request_per_child
        stop = partial(self.stop, immediate=False)
        self._runs = ActiveRuns(spec.running_table, partial(send, pipes.RAN), most, stop)
        self._sections = open_sections(settings, spec.holder)
        applied = partial(send, pipes.APPLIED) if spec.applies_schedules else None
        self._polled = (
            None if connection else PolledSections(self._sections, application, self._processes, applied, spec.claimer)
        )
        sources = [opened.source for opened in self._sections]
        self._forced_exit = ForcedExit(sources, self._runs, send)
        self._watchdog = RunWatchdog(self._runs, settings.child_kill_interval, self._forced_exit.leave)
        if self._polled is None:
            self._run_counter = run_counter(counted_tables(self._sections))
        else:
            self._run_counter = self._polled.node_threads.run_counter
        if self._run_counter.sections:
            attach(self._run_counter, "settle")
        self._fetched: list[FetchedTaskPoller] = []
        self._connection = connection
        self._settlements = (
            None
            if spec.dispatch is None
            else SettlementConnection(spec.dispatch.settlements, spec.name, self._stopping)
        )
        self._loops = [self._handler_loop(cell, application) for cell in range(self._runs.cells)]
        reporters: list[CountReporter] = []
        if self._connection is not None and self._run_counter.sections:
            reporters.append(CountReporter(self._run_counter, self._connection.send_if_heard))
            self._connection.before_leaving = reporters[0].send_all
        interval = min(opened.section.task_heartbeat_interval for opened in self._sections)
        self._releaser = WaitingTaskReleaser(self._loops)
        self._runs.threads = [
            self._watchdog,
            LeaseRenewer(sources, self._loops, interval),
            LeaseRenewer(sources, self._loops, interval, prefetched=True),
            self._releaser,
            *([] if self._connection is None else [SettlementThread(self._fetched, self._report_running)]),
            *reporters,
        ]

    def run(self) -> None:
        for thread in self._runs.threads:
            thread.start()
        try:
            if self._polled is not None:
                self._polled.node_threads.start()
                self._release_dead(self._polled)
            if len(self._loops) == 1:
                with closing(self._loops[0]) as loop:
                    loop.run()
            else:
                self._run_in_threads()
        finally:
            self._close()

    def _run_in_threads(self) -> None:
        """Run each loop in a thread of its own.

        If a thread fails, the other threads end after their present runs. Then raise the error of that thread. The
        error ends this child. The next child has all threads again.
        """
        failures: list[BaseException] = []

        def run(loop: HandlerLoop) -> None:
            try:
                with closing(loop):
                    loop.run()
            except BaseException as error:  # noqa: BLE001 – the main thread raises it
                failures.append(error)
                log.error("a handler thread failed: %s; this child ends after its present runs", one_line(error))
                self.stop(immediate=False)

        threads = [
            threading.Thread(target=run, args=(loop,), name=f"handler {cell}", daemon=True)
            for cell, loop in enumerate(self._loops)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        self._stopping.set()
        self._releaser.stop()
        self._watchdog.wind_up()
        if immediate:
            self._stops_now = True
            self._watchdog.stop(grace)

    def running(self) -> Sequence[str]:
        shows_key = self._spec.settings.proc_title == "key"
        return [run.task.row.key if shows_key else run.task.type for run in self._runs.active()]

    def trouble(self) -> str | None:
        return None if self._polled is None else self._polled.trouble()

    def check(self) -> None:
        """End after the present runs if handlers have left no file descriptor free.

        Otherwise most runs would soon fail, so this child would always be free, and get most tasks.
        """
        shortage = self._descriptors.release_if_needed()
        if shortage is not None:
            log.error(
                "%s (the limit is %d): handlers do not close their files and connections, or need a higher limit; this"
                " child ends after its present runs",
                shortage,
                resource.getrlimit(resource.RLIMIT_NOFILE)[0],
            )
            self.stop(immediate=False)

    def was_idle(self) -> bool:
        worked, self._runs.has_worked = self._runs.has_worked, False
        return not worked and not self._runs.active()

    def report_suspects(self) -> None:
        """Name the suspects in the running table, and freeze the table: no later write changes it.

        A suspect is a run that may have broken this process. The runs in progress are suspects. For each idle thread,
        the last run is a suspect if it is not settled yet.
        """
        unsettled = [
            RunRecord(f"{opened.name}:{task.row.key}", task.lease.claim)
            for opened in self._sections
            for task in opened.source.held
            if task.concluded
        ]
        runs = {cell: self._runs.at(cell) for cell in range(self._runs.cells)}
        found = {cell: RunRecord(run.name, run.task.lease.claim) for cell, run in runs.items() if run is not None}
        idle = [cell for cell, run in runs.items() if run is None]
        self._spec.running_table.freeze(found | dict(zip(idle, reversed(unsettled), strict=False)))

    def _processes(self) -> list[NodeProcess]:
        return [NodeProcess(self._spec.name, os.getpid(), self._runs.in_progress())]

    def _report_running(self) -> bool:
        return self._connection is None or self._connection.report_running(self._runs.in_progress())

    def _handler_loop(self, cell: int, application: Application) -> HandlerLoop:
        """Return the loop of one handler thread, with a poller for each section."""
        pollers = [self._poller(opened, application.of(opened.name)) for opened in self._sections]
        return HandlerLoop(cell, pollers, self._runs, self._stopping)

    def _poller(self, opened: OpenSection, application: Application) -> Poller:
        settings, section, timeout = self._spec.settings, opened.section, opened.section.task_timeout
        margin = min(settings.child_kill_interval + 1.0, section.alive_time / 4)
        if self._polled is None:
            assert self._connection is not None
            assert self._settlements is not None
            group = GroupSettlement(opened.name, opened.source, self._settlements)
            fetched = FetchedTaskPoller(
                opened.name, opened.source, application, timeout, margin, self._connection, group
            )
            self._fetched.append(fetched)
            return fetched
        sizer, timer = batch_sizer_for(section.task_prefetch), PollTimer(section.poll_interval)
        types = self._polled.types[opened.name]
        poller = SectionPoller(opened.name, opened.source, application, sizer, timer, timeout, margin, types)
        self._polled.pollers.append(poller)
        return poller

    def prepare(self) -> None:
        """Check the tables if this child polls. Raises ConfigError like `PolledSections.prepare`."""
        if self._polled is not None:
            self._polled.prepare()

    def _release_dead(self, polled: PolledSections) -> None:
        """Release the leases of dead predecessors before the first poll. Retry until the database answers."""
        for dead in self._spec.dead:
            what = f"releasing the leases of dead child {dead.holder}"
            self._stopping.retry(what, partial(self._give_back, dead))
        if self._spec.dead and not self._stopping.is_set():
            self._send(pipes.RECOVERED)
            polled.expect()

    def _give_back(self, dead: DeadChild) -> None:
        for opened in self._sections:
            opened.give_back(dead, dead.own_claims(opened.name))

    def _close(self) -> None:
        if self._polled is not None:
            self._polled.node_threads.close(waits=not self._stops_now)
        for opened in self._sections:
            for task in opened.source.held:
                give_back(task)
        if not self._stops_now:
            write_rest(self._run_counter)  # the counts that were not sent to a fetching child
        for opened in self._sections:
            opened.source.store.close()
        self._stopping.close()
        for thread in self._runs.threads:
            thread.close()
        self._close_pings()


class LazyHandlerChild(ChildBase):
    """Waits for a task from the fetching child, then opens its stores and works as a `HandlerChild`.

    The stores are opened late, because open stores write to memory that is otherwise shared with the master. Without
    open stores, an idle daemon with four children takes 20 % less memory (29 November 2026).
    """

    def __init__(self, spec: ChildSpec, application: Application, send: Callable[[str], None]) -> None:
        assert spec.dispatch is not None
        recovered = partial(send, pipes.RECOVERED)
        self._connection = FetcherConnection(spec.dispatch, spec.name, spec.dead, recovered, spec.siblings)
        self._open = partial(HandlerChild, spec, application, send, self._connection)
        self._stopping = StopEvent()
        self._lock = threading.Lock()
        """Guards `_child` and `_stops`, so that no stop is lost while the child opens its stores."""
        self._child: HandlerChild | None = None
        self._stops: list[tuple[bool, float | None]] = []

    def run(self) -> None:
        """Wait for a task, then work. Even a stopped child opens its stores, to return tasks that have arrived."""
        self._connection.wait_for_tasks(self._stopping)
        child = self._open()
        with self._lock:
            self._child = child
            for immediate, grace in self._stops:
                child.stop(immediate, grace)
        self._stopping.close()
        child.run()

    def stop(self, immediate: bool, grace: float | None = None) -> None:
        with self._lock:
            if self._child is None:
                self._stops.append((immediate, grace))
                self._stopping.set()
            else:
                self._child.stop(immediate, grace)

    def running(self) -> Sequence[str]:
        return () if self._child is None else self._child.running()

    def check(self) -> None:
        if self._child is not None:
            self._child.check()

    def was_idle(self) -> bool:
        return self._child is None or self._child.was_idle()

    def trouble(self) -> str | None:
        return None if self._child is None else self._child.trouble()

    def report_suspects(self) -> None:
        if self._child is not None:
            self._child.report_suspects()
