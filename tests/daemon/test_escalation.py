"""How a child is stopped: which signal is due when. No process runs, and the tests set the time."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import cast

import pytest

from psched.config import Settings
from psched.process.escalation import RELEASE, Escalation


def limits(silence: float, graceful: float | None) -> Settings:
    """Return settings with a kill interval of 2 s.

    `silence`: child_heartbeat_limit; `graceful`: child_graceful_kill_limit.
    """
    settings = SimpleNamespace(child_heartbeat_limit=silence, child_kill_interval=2, child_graceful_kill_limit=graceful)
    return cast("Settings", settings)


LIMITS = limits(silence=10, graceful=None)
BOUNDED = limits(silence=1000, graceful=30)


def orders(handle: Escalation, until: float, *, beating: bool = True) -> list[tuple[float, signal.Signals]]:
    """Tick every half second up to `until`.

    Return each order with its time. `beating`: whether the child sends heartbeats.
    """
    found = []
    now = 0.0
    while now <= until:
        if beating:
            handle.child_seen(now)
        order = handle.tick(now)
        if order is not None:
            found.append((now, order))
        now = round(now + 0.5, 3)
    return found


def test_a_beating_child_is_left_alone() -> None:
    assert orders(Escalation(LIMITS, 0), 100) == []


def test_a_graceful_stop_waits_for_ever() -> None:
    handle = Escalation(LIMITS, 0)
    handle.stop(immediate=False, now=0)
    assert orders(handle, 1000) == [(0, signal.SIGTERM)]
    assert handle.stopping


def test_an_immediate_stop_ends_in_a_kill_once_the_child_had_the_time_to_release() -> None:
    handle = Escalation(LIMITS, 0)
    handle.stop(immediate=True, now=0)
    assert orders(handle, 2 + RELEASE) == [(0, signal.SIGQUIT), (2 + RELEASE, signal.SIGKILL)]


def test_a_graceful_stop_turns_immediate_after_its_limit() -> None:
    handle = Escalation(BOUNDED, 0)
    handle.stop(immediate=False, now=0)
    assert orders(handle, 33.5) == [(0, signal.SIGTERM), (30, signal.SIGQUIT), (32 + RELEASE, signal.SIGKILL)]


def test_asking_again_hastens_and_never_delays() -> None:
    handle = Escalation(BOUNDED, 0)
    handle.stop(immediate=False, now=0)
    handle.stop(immediate=False, now=20)
    handle.stop(immediate=True, now=25)
    handle.stop(immediate=True, now=26)
    handle.stop(immediate=False, now=27)
    assert [when for when, order in orders(handle, 30) if order == signal.SIGKILL] == [25 + 2 + RELEASE]


def test_a_child_that_beats_is_checked_rarely_and_a_silent_one_often() -> None:
    handle = Escalation(LIMITS, 0)
    handle.tick(0)
    assert handle.deadline == 5
    assert handle.idle
    handle.tick(5)
    assert handle.deadline == 10
    assert not handle.idle
    handle.child_seen(7)
    handle.tick(7)
    assert handle.deadline == 12
    assert handle.idle
    handle.stop(immediate=False, now=8)
    handle.tick(8)
    assert not handle.idle


def test_a_silent_child_is_killed_whether_it_stops_or_not() -> None:
    for stopping in (False, True):
        handle = Escalation(LIMITS, 0)
        if stopping:
            handle.stop(immediate=False, now=0)
        assert orders(handle, 10, beating=False)[-1] == (10, signal.SIGKILL)
        assert handle.silent(10)


def test_a_child_is_killed_at_the_end_of_its_lifetime_which_a_suspension_of_the_host_prolongs() -> None:
    handle = Escalation(LIMITS, 0, lifetime=3)
    assert handle.tick(0) is None
    assert handle.deadline == 3
    handle.host_resumed(2)
    assert handle.tick(4.5) is None
    assert handle.deadline == 5
    assert handle.tick(5) == signal.SIGKILL


def test_a_killed_child_that_is_still_there_is_killed_again() -> None:
    assert orders(Escalation(LIMITS, 0), 20, beating=False) == [
        (10, signal.SIGKILL),
        (15, signal.SIGKILL),
        (20, signal.SIGKILL),
    ]


@pytest.mark.parametrize("limits", [LIMITS, BOUNDED])
@pytest.mark.parametrize("immediate", [None, False, True])
@pytest.mark.parametrize("beating", [False, True])
def test_nothing_is_due_before_the_deadline_and_every_order_comes_at_it(
    limits: Settings, immediate: bool | None, beating: bool
) -> None:
    """If the test ticks only at the deadlines, it gets the same orders as with frequent ticks."""

    def made() -> Escalation:
        handle = Escalation(limits, 0)
        if immediate is not None:
            handle.stop(immediate, 0)
        return handle

    expected = orders(made(), 60, beating=False)
    handle, found, now = made(), [], 0.0
    while now <= 60:
        order = handle.tick(now)
        if order is not None:
            found.append((now, order))
        assert handle.tick(now) is None
        assert handle.deadline > now
        now = handle.deadline
    assert found == expected
