"""Waits between attempts."""

from __future__ import annotations

from typing import Any

import pytest

import psched
from psched.retry_wait import Backoff


def test_waits_grow_by_the_factor_up_to_the_limit() -> None:
    backoff = Backoff(first=1, factor=2, limit=300, jitter=0)
    assert [backoff.seconds(n) for n in (0, 1, 2, 3, 9, 10, 5000)] == [1, 1, 2, 4, 256, 300, 300]


def test_a_number_is_the_wait_every_time() -> None:
    assert [Backoff.of(7).seconds(n) for n in (1, 2, 99)] == [7, 7, 7]
    assert Backoff.of(0).seconds(3) == 0


def test_jitter_shortens_a_wait_by_its_part_at_the_most() -> None:
    backoff = Backoff(first=10, factor=1, limit=10, jitter=0.2)
    assert [backoff.seconds(1, lambda chance=chance: chance) for chance in (0.0, 0.5, 1.0)] == [10, 9, 8]


@pytest.mark.parametrize(
    "wanted",
    [{"frist": 1}, {"first": -1}, {"factor": 0.5}, {"jitter": 2}, {"limit": "x"}, {"first": True}, -1, float("nan")],
)
def test_what_is_no_wait_is_refused(wanted: Any) -> None:
    with pytest.raises(ValueError, match="must be a number|unknown key"):
        Backoff.of(wanted)


def test_a_mapping_may_leave_out_what_is_usual() -> None:
    assert Backoff.of({"limit": 60}) == Backoff(1, 2, 60, 0.2)


def test_backoff_makes_a_wait_that_grows() -> None:
    assert psched.backoff(10, maximum=600) == Backoff(10, 2, 600, 0.2)
    with pytest.raises(ValueError, match="first must be a number from 0 to 1e"):
        psched.backoff(-1)
