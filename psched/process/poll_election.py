"""Elects one idle child per section to poll for its siblings.

An idle child, the *leader*, writes the end of its term into shared memory, and polls until then. One sibling, the
*deputy*, pauses until then, and begins to poll if the leader has not extended the term: a frozen leader is replaced
within two intervals. The other siblings pause for longer, in case the deputy is gone too. When the leader dies, the
master wakes a sibling. A child that is about to run tasks wakes a sibling to lead, and more siblings after a full
batch. No lock is needed: two leaders at once do no harm, and the later one steps down. Times are monotonic seconds,
which all processes of a host share.
"""

from __future__ import annotations

import math
import mmap
import os
import resource
import struct
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from psched.clock import Clock, monotonic
from psched.process.child_protocol import OwnedDescriptor

_CELL = struct.Struct("d")
"""The term of a child. 0: it runs tasks, or does not exist. Positive: it leads until then. Negative: it is on standby
until then, and can be woken."""
_TERM = 1.8
"""Poll intervals in a term. Each poll of the leader begins a new one."""
_EXTENSION = 1.15
"""Poll intervals after which the leader extends its term, if it has not polled."""
_TURNS = 0.2
"""Intervals over which the siblings wake one after another after a term, so that the first becomes leader."""
_PATIENCE = 8.0
"""Intervals, or seconds if that is less, by which siblings pause longer than the deputy."""
_LEAD = 1
_WORK = 1 << 32
"""The reasons of a wake-up. An eventfd adds them up, and both can be read from the sum."""


WakeReason = Literal["work", "lead"]
"""Why a sibling woke this child. `work`: there are more tasks than the sibling can run. `lead`: there is no leader, or
the leader shall poll again."""


class SoleMember:
    """The membership of a poller without siblings, which always polls itself; base class of `ElectionMember`."""

    @property
    def participates(self) -> bool:
        """Whether this child leads, or is on standby and can be woken."""
        return True

    @property
    def descriptor(self) -> int | None:
        """Readable after the wake-up of a sibling. None without siblings, or if a handler has closed it."""
        return None

    def pause(self) -> float:
        """Return the seconds until `extend` is due; infinite unless this child leads."""
        return math.inf

    def extend(self) -> None:
        """Extend the leader's term if that is due soon. Cheap."""

    def defer(self, news: bool = False) -> float | None:
        """Leave the polling to a leader. Return the seconds to pause, or None if this child must lead.

        `news`: rows may be due at another time than the leader has found, so wake the leader to poll again.
        """
        return None

    def stand_by(self, seconds: float) -> None:
        """Be woken by siblings for `seconds`, though none leads yet."""

    def has_idle_sibling(self) -> bool:
        """Whether a sibling could run a task at once."""
        return False

    def offer(self, count: int) -> None:
        """Wake up to `count` siblings to run tasks that this child has released."""

    def lead(self) -> None:
        """Lead from now on. Call it before a poll."""

    def found_rows(self) -> None:
        """Forget the wake-ups that were read: rows were found."""

    def wake_sibling(self) -> None:
        """Wake a sibling to lead while the row that is due soon runs here."""

    def leave(self, batch: int = 0) -> None:
        """Neither lead nor be woken while tasks run here. Wake a sibling to lead.

        `batch`: the size of a full batch; more siblings are woken for the rows behind it.
        """

    def wake_reason(self) -> WakeReason | None:
        """Return the reason of a wake-up since the last call, or None. Never waits."""
        return None


