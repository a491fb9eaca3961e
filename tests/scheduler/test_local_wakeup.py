"""Wakeups between the threads of one process."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from psched.backends import open_stores
from psched.scheduler.local_wakeup import LocalWakeup
from psched.store import StoreSettings, Wakeup


@pytest.fixture
def local() -> LocalWakeup:
    """The local wakeup for a store that has no wakeup of its own."""
    store = open_stores("rdb", StoreSettings("sqlite://", "test", queue="queue")).queue
    assert store is not None
    return LocalWakeup(store)


@pytest.fixture
def wakeups(local: LocalWakeup) -> Iterator[list[Wakeup]]:
    """The wakeups of two threads."""
    found = [wakeup for wakeup in (local.open_wakeup(), local.open_wakeup()) if wakeup is not None]
    yield found
    for wakeup in found:
        wakeup.close()
        wakeup.close()


def readable(wakeups: list[Wakeup]) -> list[Wakeup]:
    return list(select.select(wakeups, [], [], 0)[0])


def test_a_wake_up_wakes_one_waiting_thread_and_the_next_another(local: LocalWakeup, wakeups: list[Wakeup]) -> None:
    local.wake_one()
    assert readable(wakeups) == []
    for wakeup in wakeups:
        wakeup.listen(10)
    local.wake_one()
    assert readable(wakeups) == [wakeups[0]]
    assert wakeups[0].is_notified()
    assert not wakeups[0].is_notified()
    local.wake_one()
    assert readable(wakeups) == [wakeups[1]]


def test_the_wake_up_of_a_busy_thread_is_passed_on(local: LocalWakeup, wakeups: list[Wakeup]) -> None:
    for wakeup in wakeups:
        wakeup.listen(10)
    local.wake_one()
    wakeups[0].stop_listening()
    assert readable(wakeups) == [wakeups[1]]
    wakeups[1].stop_listening()
    assert readable(wakeups) == []


def test_a_local_wakeup_does_not_count_as_proven(wakeups: list[Wakeup]) -> None:
    assert not any(wakeup.proven for wakeup in wakeups)
