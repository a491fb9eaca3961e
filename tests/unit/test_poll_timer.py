"""When an idle lane looks again. With a clock of the test's own."""

from __future__ import annotations

import itertools

import pytest

from psched.execution.poller import CALLED, PollTimer

INTERVAL = 1.0
SOON = 0.01
"""Nobody who may get a row is held back for longer than this (seconds)."""


class Hands:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class Watchman:
    """A vigil whose chance is always the greatest."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self.clock = Hands()
        self.timer = PollTimer(interval, self.clock, lambda low, high: high)

    def sleep(self) -> float:
        """Let time pass until the next look, and return how long that took."""
        pause = self.timer.pause()
        self.clock.time += pause
        return round(pause, 6)


def test_the_first_look_reaches_for_work_at_once() -> None:
    timer = Watchman().timer
    assert timer.pause() == 0
    assert not timer.checks_first


def test_with_nothing_due_it_looks_once_an_interval_and_asks_first() -> None:
    man = Watchman()
    for _ in range(3):
        man.timer.rest(None, called=False)
        assert man.sleep() == 1.1
        assert man.timer.checks_first


def test_what_is_due_sooner_than_the_interval_is_reached_for_when_it_is_due() -> None:
    man = Watchman()
    man.timer.rest(0.3, called=False)
    assert man.sleep() == 0.3
    assert not man.timer.checks_first


def test_how_long_the_question_took_delays_nothing() -> None:
    man = Watchman()
    man.timer.rest(0.3, called=False, took=0.02)
    assert man.sleep() == 0.28


def test_what_is_due_later_than_the_interval_is_asked_for_again() -> None:
    man = Watchman()
    man.timer.rest(1000, called=False)
    assert man.sleep() == 1.1
    assert man.timer.checks_first


def test_who_is_called_looks_rarely_and_still_wakes_for_what_is_due() -> None:
    man = Watchman()
    man.timer.rest(None, called=True)
    assert man.timer.pause() == CALLED * 1.1
    man.timer.rest(4, called=True)
    assert man.timer.pause() == 4


def test_a_long_poll_interval_stays_when_it_is_called() -> None:
    man = Watchman(interval=60)
    man.timer.rest(None, called=True)
    assert man.timer.pause() == 66


def test_what_is_due_but_for_others_is_looked_at_once_an_interval() -> None:
    man = Watchman()
    for _ in range(3):
        man.timer.rest(0.0, called=True)
        assert man.sleep() == 1.1
        assert man.timer.checks_first


def test_a_ring_wakes_at_once() -> None:
    man = Watchman()
    man.timer.rest(None, called=True)
    man.timer.wake()
    assert man.timer.pause() == 0
    assert not man.timer.checks_first


def test_who_came_for_nothing_holds_back_a_moment_and_asks_first() -> None:
    man = Watchman()
    man.timer.rest(None, called=True)
    delays = []
    for _ in range(20):
        man.timer.wake()
        delays.append(man.sleep())
        man.timer.rest(None, called=True)
    assert delays[0] == 0
    assert delays[1:] == sorted(delays[1:])
    assert 0 < delays[1] < delays[-1] <= SOON
    man.timer.wake()
    assert man.timer.checks_first


def test_a_ring_for_what_is_due_in_a_moment_is_not_in_vain() -> None:
    man = Watchman()
    man.timer.rest(None, called=True)
    for wait in (5, 4, 3):
        man.timer.wake()
        assert man.sleep() == 0
        man.timer.rest(wait, called=True)
    assert man.sleep() == 3
    assert not man.timer.checks_first
    man.timer.rest(300, called=True)
    man.timer.wake()
    assert man.sleep() > 0, "somebody else has taken it, and his lease ends later"


def test_who_got_something_goes_first_the_next_time() -> None:
    man = Watchman()
    for _ in range(5):
        man.timer.wake()
        man.timer.rest(None, called=True)
    man.timer.worked()
    man.timer.rest(0.015, called=False)
    assert man.sleep() == 0.015
    assert not man.timer.checks_first


def test_after_rows_were_found_polls_are_frequent_and_then_ever_rarer() -> None:
    man = Watchman()
    man.timer.worked()
    begun, polls = man.clock.time, []
    while man.clock.time < begun + 60:
        man.timer.rest(None, called=False)
        man.sleep()
        polls.append(man.clock.time - begun)
    pauses = [round(after - before, 6) for before, after in itertools.pairwise(polls)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.03
    assert pauses[-1] == pytest.approx(INTERVAL * 1.1)
    assert sum(time <= 1 for time in polls) <= 50
    assert len(polls) < 200


def test_after_a_wakeup_in_vain_polls_are_frequent_for_a_moment_only() -> None:
    man = Watchman()
    man.timer.rest(None, called=False)
    man.sleep()
    man.timer.wake()
    begun, polls = man.clock.time, []
    while man.clock.time < begun + 2:
        man.timer.rest(None, called=False)
        man.sleep()
        polls.append(man.clock.time - begun)
    assert sum(time < 0.15 for time in polls) in range(4, 8)
    assert sum(time >= 0.15 for time in polls) <= 3


def test_while_rows_come_frequent_polls_wait_for_no_known_due_time() -> None:
    man = Watchman()
    man.timer.worked()
    man.timer.rest(0.5, called=False)
    assert man.timer.pause() < 0.03
    assert man.timer.checks_first


def test_slow_polls_are_rarer() -> None:
    man = Watchman()
    man.timer.worked()
    man.timer.rest(None, called=False, took=0.01)
    assert man.timer.pause() > 0.2


def test_a_reliable_wakeup_makes_frequent_polls_unneeded() -> None:
    man = Watchman()
    man.timer.worked()
    man.timer.rest(None, called=True)
    assert man.timer.pause() > CALLED


def test_polls_that_find_nothing_hold_nobody_back() -> None:
    man = Watchman()
    for _ in range(5):
        man.timer.rest(None, called=False)
        man.sleep()
    man.timer.wake()
    assert man.timer.pause() == 0


def test_rings_while_it_holds_back_change_nothing() -> None:
    man = Watchman()
    man.timer.wake()
    man.timer.rest(None, called=True)
    man.timer.wake()
    before = man.timer.pause()
    man.timer.wake()
    assert man.timer.pause() == before


def test_who_is_not_called_any_more_looks_within_an_interval_of_the_last_look() -> None:
    man = Watchman()
    man.timer.rest(None, called=True)
    man.clock.time += 0.4
    man.timer.ignore_wakeups()
    assert round(man.timer.pause(), 9) == round(INTERVAL * 1.1 - 0.4, 9)


def test_a_database_that_fails_is_left_alone_for_intervals() -> None:
    man = Watchman()
    man.timer.back_off(3)
    assert man.sleep() == 3.3
    assert man.timer.checks_first
