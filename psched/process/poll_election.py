"""One looks for work in the place of all: who of a master's idle children keeps watch over a section. In children.

A child that finds nothing says until when it answers for the watch, in memory that the master made before it forked;
one sibling rests until then, its *guard*, and looks itself when it has not said so anew: a keeper that is frozen is
missed for less than two intervals. The others rest for longer, in case there is no guard any more. For a keeper that is
dead the master calls one of them. Who is about to run something calls a sibling to the watch, and more of them when
there was as much as it could take. No lock is needed: two who look at once do no harm, and the later one steps down.
Times are monotonic seconds, which all processes of a host share.
"""

from __future__ import annotations

import math
import mmap
import os
import resource
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from psched.clock import Clock, monotonic
from psched.process.channel import OwnedDescriptor

_CELL = struct.Struct("d")
"""0: has something to do, or is not there. Positive: keeps watch, and has said so until then. Negative: rests until
then, and may be called."""
_TERM = 1.8
_RENEWAL = 1.15
"""For how many intervals a keeper answers after it was last heard of, and after how many it says so anew. It looks a
little sooner than that where nobody calls it, and then need not wake for it."""
_TURNS = 0.2
"""Within how many intervals after that its siblings wake one after another, so that the first takes the watch."""
_PATIENCE = 8.0
"""How many intervals longer those rest who leave it to a guard, and how many seconds at the most."""
_WATCH = 1
_WORK = 1 << 32
"""What a call is for. They add up in an eventfd, and may be told apart when several came."""


@dataclass(frozen=True, slots=True)
class WakeReason:
    """What siblings want: `work`: there is more than they can run; else nobody keeps watch, or there is news for it."""

    work: bool


class SoleMember:
    """The seat of one who has no siblings, and so keeps watch by himself."""

    @property
    def taken(self) -> bool:
        """Whether it keeps watch, or rests and may be called."""
        return True

    @property
    def descriptor(self) -> int | None:
        """What is readable when a sibling calls; None without siblings."""
        return None

    def pause(self) -> float:
        """Return the seconds until `renew` is due; infinite for who does not keep watch."""
        return math.inf

    def renew(self) -> None:
        """Answer for the watch for longer if it is kept here and that will soon be due. Cheap."""

    def stand_by(self, news: bool = False) -> float | None:
        """Leave the watch to a sibling who keeps it: the seconds to rest then. None when it is to be kept here.

        `news`: something may be due at another time than the sibling has found; he is called to look again.
        """
        return None

    def keep(self) -> None:
        """Answer for the watch from now on. Look now if it was not kept before."""

    def answer(self) -> None:
        """Count what was called for as done: there was something."""

    def alert(self) -> None:
        """Have a sibling ready, since something is due soon and then the watch will be left to it."""

    def leave(self, taken: int = 0) -> None:
        """Neither keep watch nor be called, there being something to run; a sibling is called to the watch.

        `taken`: how many tasks were taken when there may be more; others are called for them.
        """

    def heard(self) -> WakeReason | None:
        """Return what siblings have called for since the last time, or None. Never waits."""
        return None


