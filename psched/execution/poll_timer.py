"""Decides when a poller polls next: after its interval, at the next due time, or after a wake-up."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from psched.clock import Clock, monotonic

CALLED = 10.0
"""Seconds between two polls of a poller that gets wake-ups for due rows. A row waits so long only if its wake-up was
lost."""
_FIRST_DELAY = 0.0005
_LONGEST_DELAY = 0.008
"""Seconds. After a wake-up whose poll found no row, a poller delays its next poll by a random time of up to twice
`_FIRST_DELAY`. Each further such wake-up doubles this limit, up to `_LONGEST_DELAY`. The delays keep the pollers from
acquiring all at the same time."""

_SAME = 0.01
"""Seconds. Two due times that differ by less than this are assumed to be of the same row."""

SHORTEST_PAUSE = 0.02
"""The shortest time between two polls that find no row, in seconds: at most fifty such polls a second."""
_RECENT = 0.05
"""The poll interval as a share of the time since a poll last found rows. A smaller share would hardly shorten the wait
for the next row."""
_WOKEN = 0.1
"""Seconds after a wake-up for which a poller polls often, because on SQLite the wake-up comes before the commit has
ended."""
_COST = 25
"""The poll interval is at least this many times the duration of a poll, so that polls take at most 4 % of the time."""
_SHORTEST_BACK_OFF = 1.0
"""Seconds after a failed poll in which wake-ups are ignored. A failed poll may itself cause a wake-up: on SQLite, a
write that fails because the disk is full changes the WAL file."""

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
        self._earliest = self._retry_at = -math.inf
        self._expects_row = False
        self._due = math.inf
        self.working = False
        """Whether the last poll found rows."""
        self.checks_first = False
        """Whether to query the next due time before the next acquire, because no row is expected."""

    @property
    def longest(self) -> float:
        """The longest pause in seconds, before its random variation."""
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
        self._next = self._found_at + max(SHORTEST_PAUSE, _COST * took / 10)
        self._earliest = self._found_at + min(took, 0.002)

    def poll_now(self) -> None:
        self._next = self._found_at = self.clock()
        self._retry_at = -math.inf
        self._expects_row = self.checks_first = False
        self.working = True

    def rest(self, wait: float | None, called: bool, took: float = 0.0) -> None:
        """Pause after a poll that acquired nothing.

        - `wait`: seconds until a row is due. None: no row is waiting. 0: a row is due that other workers may acquire.
        - `called`: whether a wake-up is sure to come if a row becomes due in the meantime.
        - `took`: the duration of the query. The next poll starts that much earlier, because it also takes that long to
          reach the database.

        If a row was expected, the last wake-up counts as false. A wake-up for a new row that is due later does not.
        """
        self._polled_at = self.clock() - took
        self._retry_at = -math.inf
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
        """Poll again after `seconds`. Called after a failed poll.

        A wake-up may shorten the pause, but not below `_SHORTEST_BACK_OFF`.
        """
        self._polled_at = self.clock()
        self._retry_at = self._polled_at + min(seconds, _SHORTEST_BACK_OFF)
        self._expects_row, self.checks_first = False, True
        self._next = self._polled_at + seconds

    def wake(self) -> None:
        """Poll immediately or after `_delay`, because a row became due."""
        self._expects_row = True
        self.checks_first = self._in_vain > 0
        self._woken_at = self.clock()
        self._next = max(min(self._next, self._woken_at + self._delay()), self._earliest, self._retry_at)

    def ignore_wakeups(self) -> None:
        """Poll once per interval from now on, because wake-ups no longer come."""
        self._poll_by(self._polled_at + self._jittered(self._interval))

    def _polled_interval(self, took: float) -> float:
        """Return the poll interval for a table without wake-ups. It is short while rows are found, and then grows."""
        now = self.clock()
        since = 0.0 if now < self._woken_at + _WOKEN else now - self._found_at
        return min(self._interval, max(SHORTEST_PAUSE, _COST * took, _RECENT * since))

    def check_within(self, seconds: float) -> None:
        self._poll_by(max(self.clock() + seconds, self._retry_at))

    def _poll_by(self, time: float) -> None:
        """Poll at `time`, unless a poll is due earlier. No row is expected at `time`, so a poll then is not in vain."""
        if time < self._next:
            self._next, self._expects_row = time, False

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
