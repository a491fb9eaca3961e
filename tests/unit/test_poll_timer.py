"""When an idle poller polls again. The tests set the clock."""

from __future__ import annotations

import itertools

import pytest

from psched.execution.poll_timer import CALLED, PollTimer

INTERVAL = 1.0
LONGEST_DELAY = 0.01
"""The maximum number of seconds by which a poll is delayed after a wakeup, if earlier wakeups brought no row."""


class ManualClock:
    """A clock that stands still until the test moves it."""

    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class IdlePoller:
    """A poll timer whose random part of a pause is always the largest, with its clock."""

    def __init__(self, interval: float = INTERVAL) -> None:
        self.clock = ManualClock()
        self.timer = PollTimer(interval, self.clock, lambda low, high: high)

    def sleep(self) -> float:
        """Let time pass until the next poll. Return the seconds."""
        pause = self.timer.pause()
        self.clock.time += pause
        return round(pause, 6)


def test_the_first_poll_comes_at_once_and_acquires_without_asking_first() -> None:
    timer = IdlePoller().timer
    assert timer.pause() == 0
    assert not timer.checks_first


def test_with_nothing_due_it_polls_once_an_interval_and_asks_first() -> None:
    poller = IdlePoller()
    for _ in range(3):
        poller.timer.rest(None, called=False)
        assert poller.sleep() == 1.1
        assert poller.timer.checks_first


def test_a_row_that_is_due_within_the_interval_is_polled_for_when_it_is_due() -> None:
    poller = IdlePoller()
    poller.timer.rest(0.3, called=False)
    assert poller.sleep() == 0.3
    assert not poller.timer.checks_first


@pytest.mark.parametrize("early", ["check_within", "ignore_wakeups"])
def test_a_poll_before_a_row_is_due_does_not_delay_the_poll_when_it_is_due(early: str) -> None:
    poller = IdlePoller()
    poller.timer.rest(3, called=True)
    if early == "check_within":
        poller.timer.check_within(0.02)
    else:
        poller.timer.ignore_wakeups()
    early_by = 3 - poller.sleep()
    assert early_by > 1
    poller.timer.rest(early_by, called=True)
    assert poller.sleep() == round(early_by, 6)
    assert not poller.timer.checks_first


def test_the_duration_of_the_query_for_the_next_due_time_delays_nothing() -> None:
    poller = IdlePoller()
    poller.timer.rest(0.3, called=False, took=0.02)
    assert poller.sleep() == 0.28


def test_a_due_time_later_than_the_interval_is_queried_again() -> None:
    poller = IdlePoller()
    poller.timer.rest(1000, called=False)
    assert poller.sleep() == 1.1
    assert poller.timer.checks_first


def test_with_wake_ups_it_polls_rarely_and_still_when_a_row_is_due() -> None:
    poller = IdlePoller()
    poller.timer.rest(None, called=True)
    assert poller.timer.pause() == CALLED * 1.1
    poller.timer.rest(4, called=True)
    assert poller.timer.pause() == 4


def test_a_long_poll_interval_stays_with_wake_ups() -> None:
    poller = IdlePoller(interval=60)
    poller.timer.rest(None, called=True)
    assert poller.timer.pause() == 66


def test_a_due_row_that_only_others_may_acquire_is_polled_for_once_an_interval() -> None:
    poller = IdlePoller()
    for _ in range(3):
        poller.timer.rest(0.0, called=True)
        assert poller.sleep() == 1.1
        assert poller.timer.checks_first


def test_after_a_wake_up_it_polls_at_once() -> None:
    poller = IdlePoller()
    poller.timer.rest(None, called=True)
    poller.timer.wake()
    assert poller.timer.pause() == 0
    assert not poller.timer.checks_first


def test_after_wake_ups_without_a_row_polls_are_delayed_ever_more_and_ask_first() -> None:
    poller = IdlePoller()
    poller.timer.rest(None, called=True)
    delays = []
    for _ in range(20):
        poller.timer.wake()
        delays.append(poller.sleep())
        poller.timer.rest(None, called=True)
    assert delays[0] == 0
    assert delays[1:] == sorted(delays[1:])
    assert 0 < delays[1] < delays[-1] <= LONGEST_DELAY
    poller.timer.wake()
    assert poller.timer.checks_first


def test_a_wake_up_for_a_row_that_is_due_soon_does_not_delay_the_next_poll() -> None:
    poller = IdlePoller()
    poller.timer.rest(None, called=True)
    for wait in (5, 4, 3):
        poller.timer.wake()
        assert poller.sleep() == 0
        poller.timer.rest(wait, called=True)
    assert poller.sleep() == 3
    assert not poller.timer.checks_first
    poller.timer.rest(300, called=True)
    poller.timer.wake()
    assert poller.sleep() > 0, "another worker has acquired the row, and its lease ends later"


