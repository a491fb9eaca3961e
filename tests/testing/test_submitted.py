"""assert_submitted and assert_not_submitted."""

from __future__ import annotations

import re
from datetime import date

import pytest

import psched
from psched.queue.queue import Queue
from psched.testing import Drain, assert_not_submitted, assert_submitted

app = psched.App()


@app.task("report")
def report(region: str, *, day: date | None = None, copies: int = 1) -> None: ...


@app.task("video")
def video(name: str) -> None: ...


@app.task(re.compile("any.*"))
def anything(task: psched.Task) -> None: ...


@pytest.fixture
def psched_app() -> psched.App:
    return app


def test_a_submitted_task_is_returned(psched_queue: Queue, psched_drain: Drain) -> None:
    report.using(key="x-1", user="alice", priority=5).submit("north", day=date(2027, 1, 2))
    video.submit("north")
    assert assert_submitted(report).key == "x-1"
    assert assert_submitted(report, "north").key == "x-1"
    assert assert_submitted(report, region="north", day=date(2027, 1, 2)).key == "x-1"
    assert assert_submitted(report.using(key="x-1", user="alice", priority=5), region="north").key == "x-1"
    assert assert_submitted("report", region="north").key == "x-1"
    psched_drain()
    assert assert_submitted(report).status == "finished"


def test_the_failure_says_what_was_submitted_and_what_differs(psched_queue: Queue) -> None:
    report.using(key="x-1", priority=5).submit("north", day=date(2027, 1, 2))
    video.using(key="v-1").submit("a film")
    with pytest.raises(AssertionError) as caught:
        assert_submitted(report.using(priority=7), "south", day=date(2027, 1, 2))
    assert str(caught.value) == (
        "no task submitted as report('south', day=datetime.date(2027, 1, 2)) using priority=7; "
        "the test submitted these:\n"
        "  report(region='north', day='2027-01-02'), key x-1, waiting: "
        "region is 'north', not 'south'; priority is 5, not 7\n"
        "  video(name='a film'), key v-1, waiting"
    )


def test_the_failure_says_that_nothing_was_submitted(psched_queue: Queue) -> None:
    with pytest.raises(AssertionError, match=r"no task submitted as report\(region='x'\); the test submitted none"):
        assert_submitted(report, region="x")


def test_two_tasks_are_not_one(psched_queue: Queue) -> None:
    report.using(key="a").submit("north")
    report.using(key="b").submit("north")
    with pytest.raises(AssertionError, match=r"2 tasks, not one, submitted as report\(region='north'\)\n.*a, waiting"):
        assert_submitted(report, region="north")


def test_not_submitted(psched_queue: Queue) -> None:
    report.using(key="a").submit("north")
    assert_not_submitted(report, region="south")
    assert_not_submitted(video)
    with pytest.raises(AssertionError, match=r"a task was submitted as report\(region='north'\):\n  report\(region"):
        assert_not_submitted(report, region="north")


def test_wrong_arguments_are_refused(psched_queue: Queue) -> None:
    with pytest.raises(TypeError, match="regoin"):
        assert_not_submitted(report, regoin="north")
    with pytest.raises(TypeError, match="a type takes keyword arguments only"):
        assert_submitted("report", "north")
    with pytest.raises(psched.ConfigError, match="expected a task function or a type"):
        assert_submitted(anything)
    with pytest.raises(psched.ConfigError, match="expected a task function or a type"):
        assert_submitted(3)  # type: ignore[arg-type]


def test_the_fixture_is_needed() -> None:
    with pytest.raises(psched.ConfigError, match="the fixture psched_queue"):
        assert_submitted(report)
