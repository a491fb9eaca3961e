"""The master's loop: wait, take signals, tick. One thread and one wait; nothing else in the master blocks.

It waits for words of children, for signals (SIGCHLD tells their deaths on every system), and for the next deadline; not
for longer than a second while anything goes on that might leave orphans, or stand still.
"""

from __future__ import annotations

from selectors import EVENT_READ, BaseSelector
from typing import Protocol

from psched.clock import Clock, monotonic
from psched.process.signals import SignalQueue

_LONGEST = 1.0
_LONGEST_CALM = 60.0
_PAUSE = 1.0
"""A turn that took so many seconds longer than planned: the process or its host stood still meanwhile."""


class MasterTicks(Protocol):
    """What the loop drives. No method waits."""

    @property
    def done(self) -> bool:
        """Whether the loop is to end."""
        ...

    @property
    def deadline(self) -> float:
        """When `tick` is due at the latest, monotonic."""
        ...

    @property
    def idle(self) -> bool:
        """Whether nothing goes on, so that `tick` need not be called before the deadline."""
        ...

    def take_signal(self, number: int) -> None:
        """Act on a signal."""
        ...

    def tick(self, now: float) -> None:
        """Do what is due."""
        ...

    def reset_deadlines(self, now: float) -> None:
        """Blame nobody for what did not happen before `now`."""
        ...


def run_loop(selector: BaseSelector, signals: SignalQueue, master: MasterTicks, clock: Clock = monotonic) -> None:
    """Turn until `master.done`. `selector` has the children's pipes; the signal queue is added here."""
    selector.register(signals.reader.descriptor, EVENT_READ)
    expected = clock()
    while not master.done:
        pause = min(max(0.0, master.deadline - clock()), _LONGEST_CALM if master.idle else _LONGEST)
        selector.select(pause)
        now = clock()
        if now > expected + pause + _PAUSE:
            master.reset_deadlines(now)
        for number in signals.take():
            master.take_signal(number)
        master.tick(clock())
        expected = clock()