def test_after_a_row_was_acquired_the_next_poll_is_not_delayed() -> None:
    poller = IdlePoller()
    for _ in range(5):
        poller.timer.wake()
        poller.timer.rest(None, called=True)
    poller.timer.worked()
    poller.timer.rest(0.015, called=False)
    assert poller.sleep() == 0.015
    assert not poller.timer.checks_first


def test_after_rows_were_found_polls_are_frequent_and_then_ever_rarer() -> None:
    poller = IdlePoller()
    poller.timer.worked()
    begun, polls = poller.clock.time, []
    while poller.clock.time < begun + 60:
        poller.timer.rest(None, called=False)
        poller.sleep()
        polls.append(poller.clock.time - begun)
    pauses = [round(after - before, 6) for before, after in itertools.pairwise(polls)]
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.03
    assert pauses[-1] == pytest.approx(INTERVAL * 1.1)
    assert sum(time <= 1 for time in polls) <= 50
    assert len(polls) < 200


def test_after_a_wake_up_without_a_row_polls_are_frequent_for_a_moment_only() -> None:
    poller = IdlePoller()
    poller.timer.rest(None, called=False)
    poller.sleep()
    poller.timer.wake()
    begun, polls = poller.clock.time, []
    while poller.clock.time < begun + 2:
        poller.timer.rest(None, called=False)
        poller.sleep()
        polls.append(poller.clock.time - begun)
    assert sum(time < 0.15 for time in polls) in range(4, 8)
    assert sum(time >= 0.15 for time in polls) <= 3


def test_while_rows_come_frequent_polls_wait_for_no_known_due_time() -> None:
    poller = IdlePoller()
    poller.timer.worked()
    poller.timer.rest(0.5, called=False)
    assert poller.timer.pause() < 0.03
    assert poller.timer.checks_first


def test_slow_polls_are_rarer() -> None:
    poller = IdlePoller()
    poller.timer.worked()
    poller.timer.rest(None, called=False, took=0.01)
    assert poller.timer.pause() > 0.2


def test_with_wake_ups_polls_are_not_frequent_after_rows() -> None:
    poller = IdlePoller()
    poller.timer.worked()
    poller.timer.rest(None, called=True)
    assert poller.timer.pause() > CALLED


def test_polls_without_a_row_do_not_delay_the_poll_after_a_wake_up() -> None:
    poller = IdlePoller()
    for _ in range(5):
        poller.timer.rest(None, called=False)
        poller.sleep()
    poller.timer.wake()
    assert poller.timer.pause() == 0


def test_wake_ups_during_a_delay_change_nothing() -> None:
    poller = IdlePoller()
    poller.timer.wake()
    poller.timer.rest(None, called=True)
    poller.timer.wake()
    before = poller.timer.pause()
    poller.timer.wake()
    assert poller.timer.pause() == before


def test_without_further_wake_ups_it_polls_an_interval_after_the_last_poll() -> None:
    poller = IdlePoller()
    poller.timer.rest(None, called=True)
    poller.clock.time += 0.4
    poller.timer.ignore_wakeups()
    assert round(poller.timer.pause(), 9) == round(INTERVAL * 1.1 - 0.4, 9)


def test_after_a_failure_of_the_database_it_polls_after_that_many_intervals() -> None:
    poller = IdlePoller()
    poller.timer.back_off(3)
    assert poller.sleep() == 3.3
    assert poller.timer.checks_first


def test_wake_ups_after_a_failure_do_not_cause_polls_in_a_tight_loop() -> None:
    """On SQLite a failed write to a full disk changes the WAL file, so each failed poll causes a wake-up."""
    poller = IdlePoller()
    slept = []
    for failures in range(4):
        poller.timer.back_off(2**failures)
        poller.timer.wake()
        poller.timer.check_within(0.0)
        slept.append(poller.sleep())
    assert slept == [1.0, 1.0, 1.0, 1.0]


def test_wake_ups_after_a_failure_do_not_lengthen_a_short_pause() -> None:
    poller = IdlePoller(interval=0.1)
    poller.timer.back_off(1)
    poller.timer.wake()
    assert poller.sleep() == 0.11


def test_after_a_failure_expected_rows_are_polled_for_at_once() -> None:
    poller = IdlePoller()
    poller.timer.back_off(4)
    poller.timer.poll_now()
    assert poller.sleep() == 0


def test_after_a_failure_and_an_answer_a_wake_up_causes_a_poll_at_once() -> None:
    poller = IdlePoller()
    poller.timer.back_off(4)
    poller.clock.time += 0.5
    poller.timer.poll_now()
    poller.timer.rest(None, called=True)
    poller.timer.wake()
    assert poller.sleep() == 0
