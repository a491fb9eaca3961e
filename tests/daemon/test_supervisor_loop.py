"""The master's loop wakes for signals and deadlines, and notices when the process stood still."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from selectors import BaseSelector, DefaultSelector
from types import SimpleNamespace
from typing import cast

import pytest

from psched.clock import Clock, monotonic
from psched.process.signals import SignalQueue
from psched.supervisor.fork_and_reap import ProcessTable
from psched.supervisor.supervisor import Supervisor


class Master(Supervisor):
    """A master without children, which counts its turns and ends after `turns` of them."""

    deadline = -math.inf
    idle = False

    def __init__(self, turns: int, clock: Clock = monotonic) -> None:
        self.turns = turns
        self.clock = clock
        self.signals: list[int] = []
        self.resets = 0
        self.process_table = cast("ProcessTable", SimpleNamespace(tick=lambda now: None))

    @property
    def done(self) -> bool:
        return self.turns <= 0

    def handle_signal(self, number: int) -> None:
        self.signals.append(number)

    def begin(self) -> None:
        pass

    def manage(self, now: float) -> None:
        self.turns -= 1

    def reset_deadlines(self, now: float) -> None:
        self.resets += 1


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


def test_signals_are_handled_in_order_and_none_is_lost(selector: BaseSelector, signals: SignalQueue) -> None:
    expected = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR2, signal.SIGUSR1] * 5
    for number in expected:
        os.kill(os.getpid(), number)
    master = Master(1)
    master.run(selector, signals)
    assert master.signals == expected


def test_handlers_are_put_back(signals: SignalQueue) -> None:
    queue = SignalQueue()
    queue.install({signal.SIGUSR1})
    ours = signal.getsignal(signal.SIGUSR1)
    queue.uninstall()
    signal.set_wakeup_fd(signals._writer.descriptor, warn_on_full_buffer=False)
    assert signal.getsignal(signal.SIGUSR1) is ours, "the one that the first queue had installed"


@pytest.mark.parametrize(("lost", "resets"), [(0.0, 0), (0.9, 0), (5.0, 1)])
def test_deadlines_are_reset_after_the_process_stood_still(
    selector: BaseSelector, signals: SignalQueue, lost: float, resets: int
) -> None:
    now = 100.0
    readings = 0

    def clock() -> float:
        nonlocal now, readings
        readings += 1
        now += lost if readings == 3 else 0
        return now

    master = Master(2, clock)
    master.run(selector, signals)
    assert master.resets == resets
