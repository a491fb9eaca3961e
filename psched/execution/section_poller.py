"""Polls one section of the configuration for due rows. Handles timing, wake-ups and failures."""

from __future__ import annotations

import logging
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Generic, Protocol, TypeVar

from psched.acquisition.claimable_types import ClaimableTypes
from psched.acquisition.task_source import Source
from psched.application import Application
from psched.backends import is_driver_error
from psched.clock import Clock, monotonic
from psched.error_messages import one_line
from psched.errors import ConfigError
from psched.execution.batch_size import BatchSizer
from psched.execution.fetcher_settlement import GroupSettlement
from psched.execution.settlement_buffer import SettlementBuffer
from psched.store import Accepts, LeaseStore, Wakeup
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
"""After each poll the listener listens for this many times the longest pause."""

_BURST = 1.0
"""The maximum number of seconds for which maintenance is postponed while polls find rows, or rows are due within this
time."""

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
        source: Source,
        application: Application,
        prefetch: BatchSizer,
        task_timeout: float | None,
        margin: float,
        group: GroupSettlement | None = None,
    ) -> None:
        """`margin`: how many seconds before the end of its lease a run is stopped.

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
        """Return tasks that have arrived behind a slow run to where they came from. Callable from any thread.

        Return whether the next call must follow after `check_interval`.
        """
        return False

    @property
    def check_interval(self) -> float:
        """Seconds between two checks of the tasks that wait behind a run."""
        return _CHECK

    def settle_before(self, now: float, type: str) -> None:
        """Settle the collected runs if they would otherwise wait too long for the end of the next run.

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
    """The source of a poller's rows: a `Source`, which makes tasks of the rows, or a `FetchSource`, which does not."""

    @property
    def store(self) -> LeaseStore:
        """The store of the rows."""

    def poll_multi(
        self, limit: int, types: Collection[str] | None, ahead: bool, accepts: Accepts | None
    ) -> Sequence[Row_co]:
        """Acquire due rows; see `Source.poll_multi`."""

    def maintain(self, idle: bool) -> bool:
        """See `Source.maintain`."""


