"""A periodic thread works while there is something to do, and sleeps otherwise."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from psched.execution.periodic_thread import PeriodicThread

_PATIENCE = 10.0


@contextmanager
def ticking(tick: Callable[[], bool], interval: float) -> Iterator[PeriodicThread]:
    ticker = PeriodicThread("test", tick, interval)
    ticker.start()
    try:
        yield ticker
    finally:
        ticker.close()
        ticker.join(_PATIENCE)
        assert not ticker.is_alive()


def test_it_ticks_again_and_again_while_there_is_work_and_then_sleeps() -> None:
    ticks = threading.Semaphore(0)
    left = [4]

    def tick() -> bool:
        ticks.release()
        left[0] -= 1
        return left[0] > 0

    with ticking(tick, 0.001):
        for _ in range(4):
            assert ticks.acquire(timeout=_PATIENCE)
        assert not ticks.acquire(timeout=0.05)


def test_a_wake_ends_its_sleep() -> None:
    ticks = threading.Semaphore(0)

    def tick() -> bool:
        ticks.release()
        return False

    with ticking(tick, 0.001) as ticker:
        assert ticks.acquire(timeout=_PATIENCE)
        ticker.wake()
        assert ticks.acquire(timeout=_PATIENCE)


def test_a_wake_does_not_wait_for_the_interval() -> None:
    ticks = threading.Semaphore(0)

    def tick() -> bool:
        ticks.release()
        return True

    with ticking(tick, 3600) as ticker:
        assert ticks.acquire(timeout=_PATIENCE)
        ticker.wake()
        assert ticks.acquire(timeout=_PATIENCE)


def test_a_tick_that_raises_is_logged_and_does_not_end_the_tending(caplog: pytest.LogCaptureFixture) -> None:
    ticks = threading.Semaphore(0)

    def tick() -> bool:
        ticks.release()
        raise RuntimeError("broken")

    with ticking(tick, 0.001):
        for _ in range(3):
            assert ticks.acquire(timeout=_PATIENCE)
    assert "broken" in caplog.text


def test_a_close_just_after_a_wake_ends_it_at_once() -> None:
    ticker = PeriodicThread("test", lambda: False, 1000)

    class ClosedMeanwhile(threading.Event):
        """Closes the thread after it has noticed a wake, and before it waits for its interval."""

        def clear(self) -> None:
            ticker.close()
            super().clear()

    ticker._woken = ClosedMeanwhile()
    ticker._woken.set()
    ticker.start()
    ticker.join(_PATIENCE)
    assert not ticker.is_alive()
