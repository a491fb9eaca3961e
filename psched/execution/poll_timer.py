"""Decides when an idle poller polls next, and how. It holds numbers and a clock only."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from psched.clock import Clock, monotonic

CALLED = 10.0
"""Seconds between two polls of a poller that is woken for due rows: only a lost wake-up waits for so long."""
_FIRST_DELAY = 0.0005
_LONGEST_DELAY = 0.008
"""Seconds by which a poller that found nothing at its last wake-up delays, so that not all acquire at once."""

_SAME = 0.01
"""Two due times that differ by less than so many seconds belong to the same row."""

Chance = Callable[[float, float], float]


class PollTimer:
    """All times are seconds.

    The interval, the next due time or a wake-up ends a pause. Of several pollers that wake for one row, the poller that
    acquired the last row goes first; the others delay a moment and query before they acquire.
    """

    def __init__(self, interval: float, clock: Clock = monotonic, chance: Chance = random.uniform) -> None:
        """`interval`: `poll_interval`, between two polls without wake-ups. `chance` draws from a range."""
        self._interval = interval
        self.clock = clock
        self._chance = chance
        self._polled_at = self._next = clock()
        self._in_vain = 0
        self._expects_row = False
        self._due = math.inf
        self.working = False
        """Whether the last poll found rows."""
        self.checks_first = False
        """Whether to query the next due time before acquiring: when no row is expected."""

    @property
    def longest(self) -> float:
        """The longest pause, but for chance."""
        return max(self._interval, CALLED)

    def pause(self) -> float:
        """Return the seconds until the next poll; 0 when it is due."""
        return max(0.0, self._next - self.clock())

    def worked(self) -> None:
        """Rows were found: poll again at once."""
        self._next = self.clock()
        self._in_vain = 0
        self._expects_row = self.checks_first = False
        self.working = True

    def now(self) -> None:
        """Acquire at once, without a query first."""
        self._next = self.clock()
        self._expects_row = self.checks_first = False
        self.working = True

    def rest(self, wait: float | None, called: bool, took: float = 0.0) -> None:
        """Pause after a poll that acquired nothing.

        `wait`: until a row is due; None: no row waits; 0: a row is due that others may acquire. `called`: a wake-up is
        sure to come when a row becomes due meanwhile. `took`: how long the query took; the next poll takes as long to
        reach the database, and starts that much earlier. A wake-up for a row that is due in a moment, and was not known
        before, does not count as in vain.
        """
        self._polled_at = self.clock() - took
        rest = self._jittered(self.longest if called and wait != 0 else self._interval)
        due = self._polled_at + wait if wait and wait < rest else math.inf
        woken_for_later = self._polled_at < self._due and due < self._due - _SAME
        self._in_vain += self._expects_row and not woken_for_later
        self._due = due
        self.working = False
        until_due = rest if not wait else wait + self._delay()
        self._expects_row = until_due < rest
        self.checks_first = not self._expects_row or self._in_vain > 0
        self._next = self._polled_at + min(rest, until_due)

    @property
    def expects_work(self) -> bool:
        """Whether rows are expected: by the last poll, by the due time that it found, or by a wake-up."""
        return self.working or self._expects_row

    def defer(self, seconds: float) -> None:
        """Leave the polling to a sibling for so long."""
        self._in_vain += self._expects_row
        self.working = self._expects_row = False
        self.checks_first = True
        self._due = math.inf
        self._polled_at = self.clock()
        self._next = self._polled_at + seconds

    def back_off(self, intervals: float) -> None:
        """Poll a database that did not answer again after so many intervals."""
        self.back_off_for(self._jittered(self._interval * intervals))

    def back_off_for(self, seconds: float) -> None:
        """Poll a database that did not answer again after so many seconds."""
        self._polled_at = self.clock()
        self._expects_row, self.checks_first = False, True
        self._next = self._polled_at + seconds

    def wake(self) -> None:
        """A row became due: poll at once, or after the delay."""
        self._expects_row = True
        self.checks_first = self._in_vain > 0
        self._next = min(self._next, self.clock() + self._delay())

    def ignore_wakeups(self) -> None:
        """Wake-ups no longer come: poll every interval again."""
        self._next = min(self._next, self._polled_at + self._jittered(self._interval))

    def check_within(self, seconds: float) -> None:
        """Poll after so many seconds at the latest."""
        self._next = min(self._next, self.clock() + seconds)

    def check_now(self) -> None:
        """Query the next due time at once: a wake-up may have been lost."""
        self._next = self.clock()
        self._expects_row, self.checks_first = False, True

    def _delay(self) -> float:
        """Return the delay of a poller whose last wake-ups were in vain."""
        if not self._in_vain:
            return 0.0
        return self._chance(0.0, min(_FIRST_DELAY * 2 ** min(self._in_vain, 10), _LONGEST_DELAY))

    def _jittered(self, seconds: float) -> float:
        """Return about so many seconds, so that the children do not poll all at once."""
        return seconds * self._chance(0.9, 1.1)
