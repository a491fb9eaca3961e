"""Polls one section of the configuration for due rows. Handles timing, wake-ups and failures."""

from __future__ import annotations

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence
from typing import Generic, Protocol, TypeVar

from psched.acquisition.task_source import TaskSource
from psched.acquisition.types_with_rows import TypesWithRows
from psched.application import Application
from psched.backends import is_driver_error
from psched.error_messages import one_line
from psched.errors import ConfigError
from psched.execution.batch_size import BatchSizer
from psched.execution.fetcher_settlement import GroupSettlement
from psched.execution.poll_timer import SHORTEST_PAUSE, PollTimer
from psched.execution.settlement_buffer import SettlementBuffer
from psched.execution.wakeup_listener import WakeupListener
from psched.store import Accepts, LeaseStore
from psched.store.type_filter import TypeFilter
from psched.task import Task, release_many
from psched.telemetry import emit

log = logging.getLogger(__name__)

Row_co = TypeVar("Row_co", covariant=True)

_CHECK = 0.01
_LONGEST_PAUSE = 5.0
"""The longest pause between two polls of a database that does not answer, in poll intervals."""

_LONGEST_REFUSED_PAUSE = 60.0
"""The longest pause between two polls of a database that refuses the login, in seconds."""
_REMINDER = 600.0
"""Seconds after which a refused login is logged again."""

_LISTENING = 6
"""After each poll the listener listens for the longest pause multiplied by this number."""

_BURST = 1.0
"""The maximum number of seconds that maintenance waits. It waits while polls find rows, and while a row is due within
this time."""

_MAINTENANCE_PAUSE = 0.05
"""Seconds between two rounds of maintenance in an idle child while old rows are left. A round takes about as long as
this pause.
"""


class Poller(ABC):
    """Gives a handler thread the tasks of one section, and reports their runs. Its methods never wait."""

    batch_was_full = False
    """Whether the last poll acquired its limit of rows, so that more may be due."""
    patience = 0.25
    """Seconds. If a run takes longer, the tasks behind it are released, because a worker of another host may be idle.
    """

    def __init__(
        self,
        name: str,
        source: TaskSource,
        application: Application,
        prefetch: BatchSizer,
        task_timeout: float | None,
        margin: float,
        group: GroupSettlement | None = None,
    ) -> None:
        """`margin`: a run is stopped this many seconds before the end of its lease.

        `group`: as for `SettlementBuffer`.
        """
        self.name = name
        self.source = source
        self.application = application
        self.prefetch = prefetch
        self.task_timeout = task_timeout
        self.margin = margin
        self.settlement_buffer = SettlementBuffer(name, source, group=group)

    @abstractmethod
    def poll(self, may_rest: bool = True) -> Sequence[Task]:
        """Return tasks to run. `may_rest`: whether the thread may pause if there are none."""

    @abstractmethod
    def pause(self) -> float:
        """Return the seconds until the next poll."""

    @property
    @abstractmethod
    def descriptors(self) -> Sequence[int]:
        """Descriptors that end the pause. If one is readable, call `wake`."""

    def wake(self) -> None:  # noqa: B027 – a poller may have nothing to do
        """Read pending wake-ups. If there were any, the next poll is due."""

    def rest(self) -> None:  # noqa: B027 – a poller may have nothing to do
        """Called before a pause of the thread."""

    def ignore_wakeups(self) -> None:  # noqa: B027 – a poller may have nothing to do
        """Ignore wake-ups until the next `rest`, so that idle workers get them. The next poll is due immediately."""

    def run_ended(self, task: Task, more: bool) -> None:
        """Update the expected duration of the task's type. `more`: whether further tasks wait in this thread."""
        self.prefetch.observe_run(task.type, task.duration)

    def give_up(self, tasks: Sequence[Task], now: float) -> None:
        """Let other workers run the tasks that have not begun. `now`: boottime seconds. Callable from any thread."""
        give_up_leases(tasks, now)

    def return_late(self) -> bool:
        """If tasks wait behind a slow run, return them to the child that sent them. Callable from any thread.

        Return whether the next call must follow after `check_interval`.
        """
        return False

    @property
    def check_interval(self) -> float:
        """Seconds between two checks of the tasks that wait behind a run."""
        return _CHECK

    def settle_before(self, now: float, type: str) -> None:
        """Settle the collected runs now, if they would wait too long for the end of the next run.

        `type`: the type of the next run.
        """
        self.settlement_buffer.flush_if_slow(now, self.prefetch.expected(type))

    def settle_idle(self) -> None:
        """Settle the collected runs, because no other run follows."""
        self.settlement_buffer.flush()

    def close(self) -> None:  # noqa: B027 – a poller may have nothing to do
        """Close what the poller has opened, but not the source."""


