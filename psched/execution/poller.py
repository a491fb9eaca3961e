"""Polls one section of the configuration for due rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence

from psched.application import Application
from psched.errors import ConfigError
from psched.execution.batch_size import BatchSizer
from psched.execution.poll_timer import PollTimer
from psched.execution.settlement import SettlementBuffer
from psched.execution.wakeup_listener import WakeupListener
from psched.process.logs import is_refusal, one_line
from psched.process.poll_election import SoleMember
from psched.source.claimable_types import ClaimableTypes
from psched.source.source import Source
from psched.store.type_filter import TypeFilter
from psched.task import Task
from psched.telemetry import emit

log = logging.getLogger(__name__)

_LONGEST_PAUSE = 5.0
"""Poll intervals between two polls of a database that does not answer, at the most."""

_LONGEST_REFUSED_PAUSE = 60.0
"""Seconds between two polls of a database that refuses the login, at the most."""
_REMINDER = 600.0
"""Seconds after which a refused login is logged again."""

_RECOVERY = 10.0
"""Seconds without a failure after which an idle poller assumes that the database answers its sibling."""

_LISTENING = 6
"""The listener is armed for so many of the longest pauses, anew at each poll."""

_BURST = 1.0
"""Seconds for which maintenance is postponed while rows are found, or due within as many seconds."""

_MAINTENANCE_PAUSE = 0.05
"""Seconds between two rounds of maintenance in an idle child while more old rows are left: as long as a round."""

_SOON = 10.0
"""A sibling is woken so many seconds before a row is due, to be ready."""


class SectionPoller:
    """Polls one source for one application. No error of the database ends it.

    Every handler thread has a poller of its own over the shared source. When no row is due it queries the next due time
    and pauses until then; each poll is then that query first, and one elected child sends it for all siblings.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        application: Application,
        prefetch: BatchSizer,
        timer: PollTimer,
        task_timeout: float | None,
        margin: float,
        member: SoleMember | None = None,
        types: ClaimableTypes | None = None,
    ) -> None:
        """`margin`: a run is stopped so many seconds before its lease ends.

        `member`: of the election that the siblings share, if there are any. `types`: which rows are acquired (default:
        rows of any type).
        """
        self.name = name
        self.source = source
        self.application = application
        self.prefetch = prefetch
        self.task_timeout = task_timeout
        self.margin = margin
        self.member = SoleMember() if member is None else member
        self.settlement = SettlementBuffer(name, source)
        self._types = ClaimableTypes(source, TypeFilter()) if types is None else types
        self._clock = timer.clock
        self._timer = timer
        self._surplus = 0
        self._listener = WakeupListener(self._types.open_wakeup, self._log_listener_failure, timer.clock)
        self._full = False
        self._busy_since = math.inf
        self._failures = 0
        self._failed_at = self._reminded = 0.0
        self._is_standby = self._queried = False
        self._may_be_due = False
        self._message: str | None = None
        self.trouble: str | None = None
        """Why the last poll failed; None when it was answered. Any thread may read it."""

    def could_not_begin(self, error: Exception) -> None:
        """Report `error` as trouble until the first poll is answered."""
        self.trouble = self._trouble_of(error)

    def pause(self) -> float:
        """Return the seconds until `poll` is due; 0 when it is."""
        return min(self._timer.pause(), self.member.pause())

    @property
    def descriptors(self) -> Sequence[int]:
        """Descriptors of the store's listener and of the siblings' calls; when one is readable, reason `wake`."""
        return [each for each in (self._listener.descriptor, self.member.descriptor) if each is not None]

    def join_election(self) -> None:
        """Become the polling child, if there is none; `poll` is called soon."""
        if not self._leaves_polling():
            self.member.lead()

    def expect(self) -> None:
        """Poll at once: rows are due, or will be soon."""
        self._may_be_due = True
        self._timer.now()

    def wake(self) -> None:
        """Read the wake-ups of the store and of siblings; after one the next poll is due."""
        if self._listener.poll():
            self._timer.wake()
        reason = self.member.wake_reason()
        if reason is not None and reason.work:
            self._timer.wake()
        elif reason is not None:
            self._timer.check_now()

    def rest(self) -> None:
        """Prepare a pause: poll again first if the listener is idle, since a poll starts it."""
        if self._failures or (self._is_standby and self.member.taken):
            return
        if self._listener.can_listen or not self.member.taken:
            self._timer.check_now()

    def ignore_wakeups(self) -> None:
        """Ignore wake-ups while tasks run in this thread, so that siblings get them."""
        if self._listener.stop():
            self._timer.ignore_wakeups()
        self.member.leave(self._surplus)
        self._surplus = 0

    def close(self) -> None:
        """Stop listening for good. The source stays open."""
        self.member.leave()
        self._listener.close()

    def poll(self) -> Sequence[Task]:
        """Acquire due rows; none when it is not yet time or the database does not answer."""
        if self._timer.pause() > 0:
            self.member.extend()
            return ()
        if not self._timer.expects_work and self._leaves_polling():
            return ()
        self._queried = False
        try:
            tasks = self._acquire()
        except Exception as error:  # noqa: BLE001 – no fault of a database ends the polling
            self._failed(error)
            return ()
        if self._queried:  # an idle child whose sibling polls has queried nothing
            self._answered()
        return tasks

    def take_more(self) -> Sequence[Task]:
        """Acquire the next batch if the last one was full; else return none."""
        if not self._full:
            return ()
        try:
            return self._take()
        except Exception as error:  # noqa: BLE001 – as in `poll`
            self._failed(error)
            return ()

    def _acquire(self) -> Sequence[Task]:
        """Acquire due rows; query the next due time first unless rows are expected.

        A row that becomes due between the two statements is not missed: the query finds it, and it is acquired then.
        """
        if self._timer.working:
            self._maintain(is_idle=False)
        tasks: Sequence[Task] = () if self._timer.checks_first else self._take()
        if not tasks and not self._leaves_polling() and self._is_due_now():
            tasks = self._take()
            if not tasks:
                self._rest_until_due()
        return tasks

    def _take(self) -> Sequence[Task]:
        limit = self.prefetch.limit()
        begun = self._clock()
        tasks = self._types.acquire(limit)
        seconds = self._clock() - begun
        emit("poll", section=self.name, seconds=seconds, tasks=tasks, error=None)
        self._queried = True
        self._full = len(tasks) >= limit
        if tasks:
            self.prefetch.observe_poll(seconds)
            self._timer.worked()
            self.member.found_rows()
            self._is_standby = False
            self._may_be_due = True
            self._surplus = len(tasks) if self._full else 0
        return tasks

    def _leaves_polling(self) -> bool:
        """Pause while a sibling polls, if one does; wake it if rows may have become due since its last poll."""
        seconds = self.member.defer(self._may_be_due)
        self._is_standby = seconds is not None
        if seconds is None:
            return False
        self._may_be_due = False
        self._listener.stop()
        self._timer.defer(seconds)
        if self._failures and self._clock() > self._failed_at + _RECOVERY:
            self._recovered("another worker of this host polls")
        if not self._failures:
            self.trouble = None
        return True

    def _is_due_now(self) -> bool:
        """Query whether a row is due, and pause until one is.

        A due row does not wait for the connection of the listener: the query is sent before and after connecting.
        """
        self.member.lead()
        if self._listener.is_to_connect and self._types.next_due() == 0:
            return True
        return self._rest_until_due() == 0

    def _rest_until_due(self) -> float | None:
        """Query the next due time, pause until then, and return the seconds; None without a waiting row."""
        self._listener.listen(self._timer.longest * _LISTENING)
        asked = self._clock()
        wait = self._types.next_due()
        seconds = self._clock() - asked
        emit("poll", section=self.name, seconds=seconds, tasks=(), error=None)
        self._queried = True
        self._timer.rest(wait, self._listener.is_reliable, seconds)
        self._may_be_due = False
        if wait is not None and wait < _SOON:
            self.member.wake_sibling()
        self._maintain(is_idle=wait is None or wait > _BURST)
        return wait

    def _maintain(self, is_idle: bool) -> None:
        """Run maintenance now and then, also in a child that is never idle for long."""
        now = self._clock()
        self._busy_since = math.inf if is_idle else min(self._busy_since, now)
        if is_idle or now > self._busy_since + _BURST:
            more = self.source.maintain(idle=is_idle)
            if more and is_idle:
                self._timer.check_within(_MAINTENANCE_PAUSE)

    def _failed(self, error: Exception) -> None:
        """Log a poll that fails once for as long as it fails the same way, and poll less and less often."""
        self._failures += 1
        self._failed_at = self._clock()
        emit("poll", section=self.name, seconds=None, tasks=(), error=error)
        if self.source.store.is_refused(error):
            self._refused(error)
            return
        self.member.leave()
        self._timer.back_off(min(2 ** (self._failures - 1), _LONGEST_PAUSE))
        message = one_line(error)
        if self._message is None or not self.source.store.is_unavailable(error):
            self._log_failure(error, message)
        self._message = message
        self.trouble = self._trouble_of(error)

    def _refused(self, error: Exception) -> None:
        """Wait, longer after each attempt, until the database accepts the login again.

        No sibling takes over: it would be refused too, and databases lock accounts after some failed logins.
        """
        self.member.lead()
        pause = min(2.0 ** min(self._failures - 1, 10), _LONGEST_REFUSED_PAUSE)
        self._timer.back_off_for(pause)
        message = one_line(error)
        if message != self._message or self._failed_at >= self._reminded + _REMINDER:
            self._reminded = self._failed_at
            text = "section=%s the database refuses this user: %s; next attempt in %.0f s"
            log.error(text, self.name, message, pause)
        self._message = message
        self.trouble = self._trouble_of(error)

    def _trouble_of(self, error: Exception) -> str:
        store = self.source.store
        refused = "the database refuses this user" if store.is_refused(error) else "polling fails"
        what = "the database does not answer" if store.is_unavailable(error) else refused
        return f"{self.name}: {what}: {one_line(error)}"

    def _log_failure(self, error: Exception, message: str) -> None:
        if self.source.store.is_unavailable(error):
            log.warning("section=%s the database does not answer: %s; trying again until it does", self.name, message)
        elif message != self._message:
            fault = None if is_refusal(error) or isinstance(error, ConfigError) else error
            log.error("section=%s polling fails: %s; trying again", self.name, message, exc_info=fault)

    def _answered(self) -> None:
        if self._failures:
            self._recovered("the database answers")
        self.trouble = None

    def _recovered(self, how: str) -> None:
        log.warning("section=%s %s again after %d failed polls", self.name, how, self._failures)
        self._failures = 0
        self._message = self.trouble = None

    def _log_listener_failure(self, error: Exception) -> None:
        """Log that the listener failed; at INFO if the database does not answer, since the polls log that too."""
        level = logging.INFO if self.source.store.is_unavailable(error) else logging.WARNING
        text = "section=%s the database cannot notify workers of due rows: %s; polling every poll_interval instead"
        log.log(level, text, self.name, one_line(error))