class ElectionMember(SoleMember):
    """One lane's place among the same lanes of its siblings."""

    def __init__(self, watch: PollElection, slot: int, section: str, interval: float, clock: Clock = monotonic) -> None:
        """`interval`: the section's `poll_interval`. In the child; nothing is kept yet."""
        self._watch = watch
        self._own, self._row = watch.place(slot, section)
        self._interval = interval
        self._clock = clock
        self._renewal = math.inf
        self._patience = min(interval, 1.0) * _PATIENCE
        self._heard = 0
        self._alert_at = -math.inf
        self._turn = interval * _TURNS * (self._own - self._row.start) / len(self._row)
        self.leave()  # whoever sat here before is dead

    @property
    def taken(self) -> bool:
        """Whether it keeps watch, or rests and may be called."""
        return self._watch.read(self._own) != 0

    @property
    def descriptor(self) -> int | None:
        """What is readable when a sibling calls; None when a handler has closed it."""
        return self._watch.descriptor(self._own)

    def pause(self) -> float:
        """Return the seconds until `renew` is due; infinite for who does not keep watch."""
        return max(0.0, self._renewal - self._clock())

    def renew(self) -> None:
        """Answer for longer when more than half the time until it is due has passed: lanes then wake together."""
        if self._renewal - self._clock() < self._interval * _RENEWAL / 2:
            self.keep()

    def stand_by(self, news: bool = False) -> float | None:
        """Leave the watch to a sibling. Of two keepers the one in the lower seat stays."""
        now = self._clock()
        keepers = self._keepers(now)
        if not keepers:
            return None
        until = max(keepers.values()) + self._turn
        if self._has_guard(now, until):
            until += self._patience
        self._watch.write(self._own, -until)
        if not self._keepers(now):  # who has left meanwhile may not have seen that somebody rests here
            return None
        self._renewal = math.inf
        self._heard = 0
        for member in keepers if news else ():
            self._watch.call(member, _WATCH)
        return until - now

    def keep(self) -> None:
        """Answer for the watch from now on; calls from before are answered by looking."""
        if self._keeps_no_watch:
            self._watch.take(self._own)
        self._heard = 0
        now = self._clock()
        self._renewal = now + self._interval * _RENEWAL
        self._watch.write(self._own, now + self._interval * _TERM)

    def answer(self) -> None:
        """Count what was called for as done: there was something."""
        self._heard = 0

    def alert(self) -> None:
        """Call one to the watch though it is kept, once an interval at the most: a reserve gets ready by that."""
        now = self._clock()
        if now >= self._alert_at:
            self._alert_at = now + self._interval
            self._call(_WATCH, 1)

    def leave(self, taken: int = 0) -> None:
        """Neither keep watch nor be called any more. A call that has come is passed on, heard or not."""
        kept = not self._keeps_no_watch
        self._renewal = math.inf
        self._watch.write(self._own, 0.0)
        called = self._watch.take(self._own) + self._heard
        self._heard = 0
        if taken or called >= _WORK:
            self._call(_WORK, max(2 * taken, 1))
        elif kept or called:
            self._call(_WATCH, 1)

    def heard(self) -> WakeReason | None:
        """Return what siblings have called for since the last time, or None. Never waits."""
        called = self._watch.take(self._own)
        self._heard += called
        return WakeReason(work=called >= _WORK) if called else None

    @property
    def _keeps_no_watch(self) -> bool:
        return math.isinf(self._renewal)

    def _keepers(self, now: float) -> dict[int, float]:
        """Return who keeps watch, and until when, of those to whom it can be left."""
        rivals = [
            member for member in self._row if member < self._own or (self._keeps_no_watch and member != self._own)
        ]
        return {member: term for member in rivals if (term := self._term(member, now)) > 0}

    def _has_guard(self, now: float, until: float) -> bool:
        """Tell whether a sibling rests that will look not later than `until`, give or take its turn."""
        latest = until + self._interval * _TURNS
        return any(-latest <= self._term(member, now) < 0 for member in self._row if member != self._own)

    def _term(self, member: int, now: float) -> float:
        """Return a sibling's word as far as it counts: 0 when it is over, or cannot be true."""
        term = self._watch.read(member)
        longest = self._interval * 3 + (self._patience if term < 0 else 0.0)
        return term if now < abs(term) <= now + longest else 0.0

    def _call(self, what: int, count: int) -> None:
        """Call so many who rest, first the guard, as it is most likely awake; for work the keeper, too."""
        now = self._clock()
        terms = [(member, self._term(member, now)) for member in self._row if member != self._own]
        resting = [member for term, member in sorted((-term, member) for member, term in terms if term < 0)]
        keepers = [member for member, term in terms if term > 0] if what == _WORK else []
        for member in (keepers + resting)[:count]:
            self._watch.call(member, what)


class PollElection:
    """The seats of one generation of children. Made in the master; closed there when that generation ends."""

    def __init__(self, slots: int, sections: Sequence[str]) -> None:
        """Raises OSError when the system has no descriptors left, AttributeError where it has no eventfd (macOS)."""
        self._slots = slots
        self._sections = tuple(sections)
        self._bells: list[OwnedDescriptor] = []
        self._memory = mmap.mmap(-1, slots * len(sections) * _CELL.size)
        try:
            for _ in range(slots * len(sections)):
                self._bells.append(OwnedDescriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)))
        except OSError:
            self.close()
            raise

    def place(self, slot: int, section: str) -> tuple[int, range]:
        """Return the number of a seat, and those of all in its section. Slots are counted from 1."""
        first = self._sections.index(section) * self._slots
        return first + slot - 1, range(first, first + self._slots)

    def descriptor(self, member: int) -> int | None:
        """Return what is readable when the seat is called; None when a handler has closed it."""
        wakeup = self._bells[member]
        return wakeup.descriptor if wakeup.is_ours() else None

    def read(self, member: int) -> float:
        """Return what the seat's child has said."""
        term: float = _CELL.unpack_from(self._memory, member * _CELL.size)[0]
        return term

    def write(self, member: int, term: float) -> None:
        """Say it for the seat's child."""
        _CELL.pack_into(self._memory, member * _CELL.size, term)

    def call(self, member: int, what: int) -> None:
        """Call the seat's child."""
        wakeup = self.descriptor(member)
        if wakeup is not None:
            with suppress(OSError):  # it has been called 2**32 times
                os.eventfd_write(wakeup, what)

    def remove(self, slot: int) -> None:
        """Clear the seats of a child that is dead; what it kept is left to a sibling, who is called. In the master."""
        for first in range(0, self._slots * len(self._sections), self._slots):
            kept = self.read(first + slot - 1) > 0
            self.write(first + slot - 1, 0.0)
            resting = [
                (-term, member) for member in range(first, first + self._slots) if (term := self.read(member)) < 0
            ]
            if kept and resting:
                self.call(min(resting)[1], _WATCH)

    def take(self, member: int) -> int:
        """Return the sum of what the seat was called for, and forget it."""
        wakeup = self.descriptor(member)
        if wakeup is not None:
            with suppress(OSError):  # nothing
                return os.eventfd_read(wakeup)
        return 0

    def close(self) -> None:
        """Close it in this process."""
        for wakeup in self._bells:
            wakeup.close()
        self._memory.close()


def open_election(slots: int, sections: Sequence[str]) -> PollElection | None:
    """Return a watch for so many children; None when each is to look by itself: one is alone, or it cannot be made.

    Nor is it made when it took more than a quarter of the descriptors that a process may have: children need theirs.
    """
    wakeups = slots * len(sections)
    if slots < 2 or not hasattr(os, "eventfd") or wakeups > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4:
        return None
    try:
        return PollElection(slots, sections)
    except OSError:
        return None
