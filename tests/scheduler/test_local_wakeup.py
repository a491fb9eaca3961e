"""The bells of one process."""

from __future__ import annotations

import select
from collections.abc import Iterator

import pytest

from psched.backends import open_stores
from psched.scheduler.local_wakeup import LocalWakeup
from psched.store import StoreSettings, Wakeup


@pytest.fixture
def chime() -> LocalWakeup:
    """That of a store which calls nobody."""
    store = open_stores("rdb", StoreSettings("sqlite://", "test", queue="queue")).queue
    assert store is not None
    return LocalWakeup(store)


@pytest.fixture
def wakeups(chime: LocalWakeup) -> Iterator[list[Wakeup]]:
    """Two threads' bells."""
    found = [wakeup for wakeup in (chime.open_wakeup(), chime.open_wakeup()) if wakeup is not None]
    yield found
    for wakeup in found:
        wakeup.close()
        wakeup.close()


def readable(wakeups: list[Wakeup]) -> list[Wakeup]:
    return list(select.select(wakeups, [], [], 0)[0])


def test_a_ring_wakes_one_that_listens_and_the_next_ring_another(chime: LocalWakeup, wakeups: list[Wakeup]) -> None:
    chime.ring()
    assert readable(wakeups) == []
    for wakeup in wakeups:
        wakeup.arm(10)
    chime.ring()
    assert readable(wakeups) == [wakeups[0]]
    assert wakeups[0].rang()
    assert not wakeups[0].rang()
    chime.ring()
    assert readable(wakeups) == [wakeups[1]]


def test_a_ring_that_came_to_a_busy_one_is_passed_on(chime: LocalWakeup, wakeups: list[Wakeup]) -> None:
    for wakeup in wakeups:
        wakeup.arm(10)
    chime.ring()
    wakeups[0].disarm()
    assert readable(wakeups) == [wakeups[1]]
    wakeups[1].disarm()
    assert readable(wakeups) == []


def test_it_is_not_taken_for_one_that_other_processes_ring(wakeups: list[Wakeup]) -> None:
    assert not any(wakeup.proven for wakeup in wakeups)