def give_up_leases(tasks: Sequence[Task], now: float) -> None:
    """Release the leases of the tasks that have not begun. `now`: boottime seconds. Callable from any thread."""
    left = [task for task in tasks if task.in_flight and not task.started and now < task.deadline]
    try:
        release_many(left)
    except Exception as error:  # noqa: BLE001 – the leases expire, whatever the driver raised
        log.warning("%d tasks were not released: %s; their leases expire", len(left), one_line(error))


class PolledSource(Protocol[Row_co]):
    """The source of a poller's rows. A `TaskSource` makes tasks of its rows, a `FetchSource` does not."""

    @property
    def store(self) -> LeaseStore:
        """The store of the rows."""

    def poll_multi(
        self, limit: int, types: Collection[str] | None, ahead: bool, accepts: Accepts | None
    ) -> Sequence[Row_co]:
        """Acquire due rows; see `TaskSource.poll_multi`."""

    def maintain(self, idle: bool) -> bool:
        """See `TaskSource.maintain`."""


class RowPoller(Generic[Row_co]):
    """Polls one source for due rows. An error of the database does not end the poller.

    If no row is due, the poller queries the next due time and pauses until then. After a pause it queries again before
    it acquires. If it expects a row, it acquires without a query.
    """

    batch_was_full = False
    """Whether the last poll acquired its limit of rows, so that more may be due."""
    trouble: str | None = None
    """The error of the last poll, or None. Any thread may read it."""

    def __init__(
        self, name: str, source: PolledSource[Row_co], prefetch: BatchSizer, timer: PollTimer, types: TypesWithRows
    ) -> None:
        self.name = name
        self._polled = source
        self.prefetch = prefetch
        self._types = types
        self._clock = timer.clock
        self._timer = timer
        self._listener = WakeupListener(self._types.open_wakeup, self._log_listener_failure, timer.clock)
        self._busy_since = math.inf
        self._failures = 0
        self._failed_at = self._reminded = 0.0
        self._message: str | None = None

    def report_trouble(self, error: Exception) -> None:
        """Set `trouble` to the text of `error`, until a poll gets an answer."""
        store = self._polled.store
        refused = "the database refuses this user" if store.is_refused(error) else "polling fails"
        what = "the database does not answer" if store.is_unavailable(error) else refused
        self.trouble = f"{self.name}: {what}: {one_line(error)}"

    def pause(self) -> float:
        return self._timer.pause()

    @property
    def descriptors(self) -> Sequence[int]:
        descriptor = self._listener.descriptor
        return () if descriptor is None else (descriptor,)

    def expect(self) -> None:
        """Poll immediately, because rows are due or soon will be."""
        self._timer.poll_now()

    def check_soon(self) -> None:
        """Query the next due time soon, because a settled run may have made a row due."""
        self._timer.check_within(SHORTEST_PAUSE)

    def wake(self) -> None:
        if self._listener.poll():
            self._timer.wake()

    def rest(self) -> None:
        """Called before a pause.

        If the listener is idle, let a poll follow immediately, because a poll starts the listener. If a wake-up ended
        the listening, listen again.
        """
        if self._failures:
            return
        if self._listener.can_listen:
            self._timer.check_now()
        elif self._listener.was_notified:
            self._listener.listen(self._timer.longest * _LISTENING)

    def ignore_wakeups(self) -> None:
        self._timer.check_within(0.0)
        if self._listener.stop():
            self._timer.ignore_wakeups()

    def close(self) -> None:
        """Stop listening for good."""
        self._listener.close()

    def poll(self, may_rest: bool = True) -> Sequence[Row_co]:
        """Acquire due rows. Return no rows if the next poll is not due yet, or if the database does not answer.

        If no row is expected, query the next due time before the acquire.

        `may_rest`: whether the caller may pause. If True and no row is due, start to listen for wake-ups, and query the
        next due time after that. So no row is missed. Must be False while runs wait to be settled.
        """
        if self._timer.pause() > 0:
            return ()
        try:
            if self._timer.working:
                self._maintain(is_idle=False)
            rows: Sequence[Row_co] = () if self._timer.checks_first else self._acquire()
            if not rows and may_rest:
                # Query before the listener connects, so that a due row does not wait for that, and again afterwards.
                is_due = self._listener.is_to_connect and self._types.next_due() == 0
                if is_due or self._rest_until_due() == 0:
                    rows = self._acquire()
                    if not rows:
                        self._rest_until_due()
        except Exception as error:  # noqa: BLE001 – no fault of a database ends the polling
            self._failed(error)
            return ()
        if self._failures:
            self._recovered()
        self.trouble = None
        return rows

    def _acquire(self) -> Sequence[Row_co]:
        limit = self.prefetch.limit()
        types, accepts = self._types.to_acquire()
        begun = self._clock()
        rows = self._polled.poll_multi(limit, types, ahead=True, accepts=accepts)
        seconds = self._clock() - begun
        emit("poll", section=self.name, seconds=seconds, tasks=rows, error=None)
        self.batch_was_full = len(rows) >= limit
        if rows:
            self.prefetch.observe_poll(seconds)
            if self.batch_was_full:
                self._timer.worked()
            else:
                self._timer.took_all(seconds)
        return rows

    def _rest_until_due(self) -> float | None:
        """Query the next due time and pause until then. Return the seconds until then, or None if no row is waiting."""
        self._listener.listen(self._timer.longest * _LISTENING)
        asked = self._clock()
        wait = self._types.next_due()
        seconds = self._clock() - asked
        emit("poll", section=self.name, seconds=seconds, tasks=(), error=None)
        self._timer.rest(wait, self._listener.is_reliable, seconds)
        self._maintain(is_idle=wait is None or wait > _BURST)
        return wait

    def _maintain(self, is_idle: bool) -> None:
        """Run maintenance from time to time, even in a child that is never idle for long."""
        now = self._clock()
        self._busy_since = math.inf if is_idle else min(self._busy_since, now)
        if is_idle or now > self._busy_since + _BURST:
            more = self._polled.maintain(idle=is_idle)
            if more and is_idle:
                self._timer.check_within(_MAINTENANCE_PAUSE)

    def _failed(self, error: Exception) -> None:
        """Log each kind of failure once. Poll less often after each failure."""
        self._failures += 1
        self._failed_at = self._clock()
        emit("poll", section=self.name, seconds=None, tasks=(), error=error)
        message = one_line(error)
        if self._polled.store.is_refused(error):
            self._refused(message)
        else:
            self._timer.back_off(min(2 ** (self._failures - 1), _LONGEST_PAUSE))
            if not self._polled.store.is_unavailable(error):
                if message != self._message:
                    fault = None if is_driver_error(error) or isinstance(error, ConfigError) else error
                    log.error("section=%s polling fails: %s; retrying", self.name, message, exc_info=fault)
            elif self._message is None:
                log.warning("section=%s the database does not answer: %s; retrying", self.name, message)
        self._message = message
        self.report_trouble(error)

    def _refused(self, message: str) -> None:
        """Wait longer after each refused login, because databases lock an account after several refused logins."""
        pause = min(2.0 ** min(self._failures - 1, 10), _LONGEST_REFUSED_PAUSE)
        self._timer.back_off_for(pause)
        if message != self._message or self._failed_at >= self._reminded + _REMINDER:
            self._reminded = self._failed_at
            text = "section=%s the database refuses this user: %s; next attempt in %.0f s"
            log.error(text, self.name, message, pause)

    def _recovered(self) -> None:
        log.warning("section=%s the database answers again after %d failed polls", self.name, self._failures)
        self._failures = 0
        self._message = self.trouble = None

    def _log_listener_failure(self, error: Exception) -> None:
        """Log the failure of the listener.

        Use INFO if the database does not answer, because the polls log that, too.
        """
        level = logging.INFO if self._polled.store.is_unavailable(error) else logging.WARNING
        text = "section=%s the database cannot notify workers of due rows: %s; polling every poll_interval instead"
        log.log(level, text, self.name, one_line(error))


class SectionPoller(RowPoller[Task], Poller):
    """Polls one source for one application."""

    def __init__(
        self,
        name: str,
        source: TaskSource,
        application: Application,
        prefetch: BatchSizer,
        timer: PollTimer,
        task_timeout: float | None,
        margin: float,
        types: TypesWithRows | None = None,
    ) -> None:
        """`types`: the types to acquire (default: any)."""
        Poller.__init__(self, name, source, application, prefetch, task_timeout, margin)
        types = TypesWithRows(source, TypeFilter()) if types is None else types
        RowPoller.__init__(self, name, source, prefetch, timer, types)
