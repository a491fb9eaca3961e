"""The threads of a started scheduler. All are daemon threads: a host that ends without `stop` does not wait for them.

- `psched occurrences` submits a task for each due occurrence.
- `psched handler N` acquires tasks and calls the bound functions, one at a time.
- Periodic threads renew leases, cancel handlers whose lease is lost, and write this instance's heartbeat and
  statistics.
- Other threads report overdue schedules, and send alerts and events if they are configured.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import closing

from psched.acquisition.task_source import TaskSource
from psched.acquisition.types_with_rows import TypesWithRows
from psched.application import Application
from psched.backends import is_driver_error
from psched.clock import monotonic
from psched.config import Settings
from psched.error_messages import one_line
from psched.errors import ConfigError
from psched.execution.active_runs import ActiveRuns
from psched.execution.alert_and_event_threads import STOPPING, AlertAndEventThreads
from psched.execution.batch_size import BatchSizer
from psched.execution.handler_loop import HandlerLoop, WaitingTaskReleaser
from psched.execution.healthcheck_pings import start_pings
from psched.execution.lease_renewal import LeaseRenewer
from psched.execution.node_heartbeat import NodeHeartbeat, RecordedSection
from psched.execution.opened_stores import OpenSection
from psched.execution.periodic_thread import join_all
from psched.execution.poll_timer import PollTimer
from psched.execution.poller import SectionPoller
from psched.execution.run_stats import CountedTable, StatsWriter, run_counter
from psched.execution.run_watchdog import RunWatchdog
from psched.execution.stop_event import StopEvent
from psched.process.run_outcome_log import log_runs
from psched.process.running_table import RunningTable
from psched.scheduler.function_handlers import Function, FunctionRouter
from psched.scheduler.instance_registry import InstanceRegistry
from psched.scheduler.registered_schedules import Registration, store_registration, store_registrations
from psched.scheduler.skip_missed import MissedOccurrences
from psched.scheduler.stores import STATS_RETENTION, OpenStores
from psched.scheduler.submit_occurrences import OccurrenceRouter
from psched.store import holder_name
from psched.store.node_registry import NodeProcess
from psched.telemetry import attach

log = logging.getLogger(__name__)

_RENEWAL_INTERVAL = 2.0
_CANCEL_GRACE = 2.0
"""Seconds from the cancellation of an awaited handler to the warning that the handler continues without a lease."""
_OCCURRENCES_PER_POLL = 20


class SchedulerThreads:
    """The threads of a started scheduler. Call `start` once; `stop` may be called again, to wait longer."""

    def __init__(
        self,
        settings: Settings,
        stores: OpenStores,
        bindings: Mapping[str, Function],
        registrations: Mapping[str, Registration],
        poll_interval: float,
        concurrency: int,
        misfire_grace_time: float,
    ) -> None:
        """`stores`: closed when the threads have stopped. `concurrency`: the number of handler threads.

        `registrations`: may change while the scheduler runs.
        """
        log_runs()
        self.stores = stores
        self._names = tuple(sorted(bindings))
        self._registrations = registrations
        self._poll_interval = poll_interval
        self._misfire_grace_time = misfire_grace_time
        self._stopping = StopEvent()
        self._ready = threading.Event()
        self._is_prepared = False
        self._closing = threading.Lock()
        self._logged_overrun: str | None = None
        self._instances = InstanceRegistry(stores.queue, self._names, restore_tables=self._restore_tables)
        self._since: float | None = None
        """When this instance started, in unix seconds by the database's clock; None until its heartbeat row is
        written.
        """

        self._running_table = RunningTable(concurrency + 1)
        self._runs = ActiveRuns(self._running_table)
        occurrences = Application((OccurrenceRouter(bindings, stores),))
        functions = Application((FunctionRouter(bindings),))
        self._occurrences = self._handler_loop(
            0, "schedules", stores.schedules.source, occurrences, _OCCURRENCES_PER_POLL
        )
        handlers = [self._handler_loop(cell, "queue", stores.tasks, functions, 1) for cell in range(1, concurrency + 1)]
        self._threads = [
            threading.Thread(target=self._submit_occurrences, name="psched occurrences", daemon=True),
            *(
                threading.Thread(target=self._run_handlers, args=(loop,), name=f"psched handler {number}", daemon=True)
                for number, loop in enumerate(handlers, 1)
            ),
        ]
        sources, loops = [stores.schedules.source, stores.tasks], [self._occurrences, *handlers]
        self._releaser = WaitingTaskReleaser(loops)
        self._runs.threads = [
            LeaseRenewer(sources, loops, _RENEWAL_INTERVAL),
            LeaseRenewer(sources, loops, _RENEWAL_INTERVAL, prefetched=True),
            self._releaser,
            RunWatchdog(self._runs, _CANCEL_GRACE, self._log_overrun),
        ]
        served = (("schedules", stores.schedules.store, occurrences), ("queue", stores.queue, functions))
        recorded = [
            RecordedSection(name, store.nodes, application.types())
            for name, store, application in served
            if store.nodes is not None
        ]
        self._heartbeat = NodeHeartbeat(recorded, os.getpid(), self._processes)
        self._run_counter = run_counter(CountedTable(name, store, STATS_RETENTION) for name, store, _ in served)
        self._settings = settings
        assert settings.schedules is not None and settings.queue is not None
        source = stores.schedules.source
        sections = [
            OpenSection("schedules", settings.schedules, source, stores.schedules.store.alerts),
            OpenSection("queue", settings.queue, stores.tasks),
        ]
        self._alert_and_event_threads = AlertAndEventThreads(sections, holder_name("scheduler"))
        self._detach: Callable[[], None] = lambda: None
        self._close_pings: Callable[[], None] = lambda: None
        self._stats_writer = StatsWriter(self._run_counter)
        self._periodic_threads = [*self._runs.threads, self._instances.thread, self._heartbeat, self._stats_writer]

    def start(self) -> None:
        """Start the threads.

        Raises ConfigError if the database refuses the login, or if psched cannot use its tables.
        """
        try:
            self._prepare()
        except Exception as error:
            if not self.stores.queue.is_unavailable(error):
                self._close(None)
                if is_driver_error(error):
                    raise ConfigError(
                        f"the scheduler cannot use the database: {one_line(error)} (is the URL right?)"
                    ) from error
                raise
            log.warning("the database does not answer: %s; retrying", one_line(error))
        self._detach = attach(self._run_counter, "settle")
        self._close_pings = start_pings(self._settings, self.stores.schedules.store)
        for thread in [*self._runs.threads, self._stats_writer, *self._threads]:
            thread.start()

    @property
    def is_ready(self) -> bool:
        """Whether the tables exist and the registrations are stored."""
        return self._ready.is_set()

    def owns_current_thread(self) -> bool:
        return threading.current_thread() in self._threads

    def stop(self, timeout: float | None, is_exiting: bool = False) -> bool:
        """Stop the threads. Return False if they still run after `timeout` seconds. None: wait for their end.

        `is_exiting`: whether the process ends. If not, another thread closes what could not be closed in time.
        """
        self._stopping.set()
        self._ready.set()
        self._releaser.stop()
        end = None if timeout is None else monotonic() + timeout
        done = join_all(self._threads, end)
        if not (done and self._close(end)) and not is_exiting:
            threading.Thread(target=self._close_when_done, name="psched close", daemon=True).start()
        return done

    def _handler_loop(
        self, cell: int, name: str, source: TaskSource, application: Application, limit: int
    ) -> HandlerLoop:
        margin = min(1.0, source.times.alive_time / 4)
        types = TypesWithRows(source, application.types())
        timer = PollTimer(self._poll_interval)
        poller = SectionPoller(name, source, application, BatchSizer(limit), timer, None, margin, types=types)
        return HandlerLoop(cell, [poller], self._runs, self._stopping)

    def _log_overrun(self, why: str) -> None:
        """Log, once, that a handler continues without a lease, as a thread cannot be killed."""
        if why != self._logged_overrun:
            log.warning("%s; the handler continues, and another instance may run the task again", why)
        self._logged_overrun = why

    def _prepare(self) -> None:
        """Create missing tables, store the registrations, and start the threads that need both.

        May be called again after an error.
        """
        self.stores.create_tables()
        if self._since is None:
            self._since = self._instances.register()
        stored = dict(self._registrations)
        store_registrations(self.stores.schedules, stored)
        if not self._ready.is_set():
            self._instances.thread.start()
            self._heartbeat.start()
            self._alert_and_event_threads.start()
            self._ready.set()
        for registration in [*self._registrations.values()]:  # from now on, register() itself stores a registration
            if stored.get(registration.name) is not registration:
                store_registration(self.stores.schedules, registration)
        self._is_prepared = True

    def _processes(self) -> list[NodeProcess]:
        return [NodeProcess("scheduler", os.getpid(), self._runs.in_progress())]

    def _restore_tables(self) -> None:
        """Create tables that were dropped, or that a database without persistence has lost."""
        if self.stores.create_tables():
            log.warning("the tables were missing and have been created again; storing the registrations again")
            store_registrations(self.stores.schedules, dict(self._registrations))

    def _submit_occurrences(self) -> None:
        if not self._is_prepared:
            self._stopping.retry("preparing the store", self._prepare)
        self._stopping.retry("skipping missed occurrences", self._skip_missed)
        self._run_loop(self._occurrences)

    def _skip_missed(self) -> None:
        assert self._since is not None
        grace = self._misfire_grace_time
        MissedOccurrences(self.stores.schedules, self._instances, self._names, self._since, grace).skip(self._stopping)

    def _run_handlers(self, loop: HandlerLoop) -> None:
        self._ready.wait()
        self._run_loop(loop)

    def _run_loop(self, loop: HandlerLoop) -> None:
        """Run a loop until the scheduler stops, even after an unexpected error."""
        with closing(loop):
            self._stopping.retry(threading.current_thread().name, loop.run)

    def _close_when_done(self) -> None:
        join_all(self._threads, None)
        self._alert_and_event_threads.close()
        self._alert_and_event_threads.join(None)
        self._close(None)

    def _close(self, end: float | None) -> bool:
        """Stop the periodic threads and close everything.

        If these threads are still running at `end` (monotonic), close nothing and return False.
        """
        if self._since is not None and self._instances.thread.ident is None:
            self._instances.unregister()  # otherwise the heartbeat thread does so at its end
        for thread in self._periodic_threads:
            thread.close()
        self._alert_and_event_threads.close()
        if not join_all(self._periodic_threads, end) or not self._alert_and_event_threads.join(_left(end, STOPPING)):
            return False
        self._detach()
        self._close_pings()
        with self._closing:
            self._stopping.close()
            self.stores.close()
            self._running_table.close()
        return True


def _left(end: float | None, most: float) -> float:
    """Return the seconds until `end` (monotonic), at most `most`."""
    return most if end is None else max(0.0, min(most, end - monotonic()))
