"""The master's loop: it wakes for signals and deadlines, and knows when time has passed without it."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from selectors import BaseSelector, DefaultSelector

import pytest

from psched.process.signals import SignalQueue
from psched.supervisor.event_loop import run_loop


class Master:
    """Counts its turns and ends after some."""

    def __init__(self, turns: int, deadline: float = -math.inf) -> None:
        self.turns = turns
        self.deadline = deadline
        self.idle = False
        self.signals: list[int] = []
        self.forgiven = 0

    @property
    def done(self) -> bool:
        return self.turns <= 0

    def take_signal(self, number: int) -> None:
        self.signals.append(number)

    def tick(self, now: float) -> None:
        self.turns -= 1

    def reset_deadlines(self, now: float) -> None:
        self.forgiven += 1


@pytest.fixture
def signals() -> Iterator[SignalQueue]:
    queue = SignalQueue()
    queue.install({signal.SIGUSR1, signal.SIGUSR2})
    yield queue
    queue.uninstall()


@pytest.fixture
def selector() -> Iterator[BaseSelector]:
    with DefaultSelector() as selector:
        yield selector


def test_signals_are_taken_in_their_order_and_none_is_lost(selector: BaseSelector, signals: SignalQueue) -> None:
    expected = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2, signal.SIGUSR1] * 5
    for number in expected:
        os.kill(os.getpid(), number)
    master = Master(1)
    run_loop(selector, signals, master)
    assert master.signals == expected


def test_handlers_are_put_back(signals: SignalQueue) -> None:
    queue = SignalQueue()
    queue.install({signal.SIGUSR1})
    ours = signal.getsignal(signal.SIGUSR1)
    queue.uninstall()
    signal.set_wakeup_fd(signals._writer.descriptor, warn_on_full_buffer=False)
    assert signal.getsignal(signal.SIGUSR1) is ours, "the one that the first queue had installed"


@pytest.mark.parametrize(("lost", "forgiven"), [(0.0, 0), (0.9, 0), (5.0, 1)])
def test_time_that_passed_unseen_is_noticed(
    selector: BaseSelector, signals: SignalQueue, lost: float, forgiven: int
) -> None:
    now = 100.0
    readings = 0

    def clock() -> float:
        nonlocal now, readings
        readings += 1
        now += lost if readings == 3 else 0
        return now

    master = Master(2)
    run_loop(selector, signals, master, clock)
    assert master.forgiven == forgiven