class ElectionMember(SoleMember):
    """The membership of one child for one section."""

    def __init__(
        self, election: PollElection, slot: int, section: str, interval: float, clock: Clock = monotonic
    ) -> None:
        """Call in the child. `interval`: the section's `poll_interval`."""
        self._election = election
        self._member, self._siblings = election.place(slot, section)
        self._interval = interval
        self._clock = clock
        self._extend_at = math.inf
        self._patience = min(interval, 1.0) * _PATIENCE
        self._read = 0
        self._alert_at = -math.inf
        self._has_woken_all = False
        self._turn = interval * _TURNS * (self._member - self._siblings.start) / len(self._siblings)
        self.leave()  # its predecessor in this slot is dead

    @property
    def participates(self) -> bool:
        return self._election.read(self._member) != 0

    @property
    def descriptor(self) -> int | None:
        return self._election.descriptor(self._member)

    def pause(self) -> float:
        return max(0.0, self._extend_at - self._clock())

    def extend(self) -> None:
        """Extend the term early, in the second half of the time, so that a child wakes once for several sections."""
        if self._extend_at - self._clock() < self._interval * _EXTENSION / 2:
            self.lead()

    def defer(self, news: bool = False) -> float | None:
        """Of two leaders, the leader in the lower slot goes on."""
        now = self._clock()
        leaders = self._leaders(now)
        if not leaders:
            return None
        until = max(leaders.values()) + self._turn
        if self._has_deputy(now, until):
            until += self._patience
        self._election.write(self._member, -until)
        if not self._leaders(now):  # a leader that has left meanwhile may not have seen this standby
            return None
        self._extend_at = math.inf
        self._read = 0
        for member in leaders if news else ():
            self._election.wake(member, _LEAD)
        return until - now

    def stand_by(self, seconds: float) -> None:
        self._election.write(self._member, -(self._clock() + seconds))

    def has_idle_sibling(self) -> bool:
        return bool(self._terms(self._clock()))

    def offer(self, count: int) -> None:
        self._wake(_WORK, count)

    def lead(self) -> None:
        """Forget earlier wake-ups: the poll that follows finds their rows."""
        if self._is_no_leader:
            self._election.read_reasons(self._member)
        self._read = 0
        now = self._clock()
        self._extend_at = now + self._interval * _EXTENSION
        self._election.write(self._member, now + self._interval * _TERM)

    def found_rows(self) -> None:
        self._read = 0

    def wake_sibling(self) -> None:
        """Wake a sibling while this child leads, at most once an interval: a standby process boots."""
        now = self._clock()
        if now >= self._alert_at:
            self._alert_at = now + self._interval
            self._wake(_LEAD, 1)

    def leave(self, batch: int = 0) -> None:
        """Pass the wake-ups that have come on to siblings, read or not."""
        led = not self._is_no_leader
        self._extend_at = math.inf
        self._election.write(self._member, 0.0)
        woken_for = self._election.read_reasons(self._member) + self._read
        self._read = 0
        if batch or woken_for >= _WORK:
            count = max(2 * batch, 1) if self._has_woken_all else len(self._siblings)
            self._has_woken_all = True  # once, since they may have to open their stores first
            self._wake(_WORK, count)
        elif led or woken_for:
            self._wake(_LEAD, 1)

    def wake_reason(self) -> WakeReason | None:
        woken_for = self._election.read_reasons(self._member)
        self._read += woken_for
        if not woken_for:
            return None
        return "work" if woken_for >= _WORK else "lead"

    @property
    def _is_no_leader(self) -> bool:
        return math.isinf(self._extend_at)

    def _leaders(self, now: float) -> dict[int, float]:
        """Return the leaders to which polling can be left, with the ends of their terms."""
        terms = self._terms(now).items()
        return {member: term for member, term in terms if term > 0 and (self._is_no_leader or member < self._member)}

    def _has_deputy(self, now: float, until: float) -> bool:
        """Return whether a sibling on standby polls by `until`, plus its turn."""
        latest = until + self._interval * _TURNS
        return any(-latest <= term < 0 for term in self._terms(now).values())

    def _terms(self, now: float) -> dict[int, float]:
        """Return the terms of siblings, without those that are over or impossible."""
        longest = now + self._interval * 3
        terms = {member: self._election.read(member) for member in self._siblings if member != self._member}
        return {
            member: term
            for member, term in terms.items()
            if now < term <= longest or now < -term <= longest + self._patience
        }

    def _wake(self, what: int, count: int) -> None:
        """Wake up to `count` waiting siblings, the deputy first. To run tasks (`_WORK`), wake leaders before them."""
        terms = self._terms(self._clock())
        standby = sorted((member for member in terms if terms[member] < 0), key=terms.__getitem__, reverse=True)
        leaders = [member for member in terms if terms[member] > 0] if what == _WORK else []
        for member in (leaders + standby)[:count]:
            self._election.wake(member, what)


class PollElection:
    """The shared memory of one generation of children, made and closed by the master."""

    def __init__(self, slots: int, sections: Sequence[str]) -> None:
        """Raises OSError when no descriptors are left, AttributeError without eventfd (macOS)."""
        self._slots = slots
        self._sections = tuple(sections)
        self._wakeups: list[OwnedDescriptor] = []
        self._memory = mmap.mmap(-1, slots * len(sections) * _CELL.size)
        try:
            for _ in range(slots * len(sections)):
                self._wakeups.append(OwnedDescriptor(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)))
        except OSError:
            self.close()
            raise

    def place(self, slot: int, section: str) -> tuple[int, range]:
        """Return the number of a member, and the numbers of all members of the section. Slots are counted from 1."""
        first = self._sections.index(section) * self._slots
        return first + slot - 1, range(first, first + self._slots)

    def descriptor(self, member: int) -> int | None:
        """Return the descriptor that is readable after a wake-up, or None if a handler has closed it."""
        wakeup = self._wakeups[member]
        return wakeup.descriptor if wakeup.is_ours() else None

    def read(self, member: int) -> float:
        term: float = _CELL.unpack_from(self._memory, member * _CELL.size)[0]
        return term

    def write(self, member: int, term: float) -> None:
        _CELL.pack_into(self._memory, member * _CELL.size, term)

    def wake(self, member: int, what: int) -> None:
        wakeup = self.descriptor(member)
        if wakeup is not None:
            with suppress(OSError):  # the counter is full after 2**32 wake-ups
                os.eventfd_write(wakeup, what)

    def remove(self, slot: int) -> None:
        """Clear the terms of a dead child and wake a sibling of each section it led. In the master."""
        for first in range(0, self._slots * len(self._sections), self._slots):
            led = self.read(first + slot - 1) > 0
            self.write(first + slot - 1, 0.0)
            standby = [
                (-term, member) for member in range(first, first + self._slots) if (term := self.read(member)) < 0
            ]
            if led and standby:
                self.wake(min(standby)[1], _LEAD)

    def read_reasons(self, member: int) -> int:
        """Return the sum of the reasons of a member's wake-ups, and clear it."""
        wakeup = self.descriptor(member)
        if wakeup is not None:
            with suppress(OSError):  # there was no wake-up
                return os.eventfd_read(wakeup)
        return 0

    def close(self) -> None:
        for wakeup in self._wakeups:
            wakeup.close()
        self._memory.close()


def open_election(slots: int, sections: Sequence[str]) -> PollElection | None:
    """Return an election for `slots` children, or None if each child polls for itself.

    Each does if there is a single child, without eventfd (macOS), and if the election would need more than a quarter of
    the descriptors that a process may have.
    """
    wakeups = slots * len(sections)
    if slots < 2 or not hasattr(os, "eventfd") or wakeups > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4:
        return None
    try:
        return PollElection(slots, sections)
    except OSError:
        return None
