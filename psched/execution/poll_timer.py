"""When an idle lane looks again, and how it looks: a state of numbers and a clock. In children, one per lane."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

from psched.clock import Clock, monotonic

CALLED = 10.0
"""Seconds between two looks of who is called when there is work; only a call that was lost waits for so long."""
_FIRST_DELAY = 0.0005
_LONGEST_DELAY = 0.008
"""How many seconds those hold back who came for nothing before, so that all who wake at once do not take in turn."""

_SAME = 0.01
"""Seconds between two answers to when the same row is due."""

Chance = Callable[[float, float], float]


class PollTimer:
    """Decides when its lane looks next. Seconds everywhere.

    What wakes it is the interval, the next due time, or a ring. Of several that wake for one row the one who got the
    last row goes first; the others hold back a moment and then look before they reach for anything.
    """

    def __init__(self, interval: float, clock: Clock = monotonic, chance: Chance = random.uniform) -> None:
        """`interval`: `poll_interval`, between two looks of who is not called. `chance` draws from a range."""
        self._interval = interval
        self.clock = clock
        self._chance = chance
        self._looked = self._next = clock()
        self._in_vain = 0
        self._awaited = False
        self._due = math.inf
        self.working = False
        """Whether the last look found something."""
        self.looks_first = False
        """Whether to ask for the next due time before acquiring: when nothing says that there is something."""

    @property
    def longest(self) -> float:
        """The longest rest, but for chance."""
        return max(self._interval, CALLED)

    def pause(self) -> float:
        """Return the seconds until the next look; 0 when it is time."""
        return max(0.0, self._next - self.clock())

    def worked(self) -> None:
        """There was something: look again when that is done."""
        self._next = self.clock()
        self._in_vain = 0
        self._awaited = self.looks_first = False
        self.working = True

    def hope(self) -> None:
        """Reach for work at once, as there may be some, and never mind if there is none."""
        self._next = self.clock()
        self._awaited = self.looks_first = False
        self.working = True

    def rest(self, wait: float | None, called: bool, took: float = 0.0) -> None:
        """There was nothing to be had. `wait`: until something is due, None: nothing is; 0: it is for others to take.

        Who was rung for what is due in a moment, and not known before, did not come in vain.

        `called`: a bell is known to ring when something is made due meanwhile. `took`: how long it took to ask; the
        next look takes as long to get there, and so sets out that much before its time.
        """
        self._looked = self.clock() - took
        rest = self._some(self.longest if called and wait != 0 else self._interval)
        due = self._looked + wait if wait and wait < rest else math.inf
        rang_for_later = self._looked < self._due and due < self._due - _SAME
        self._in_vain += self._awaited and not rang_for_later
        self._due = due
        self.working = False
        until_due = rest if not wait else wait + self._delay()
        self._awaited = until_due < rest
        self.looks_first = not self._awaited or self._in_vain > 0
        self._next = self._looked + min(rest, until_due)

    @property
    def expects(self) -> bool:
        """Whether something says that there is something: the last look, the due time it found, or a ring."""
        return self.working or self._awaited

    def stand_by(self, seconds: float) -> None:
        """Somebody else looks in our place for so long."""
        self._in_vain += self._awaited
        self.working = self._awaited = False
        self.looks_first = True
        self._due = math.inf
        self._looked = self.clock()
        self._next = self._looked + seconds

    def fail(self, intervals: float) -> None:
        """The database did not answer: try again after so many intervals."""
        self.fail_for(self._some(self._interval * intervals))

    def fail_for(self, seconds: float) -> None:
        """The database did not answer: try again after so many seconds."""
        self._looked = self.clock()
        self._awaited, self.looks_first = False, True
        self._next = self._looked + seconds

    def ring(self) -> None:
        """Somebody says that there is something."""
        self._awaited = True
        self.looks_first = self._in_vain > 0
        self._next = min(self._next, self.clock() + self._delay())

    def ignore_wakeups(self) -> None:
        """Nobody calls any more: look as often as one who is not called."""
        self._next = min(self._next, self._looked + self._some(self._interval))

    def look_within(self, seconds: float) -> None:
        """Look again after so many seconds at the latest."""
        self._next = min(self._next, self.clock() + seconds)

    def look_now(self) -> None:
        """Look at once, since something may have happened unheard."""
        self._next = self.clock()
        self._awaited, self.looks_first = False, True

    def _delay(self) -> float:
        """Return for how long to hold back."""
        if not self._in_vain:
            return 0.0
        return self._chance(0.0, min(_FIRST_DELAY * 2 ** min(self._in_vain, 10), _LONGEST_DELAY))

    def _some(self, seconds: float) -> float:
        """Return about so many seconds, so that children do not march in step."""
        return seconds * self._chance(0.9, 1.1)