class RowPoller(Generic[Row_co]):
    """Polls one source for due rows. An error of the database does not end the poller.

    If no row is due, the poller queries the next due time and pauses until then. After a pause it queries again before
    it acquires, unless it expects a row.
    """

    batch_was_full = False
    """Whether the last poll acquired its limit of rows, so that more may be due."""
    trouble: str | None = None
    """The error of the last poll, or None. Any thread may read it."""

    def __init__(
        self, name: str, source: PolledSource[Row_co], prefetch: BatchSizer, timer: PollTimer, types: ClaimableTypes
    ) -> None:
        """`types`: the types to acquire."""
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
        self._timer.check_within(_SHORTEST)

    def wake(self) -> None:
        if self._listener.poll():
            self._timer.wake()

    def rest(self) -> None:
        """Called before a pause.

        If the listener is idle, make a poll due immediately, because a poll starts the listener. If a wake-up ended the
        listening, listen again.
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

        Unless rows are expected, the next due time is queried first. `may_rest`: if no row is due, query the next due
        time and start to listen for wake-ups; the query also finds a row that became due in the meantime. The caller
        passes False while runs wait to be settled.
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
        """Wait longer after each refused login, because databases lock accounts after several of them."""
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
        """Log the failure of the listener. Use INFO if the database does not answer, as the polls log that, too."""
        level = logging.INFO if self._polled.store.is_unavailable(error) else logging.WARNING
        text = "section=%s the database cannot notify workers of due rows: %s; polling every poll_interval instead"
        log.log(level, text, self.name, one_line(error))


class SectionPoller(RowPoller[Task], Poller):
    """Polls one source for one application."""

    def __init__(
        self,
        name: str,
        source: Source,
        application: Application,
        prefetch: BatchSizer,
        timer: PollTimer,
        task_timeout: float | None,
        margin: float,
        types: ClaimableTypes | None = None,
    ) -> None:
        """`types`: the types to acquire (default: any)."""
        Poller.__init__(self, name, source, application, prefetch, task_timeout, margin)
        types = ClaimableTypes(source, TypeFilter()) if types is None else types
        RowPoller.__init__(self, name, source, prefetch, timer, types)


CALLED = 10.0
"""Seconds between two polls of a poller that gets wake-ups for due rows. Only after a lost wake-up does a row wait so
long."""
_FIRST_DELAY = 0.0005
_LONGEST_DELAY = 0.008
"""Seconds. After a wake-up whose poll found no row, a poller delays its next poll by a random time of up to twice
`_FIRST_DELAY`. Each further such wake-up doubles this limit, up to `_LONGEST_DELAY`. So the pollers do not all acquire
at the same time.
"""

_SAME = 0.01
"""Seconds. Two due times with a smaller difference are taken for the same row."""

_SHORTEST = 0.02
"""The shortest time between two polls that find no row, in seconds: at most fifty such polls a second."""
_RECENT = 0.05
"""The poll interval, as a share of the time since rows were last found. A smaller share would hardly shorten the wait
for the next row."""
_WOKEN = 0.1
"""Seconds after a wake-up in which a poller polls often, because on SQLite the wake-up comes before the commit has
ended.
"""
_COST = 25
"""The poll interval is at least this many times the duration of a poll, so that polls take at most 4 % of the time."""

Chance = Callable[[float, float], float]


class PollTimer:
    """Decides when a poller polls next. All times are seconds.

    A pause ends after the interval, at the next due time, or by a wake-up. If several pollers wake for one row, the
    poller that acquired the last row polls first. The others wait briefly, and query before they acquire.
    """

    def __init__(self, interval: float, clock: Clock = monotonic, chance: Chance = random.uniform) -> None:
        """`interval`: seconds between two polls while no wake-up comes (`poll_interval`).

        `chance(low, high)`: returns a random number between the two.
        """
        self._interval = interval
        self.clock = clock
        self._chance = chance
        self._polled_at = self._next = clock()
        self._found_at = self._woken_at = -math.inf
        self._in_vain = 0
        self._earliest = -math.inf
        self._expects_row = False
        self._due = math.inf
        self.working = False
        """Whether the last poll found rows."""
        self.checks_first = False
        """Whether to query the next due time before the next acquire, because no row is expected."""

    @property
    def longest(self) -> float:
        """The longest pause, before the random variation."""
        return max(self._interval, CALLED)

    def pause(self) -> float:
        return max(0.0, self._next - self.clock())

    def worked(self) -> None:
        """Poll again immediately, because the last poll acquired as many rows as it could."""
        self._in_vain = 0
        self.poll_now()

    def took_all(self, took: float) -> None:
        """Poll again soon or after a wake-up, because all due rows were acquired.

        `took`: the duration of the poll.
        """
        self.poll_now()
        self._in_vain = 0
        self._polled_at = self._found_at
        self._next = self._found_at + max(_SHORTEST, _COST * took / 10)
        self._earliest = self._found_at + min(took, 0.002)

    def poll_now(self) -> None:
        self._next = self._found_at = self.clock()
        self._expects_row = self.checks_first = False
        self.working = True

    def rest(self, wait: float | None, called: bool, took: float = 0.0) -> None:
        """Pause after a poll that acquired nothing.

        - `wait`: seconds until a row is due. None: no row is waiting. 0: a row is due that other workers may acquire.
        - `called`: whether a wake-up is sure to come if a row becomes due in the meantime.
        - `took`: the duration of the query. The next poll starts that much earlier, as it also takes that long to
          reach the database.

        This counts as a false wake-up if a row was expected and the wake-up was not for a new row that is due later.
        """
        self._polled_at = self.clock() - took
        rest = self._jittered(self.longest if called and wait != 0 else self._polled_interval(took))
        due = self._polled_at + wait if wait and wait < rest else math.inf
        woken_for_later = self._polled_at < self._due and due < self._due - _SAME
        self._in_vain += self._expects_row and not woken_for_later
        self._due = due
        self.working = False
        until_due = rest if not wait else wait + self._delay()
        self._expects_row = until_due < rest
        self.checks_first = not self._expects_row or self._in_vain > 0
        self._next = self._polled_at + min(rest, until_due)

    def back_off(self, intervals: float) -> None:
        self.back_off_for(self._jittered(self._interval * intervals))

    def back_off_for(self, seconds: float) -> None:
        """Poll again after `seconds`. Called after a failed poll."""
        self._polled_at = self.clock()
        self._expects_row, self.checks_first = False, True
        self._next = self._polled_at + seconds

    def wake(self) -> None:
        """Poll immediately or after `_delay`, because a row became due."""
        self._expects_row = True
        self.checks_first = self._in_vain > 0
        self._woken_at = self.clock()
        self._next = max(min(self._next, self._woken_at + self._delay()), self._earliest)

    def ignore_wakeups(self) -> None:
        """Poll once per interval from now on, because wake-ups no longer come."""
        self._next = min(self._next, self._polled_at + self._jittered(self._interval))

    def _polled_interval(self, took: float) -> float:
        """Return the poll interval for a table without wake-ups: short while rows are found, then growing."""
        now = self.clock()
        since = 0.0 if now < self._woken_at + _WOKEN else now - self._found_at
        return min(self._interval, max(_SHORTEST, _COST * took, _RECENT * since))

    def check_within(self, seconds: float) -> None:
        self._next = min(self._next, self.clock() + seconds)

    def check_now(self) -> None:
        """Query the next due time immediately, because a wake-up may have been lost."""
        self._next = self.clock()
        self._expects_row, self.checks_first = False, True

    def _delay(self) -> float:
        """Return the seconds from a wake-up to the poll: 0, or a random time that grows with each false wake-up."""
        if not self._in_vain:
            return 0.0
        return self._chance(0.0, min(_FIRST_DELAY * 2 ** min(self._in_vain, 10), _LONGEST_DELAY))

    def _jittered(self, seconds: float) -> float:
        """Return about `seconds`, with a random variation, so that the children do not all poll at the same time."""
        return seconds * self._chance(0.9, 1.1)


_PATIENCE = 30.0
"""Seconds until a failed connection is tried again. A connection that has been reliable is tried again immediately."""


class WakeupListener:
    """Listens for wake-ups from `listen` until `stop`.

    If the store sends no wake-ups, or if listening fails, the listener reports no wake-ups.
    """

    def __init__(
        self,
        open_wakeup: Callable[[], Wakeup | None],
        log_failure: Callable[[Exception], None],
        clock: Clock = monotonic,
    ) -> None:
        """Does not connect yet. `log_failure`: called with the first of several errors in a row."""
        self._open_wakeup = open_wakeup
        self._log_failure = log_failure
        self._clock = clock
        self._wakeup: Wakeup | None = None
        self._opened = False
        self._listening = self._connected = False
        self.was_notified = False
        """Whether a wake-up came since the last `listen`. The wake-up may have ended the listening."""
        self._retry_at = clock()
        self._logged = False

    @property
    def is_reliable(self) -> bool:
        """Whether the listener listens, and wake-ups are known to arrive."""
        return self._listening and self._wakeup is not None and self._wakeup.proven

    @property
    def can_listen(self) -> bool:
        return not self._listening and self._clock() >= self._retry_at and not (self._opened and self._wakeup is None)

    @property
    def is_to_connect(self) -> bool:
        return self.can_listen and not self._connected

    @property
    def descriptor(self) -> int | None:
        """A descriptor that is readable when a wake-up may have come; None while not listening."""
        return self._wakeup.fileno() if self._listening and self._wakeup is not None else None

    def listen(self, seconds: float) -> None:
        """Listen from now on, for at least `seconds`. Earlier wake-ups may be lost."""
        if self._clock() < self._retry_at:
            return
        try:
            if not self._opened:
                self._wakeup = self._open_wakeup()
                self._opened = True
            if self._wakeup is None:
                return
            self._wakeup.listen(seconds)
        except Exception as error:  # noqa: BLE001 – a driver may raise anything; without wake-ups, polling continues
            self._failed(error)
        else:
            self._listening = self._connected = True
            self.was_notified = self._logged = False

    def poll(self) -> bool:
        """Return whether a wake-up came.

        A lost connection counts as a wake-up, because wake-ups may be lost with it.
        """
        if not self._listening or self._wakeup is None:
            return False
        was_called = self.is_reliable
        try:
            is_notified = self._wakeup.is_notified()
        except Exception as error:  # noqa: BLE001 – as in `listen`
            self._failed(error, patience=0.0 if was_called else _PATIENCE)
            return True
        self.was_notified = self.was_notified or is_notified
        return is_notified

    def stop(self) -> bool:
        """Stop listening, so that siblings get the wake-ups. Return whether the listener was active."""
        listened = self._listening
        if listened and self._wakeup is not None:
            self._wakeup.stop_listening()
        self._listening = False
        return listened

    def close(self) -> None:
        self._listening = False
        if self._wakeup is not None:
            self._wakeup.close()

    def _failed(self, error: Exception, patience: float = _PATIENCE) -> None:
        self._listening = self._connected = False
        self._retry_at = self._clock() + patience
        if patience and not self._logged:
            self._log_failure(error)
            self._logged = True
