"""A lane: one section of the configuration at work, from its table to what handles its rows. In children."""

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
"""How many poll intervals at the most lie between two polls of a database that does not answer."""

_LONGEST_REFUSED = 60.0
"""Seconds between two polls of a database that refuses our user."""
_REMINDER = 600.0
"""Seconds after which the log says again that it does."""

_RECOVERY = 10.0
"""Seconds without a failure after which one who stands by takes it that the database answers his sibling."""

_LISTENING = 6
"""For how many of the longest rests a bell is armed; it is armed anew at each look."""

_BURST = 1.0
"""Seconds for which old rows can wait, while something is found or due within as many: who is busy has no time."""

_BETWEEN_TIDYING = 0.05
"""Seconds between two moments of removing old rows while nothing is run and there are more: as long as one lasts."""

_SOON = 10.0
"""Seconds before something is due in which a sibling is to be ready for it."""


class SectionPoller:
    """Polls one source for the handlers of one application, and survives whatever the database does.

    Every handler thread has its own lane over the shared source, since each polls at its own pace. Having found
    nothing it asks when something will be due, and comes back then; until then a poll is that question alone, which
    one child asks for all.
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
        """`margin`: how many seconds before its lease ends a run is told to stop.

        `seat`: its place among the siblings that share a watch, if there are any. `types`: what is claimed (default:
        rows of any type).
        """
        self.name = name
        self.source = source
        self.application = application
        self.prefetch = prefetch
        self.task_timeout = task_timeout
        self.margin = margin
        self.member = SoleMember() if member is None else member
        self.finished = SettlementBuffer(name, source)
        self._types = ClaimableTypes(source, TypeFilter()) if types is None else types
        self._clock = timer.clock
        self._vigil = timer
        self._more = 0
        self._ear = WakeupListener(self._types.open_wakeup, self._unheard, timer.clock)
        self._full = False
        self._busy_since = math.inf
        self._failures = 0
        self._failed_at = self._reminded = 0.0
        self._standing_by = self._asked = False
        self._news = False
        self._complaint: str | None = None
        self.trouble: str | None = None
        """Why the last poll failed; None when it was answered. Any thread may look."""

    def could_not_begin(self, error: Exception) -> None:
        """Note what keeps it from working until the first poll is answered."""
        self.trouble = self._told(error)

    def pause(self) -> float:
        """Return the seconds until `poll` has something to do; 0 when it is time."""
        return min(self._vigil.pause(), self.member.pause())

    @property
    def descriptors(self) -> Sequence[int]:
        """What is readable when there may be something new, for `hear`: of the store's, and of a sibling's call."""
        return [each for each in (self._ear.descriptor, self.member.descriptor) if each is not None]

    def keep_watch(self) -> None:
        """Answer for the watch, if no sibling does; `poll` is called soon."""
        if not self._stands_by():
            self.member.keep()

    def expect(self) -> None:
        """Poll at once: there is something, or will be soon."""
        self._news = True
        self._vigil.hope()

    def hear(self) -> None:
        """Find out whether somebody says that there is something, or is to be looked for; the next poll is then due."""
        if self._ear.hears():
            self._vigil.ring()
        call = self.member.heard()
        if call is not None and call.work:
            self._vigil.ring()
        elif call is not None:
            self._vigil.look_now()

    def settle(self) -> None:
        """Get ready to rest: if nobody is listened to who could be, poll again, since that begins to listen."""
        if self._failures or (self._standing_by and self.member.taken):
            return
        if self._ear.can_listen or not self.member.taken:
            self._vigil.look_now()

    def turn_away(self) -> None:
        """Listen to nobody while there is something to run here or in another lane; others are to hear it."""
        if self._ear.cover():
            self._vigil.ignore_wakeups()
        self.member.leave(self._more)
        self._more = 0

    def close(self) -> None:
        """Listen to nobody any more, for good. The source stays open."""
        self.member.leave()
        self._ear.close()

    def poll(self) -> Sequence[Task]:
        """Take what is due, nothing when it is not yet time or the database does not answer."""
        if self._vigil.pause() > 0:
            self.member.renew()
            return ()
        if not self._vigil.expects and self._stands_by():
            return ()
        self._asked = False
        try:
            tasks = self._look()
        except Exception as error:  # noqa: BLE001 – no fault of a database ends the polling
            self._failed(error)
            return ()
        if self._asked:  # who stands by has asked nobody
            self._answered()
        return tasks

    def take_more(self) -> Sequence[Task]:
        """Take what is due behind a batch that was as large as was asked for; nothing behind a smaller one."""
        if not self._full:
            return ()
        try:
            return self._take()
        except Exception as error:  # noqa: BLE001 – as in `poll`
            self._failed(error)
            return ()

    def _look(self) -> Sequence[Task]:
        """Take what is due; unless something says that there is, ask first.

        What became due between the two is not missed: what is asked for and still not to be had is for others.
        """
        if self._vigil.working:
            self._tidy(is_calm=False)
        tasks: Sequence[Task] = () if self._vigil.looks_first else self._take()
        if not tasks and not self._stands_by() and self._is_due_now():
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
        self._asked = True
        self._full = len(tasks) >= limit
        if tasks:
            self.prefetch.took(seconds)
            self._vigil.worked()
            self.member.answer()
            self._standing_by = False
            self._news = True
            self._more = len(tasks) if self._full else 0
        return tasks

    def _stands_by(self) -> bool:
        """Rest while a sibling keeps watch, if one does; he is to hear when there may be something due anew."""
        seconds = self.member.stand_by(self._news)
        self._standing_by = seconds is not None
        if seconds is None:
            return False
        self._news = False
        self._ear.cover()
        self._vigil.stand_by(seconds)
        if self._failures and self._clock() > self._failed_at + _RECOVERY:
            self._recovered("another worker of this host polls")
        if not self._failures:
            self.trouble = None
        return True

    def _is_due_now(self) -> bool:
        """Ask whether something is due, and rest until then when it is not yet.

        What is due does not wait for a bell's connection: with that to be made, it is asked before and after.
        """
        self.member.keep()
        if self._ear.is_to_connect and self._types.next_due() == 0:
            return True
        return self._rest_until_due() == 0

    def _rest_until_due(self) -> float | None:
        """Ask when something is due, rest until then, and return the seconds; None when nothing is."""
        self._ear.listen(self._vigil.longest * _LISTENING)
        asked = self._clock()
        wait = self._types.next_due()
        seconds = self._clock() - asked
        emit("poll", section=self.name, seconds=seconds, tasks=(), error=None)
        self._asked = True
        self._vigil.rest(wait, self._ear.called, seconds)
        self._news = False
        if wait is not None and wait < _SOON:
            self.member.alert()
        self._tidy(is_calm=wait is None or wait > _BURST)
        return wait

    def _tidy(self, is_calm: bool) -> None:
        """Tidy up now and then: what is always a little busy does so amid its work."""
        now = self._clock()
        self._busy_since = math.inf if is_calm else min(self._busy_since, now)
        if is_calm or now > self._busy_since + _BURST:
            more = self.source.maintain(idle=is_calm)
            if more and is_calm:
                self._vigil.look_within(_BETWEEN_TIDYING)

    def _failed(self, error: Exception) -> None:
        """Log a failing poll once for as long as it fails the same way, and come back less and less often."""
        self._failures += 1
        self._failed_at = self._clock()
        emit("poll", section=self.name, seconds=None, tasks=(), error=error)
        if self.source.store.is_refused(error):
            self._refused(error)
            return
        self.member.leave()
        self._vigil.fail(min(2 ** (self._failures - 1), _LONGEST_PAUSE))
        complaint = one_line(error)
        if self._complaint is None or not self.source.store.is_unavailable(error):
            self._complain(error, complaint)
        self._complaint = complaint
        self.trouble = self._told(error)

    def _refused(self, error: Exception) -> None:
        """Wait, longer after each attempt, until the database accepts our user again.

        The watch is kept: siblings would be refused, too, and databases lock accounts after some logins that failed.
        """
        self.member.keep()
        pause = min(2.0 ** min(self._failures - 1, 10), _LONGEST_REFUSED)
        self._vigil.fail_for(pause)
        complaint = one_line(error)
        if complaint != self._complaint or self._failed_at >= self._reminded + _REMINDER:
            self._reminded = self._failed_at
            words = "section=%s the database refuses this user: %s; trying again, the next time in %.0f s"
            log.error(words, self.name, complaint, pause)
        self._complaint = complaint
        self.trouble = self._told(error)

    def _told(self, error: Exception) -> str:
        store = self.source.store
        refused = "the database refuses this user" if store.is_refused(error) else "polling fails"
        what = "the database does not answer" if store.is_unavailable(error) else refused
        return f"{self.name}: {what}: {one_line(error)}"

    def _complain(self, error: Exception, complaint: str) -> None:
        if self.source.store.is_unavailable(error):
            log.warning("section=%s the database does not answer: %s; trying again until it does", self.name, complaint)
        elif complaint != self._complaint:
            fault = None if is_refusal(error) or isinstance(error, ConfigError) else error
            log.error("section=%s polling fails: %s; trying again", self.name, complaint, exc_info=fault)

    def _answered(self) -> None:
        if self._failures:
            self._recovered("the database answers")
        self.trouble = None

    def _recovered(self, how: str) -> None:
        log.warning("section=%s %s again after %d failed polls", self.name, how, self._failures)
        self._failures = 0
        self._complaint = self.trouble = None

    def _unheard(self, error: Exception) -> None:
        """Say that the database cannot call; of one that does not answer the polls tell more."""
        level = logging.INFO if self.source.store.is_unavailable(error) else logging.WARNING
        words = "section=%s the database cannot notify workers of due rows: %s; polling every poll_interval instead"
        log.log(level, words, self.name, one_line(error))
