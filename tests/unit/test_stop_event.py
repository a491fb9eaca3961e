"""A request to stop ends every wait, whatever else the wait is for."""

from __future__ import annotations

import itertools
import math
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from psched.execution import stop_event
from psched.execution.stop_event import StopEvent
from tests.few_descriptors import few_descriptors

LONG = 20.0
"""Seconds, longer than any wait here may take."""


@pytest.fixture
def order() -> Iterator[StopEvent]:
    with closing(StopEvent()) as order:
        yield order


@pytest.fixture
def ends() -> Iterator[tuple[int, int]]:
    """The two ends of a pipe."""
    reader, writer = os.pipe()
    yield reader, writer
    os.close(reader)
    os.close(writer)


def time_of(wait: Callable[[], object]) -> float:
    begun = time.monotonic()
    wait()
    return time.monotonic() - begun


def test_it_ends_waits_that_have_begun(order: StopEvent, ends: tuple[int, int]) -> None:
    threads = [threading.Thread(target=order.wait_for, args=([ends[0]], LONG)) for _ in range(3)]
    threads.append(threading.Thread(target=order.wait_for, args=([], LONG)))
    for thread in threads:
        thread.start()
    assert threads[0].is_alive()
    order.set()
    assert time_of(lambda: [thread.join(LONG) for thread in threads]) < LONG / 2
    assert not any(thread.is_alive() for thread in threads)


def test_it_ends_waits_that_begin_later(order: StopEvent, ends: tuple[int, int]) -> None:
    order.set()
    assert order.is_set()
    for _ in range(3):
        assert time_of(lambda: order.wait_for([ends[0]], LONG)) < LONG / 2
        assert time_of(lambda: order.wait_for([], LONG)) < LONG / 2


def test_what_becomes_readable_is_named(order: StopEvent, ends: tuple[int, int]) -> None:
    reader, writer = ends
    assert list(order.wait_for([reader], 0.01)) == []
    os.write(writer, b".")
    assert list(order.wait_for([reader], LONG)) == [reader]


def test_it_works_when_a_handler_has_closed_everything(order: StopEvent, ends: tuple[int, int]) -> None:
    order.wait_for([ends[0]], 0)
    os.close(order._descriptor())
    thread = threading.Thread(target=order.wait_for, args=([ends[0]], LONG))
    thread.start()
    order.set()
    thread.join(LONG)
    assert not thread.is_alive()


def test_what_was_closed_meanwhile_ends_the_wait(order: StopEvent, ends: tuple[int, int]) -> None:
    order.wait_for([ends[0]], 0)  # its own descriptors shall not have the numbers that are closed
    reader, writer = os.pipe()
    os.close(reader)
    os.close(writer)
    assert time_of(lambda: order.wait_for([reader], LONG)) < LONG / 2


def test_a_wait_does_not_go_on_to_the_next_whole_millisecond(order: StopEvent, ends: tuple[int, int]) -> None:
    took = math.inf
    deadline = time.monotonic() + 10
    while took >= 0.0019 and time.monotonic() < deadline:  # what keeps one of them longer is a busy machine
        begun = time.monotonic()
        assert order.wait_for([ends[0]], 0.0011) == []
        took = min(took, time.monotonic() - begun)
    assert 0.0011 <= took < 0.0019


def test_what_becomes_readable_within_the_last_millisecond_is_named(
    order: StopEvent, ends: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = ends
    monkeypatch.setattr(stop_event, "monotonic", lambda: 0.0)  # or a busy machine may take longer before the wait
    monkeypatch.setattr(order._set, "wait", lambda _: os.write(writer, b"."))
    assert list(order.wait_for([reader], 0.0009)) == [reader]


def test_a_step_is_retried_until_it_raises_nothing_and_each_error_is_logged_once_in_a_row(
    order: StopEvent, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [OSError("away"), OSError("away"), OSError("refused")]

    def step() -> None:
        if errors:
            raise errors.pop(0)

    order.retry("the step", step)
    assert caplog.messages == ["the step failed: away; retrying", "the step failed: refused; retrying"]


def test_a_stop_ends_the_retries(order: StopEvent) -> None:
    def step() -> None:
        order.set()
        raise OSError("away")

    order.retry("the step", step)
    assert order.is_set()


def test_a_step_that_fails_after_a_minute_is_logged_again(
    order: StopEvent, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(step=61.0)
    monkeypatch.setattr(stop_event, "monotonic", lambda: next(times))

    def step() -> None:
        if caplog.messages:
            order.set()
        raise ValueError("as told")

    order.retry("the step", step)
    assert caplog.messages == ["the step failed: as told; retrying"] * 2
    assert all(record.exc_info for record in caplog.records)


def test_without_free_descriptors_a_wait_ends_early(order: StopEvent, ends: tuple[int, int]) -> None:
    with few_descriptors(0):
        assert time_of(lambda: order.wait_for([ends[0]], LONG)) < LONG / 2, "or it would not notice the end"
        os.write(ends[1], b".")
        assert order.wait_for([ends[0]], LONG) == [ends[0]]
    order.set()
    assert time_of(lambda: order.wait_for([ends[1]], LONG)) < LONG / 2
