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
def bells(chime: LocalWakeup) -> Iterator[list[Wakeup]]:
    """Two threads' bells."""
    found = [bell for bell in (chime.open_bell(), chime.open_bell()) if bell is not None]
    yield found
    for bell in found:
        bell.close()
        bell.close()


def readable(bells: list[Wakeup]) -> list[Wakeup]:
    return list(select.select(bells, [], [], 0)[0])


def test_a_ring_wakes_one_that_listens_and_the_next_ring_another(chime: LocalWakeup, bells: list[Wakeup]) -> None:
    chime.ring()
    assert readable(bells) == []
    for bell in bells:
        bell.arm(10)
    chime.ring()
    assert readable(bells) == [bells[0]]
    assert bells[0].rang()
    assert not bells[0].rang()
    chime.ring()
    assert readable(bells) == [bells[1]]


def test_a_ring_that_came_to_a_busy_one_is_passed_on(chime: LocalWakeup, bells: list[Wakeup]) -> None:
    for bell in bells:
        bell.arm(10)
    chime.ring()
    bells[0].disarm()
    assert readable(bells) == [bells[1]]
    bells[1].disarm()
    assert readable(bells) == []


def test_it_is_not_taken_for_one_that_other_processes_ring(bells: list[Wakeup]) -> None:
    assert not any(bell.proven for bell in bells)
