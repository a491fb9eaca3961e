"""One start of a scheduler: its threads, from the first look at the store to the last handler. In the host's process.

One thread makes tasks of occurrences, the others run handlers; besides them a keeper of leases, a warden and the sign
of life. All are daemon threads: a host that ends without a stop is not held up by them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from psched.application import Application
from psched.clock import monotonic
from psched.errors import ConfigError
from psched.execution.active_runs import ActiveRuns
from psched.execution.batch_size import FixedBatchSize
from psched.execution.lease_renewal import PrefetchedLeaseRenewer, RunningLeaseRenewer
from psched.execution.poll_timer import PollTimer
from psched.execution.poller import SectionPoller
from psched.execution.run_log import log_runs
from psched.execution.run_watchdog import RunWatchdog
from psched.execution.runner import Runner
from psched.execution.stop_event import StopEvent
from psched.process.logs import is_refusal, one_line
from psched.process.running_table import RunningTable
from psched.scheduler import registrations
from psched.scheduler.calls import Function, FunctionRouter, OccurrenceRouter
from psched.scheduler.instances import InstanceRegistry
from psched.scheduler.missed import MissedOccurrences
from psched.scheduler.registrations import Registration
from psched.scheduler.stores import OpenStores
from psched.source.claimable_types import ClaimableTypes
from psched.source.source import Source

log = logging.getLogger(__name__)

_KEEPING = 2.0
_GRACE = 2.0
"""Seconds between telling an awaited handler that its lease is lost, and saying that it goes on all the same."""
_TICKS_AT_ONCE = 20
_LONGEST_PAUSE = 5.0


@dataclass(frozen=True, slots=True)
class SchedulerWork:
    """What an instance is to do: handlers by name, what is registered, how often it polls, in how many threads."""

    bindings: Mapping[str, Function]
    registrations: Mapping[str, Registration]
    poll_interval: float
    concurrency: int


class SchedulerThreads:
    """Starts, works, and stops once."""

    def __init__(self, opened: OpenStores, work: SchedulerWork) -> None:
        """Begins nothing yet; `opened` is closed at the end."""
        log_runs()
        self.opened = opened
        self._work = work
        self._stopping = StopEvent()
        self._ready = threading.Event()
        self._runs = ActiveRuns(work.concurrency + 1)
        self._board = RunningTable(self._runs.cells)
        self._presence = InstanceRegistry(opened.queue, work.bindings, mend=self._mend)
        self._since: float | None = None
        names = tuple(sorted(work.bindings))
        ticks = Application((OccurrenceRouter(names, opened.is_unavailable, opened.chime.ring),))
        calls = Application((FunctionRouter(work.bindings),))
        self._ticks = self._runner(0, "registrations", opened.schedules.source, ticks, _TICKS_AT_ONCE)
        self._calls = [self._runner(cell, "tasks", opened.tasks, calls, 1) for cell in range(1, work.concurrency + 1)]
        sources, runners = [opened.schedules.source, opened.tasks], [self._ticks, *self._calls]
        self._steward = PrefetchedLeaseRenewer(sources, runners, _KEEPING)
        self._warden = RunWatchdog(self._runs, _GRACE, self._goes_on)
        self._said: str | None = None
        self._threads = [
            threading.Thread(target=self._tick, name="psched ticks", daemon=True),
            *(
                threading.Thread(target=self._call, args=(runner,), name=f"psched handler {number}", daemon=True)
                for number, runner in enumerate(self._calls, 1)
            ),
        ]
        self._closing = threading.Lock()
        self._tickers = [
            RunningLeaseRenewer(sources, runners, _KEEPING).ticker,
            self._steward.ticker,
            self._warden.ticker,
        ]
        self._tenders = [*self._tickers, self._presence.ticker]

    def start(self) -> None:
        """Begin to work; a database that does not answer is waited for, in the background.

        Raises ConfigError when the database refuses us, or has tables of this name that are not ours.
        """
        try:
            self._prepare()
        except Exception as error:
            if not self.opened.is_unavailable(error):
                self._close(None)
                if is_refusal(error):
                    words = f"the database refuses: {one_line(error)}"
                    raise ConfigError(f"{words} (is the URL right?)") from error
                raise
            log.warning("the database does not answer yet: %s; trying again until it does", one_line(error))
        for thread in [*self._tickers, *self._threads]:
            thread.start()

    def runs_here(self) -> bool:
        """Tell whether the calling thread is one of its own."""
        return threading.current_thread() in self._threads

    @property
    def is_ready(self) -> bool:
        """Whether the tables are made, and what is registered is stored."""
        return self._ready.is_set()

    def stop(self, timeout: float | None, leave_rest: bool = False) -> bool:
        """Take no more tasks, and wait until the running handlers are done; False when that takes longer.

        What runs then goes on, its leases kept. `leave_rest`: the process ends next, so nobody is to wait for it.
        A database that does not answer holds nobody up for longer: what it is to be told is tried in the background.
        """
        self._stopping.set()
        self._ready.set()
        self._steward.stop()
        end = None if timeout is None else monotonic() + timeout
        done = _joined(self._threads, end)
        if not (done and self._close(end)) and not leave_rest:
            threading.Thread(target=self._close_when_done, name="psched end", daemon=True).start()
        return done

    def _runner(self, cell: int, name: str, source: Source, application: Application, limit: int) -> Runner:
        margin = min(1.0, source.times.alive_time / 4)
        types = ClaimableTypes(source, application.types())
        timer = PollTimer(self._work.poll_interval)
        poller = SectionPoller(name, source, application, FixedBatchSize(limit), timer, None, margin, types=types)
        return Runner(cell, [poller], self._runs, self._board, self._stopping, self._acquired, lambda: None)

    def _acquired(self) -> None:
        for ticker in self._tickers:
            ticker.poke()

    def _goes_on(self, why: str) -> None:
        """Say once that a handler goes on although its lease is over; nobody can end a thread."""
        if why != self._said:
            log.warning("%s; the handler goes on, and another instance may run the task again", why)
        self._said = why

    def _prepare(self) -> None:
        """Make tables, give the first sign of life and store what is registered. Raises the driver's errors."""
        self.opened.make_tables()
        if self._since is None:
            self._since = self._presence.announce()
        registrations.store(self.opened.schedules, self._work.registrations)
        self._presence.ticker.start()
        self._ready.set()

    def _tick(self) -> None:
        """Be the thread of ticks: bring the store up to date, skip what came in a downtime, then tick."""
        self._try("the store is not prepared yet", self._prepare, self._ready.is_set)
        settled = threading.Event()
        self._try("what is overdue is not known yet", lambda: self._settle_arrears(settled), settled.is_set)
        self._ticks.run()

    def _settle_arrears(self, settled: threading.Event) -> None:
        names = self._work.bindings
        assert self._since is not None
        MissedOccurrences(self.opened.schedules, self._presence, names, self._since).settle(self._stopping)
        settled.set()

    def _try(self, complaint: str, step: Callable[[], None], is_done: Callable[[], bool]) -> None:
        """Do a step again and again until it is done, whatever the database says meanwhile."""
        pause, said = 0.1, ""
        while not is_done() and not self._stopping.is_set():
            try:
                step()
            except Exception as error:  # noqa: BLE001 – until the database does it
                if one_line(error) != said:
                    said = one_line(error)
                    log.warning("%s: %s; trying again until it is", complaint, said)
                self._stopping.wait(pause)
                pause = min(pause * 2, _LONGEST_PAUSE)

    def _call(self, runner: Runner) -> None:
        """Be a thread of handlers."""
        self._ready.wait()
        runner.run()

    def _mend(self) -> None:
        """Make tables that somebody removed, or a database without memory forgot, and store what is registered."""
        if self.opened.make_tables():
            log.warning("the tables were gone, and are made anew; what this code registers is stored again")
            registrations.store(self.opened.schedules, self._work.registrations)

    def _close_when_done(self) -> None:
        _joined(self._threads, None)
        self._close(None)

    def _close(self, end: float | None) -> bool:
        """Close everything when nobody tends anything any more; False, and nothing is closed, if not by `end`."""
        if self._since is not None and self._presence.ticker.ident is None:
            self._presence.leave()  # as its thread, which a failed start never began, would do
        for tender in self._tenders:
            tender.close()
        if not _joined(self._tenders, end):
            return False
        with self._closing:
            self._stopping.close()
            self.opened.close()
            self._board.close()
        return True


def _joined(threads: Sequence[threading.Thread], end: float | None) -> bool:
    """Wait for threads to end, until `end` (monotonic) at the most, and tell whether they have."""
    for thread in threads:
        if thread.is_alive():  # of a start that was interrupted, not all have begun
            thread.join(None if end is None else max(0.0, end - monotonic()))
    return not any(thread.is_alive() for thread in threads)


def names_of(bindings: Collection[str]) -> str:
    """Return names for a message."""
    return ", ".join(repr(name) for name in sorted(bindings)) or "nothing"
