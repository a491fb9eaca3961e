"""A schedule whose rule has no further occurrence has ended, on every store. The audit covers it up to its end."""

from __future__ import annotations

import pytest

from psched.insight import ScheduleInsight
from psched.model import NO_OCCURRENCE, LeaseTimes
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.schedules.derived_state import StateWord
from psched.store import ScheduleStore

ONCE = "@at 2020-09-13T12:26:40"
TIME = 1_600_000_000
"""The time of the only occurrence of `ONCE`, in unix seconds."""


@pytest.fixture
def schedules(store: ScheduleStore) -> ScheduleCollection:
    return ScheduleCollection(store, LeaseTimes(300, 0, 300), Defaults("UTC"))


def state(schedules: ScheduleCollection) -> StateWord:
    row = schedules["key"].metadata()
    assert [each.key for each in schedules.list(state="ended")] == (["key"] if row.ended and not row.paused else [])
    return schedules.state(row, schedules.store.now()).word


def run(schedules: ScheduleCollection) -> list[int]:
    """Finish all that is due. Return the occurrences."""
    times = []
    while (task := schedules.poll()) is not None:
        times.append(task.scheduled_time)
        task.finish()
    return times


def proved(schedules: ScheduleCollection, ran: int, extra: int = 0) -> bool:
    [verdict] = schedules.audit(0, int(schedules.store.now()), keys=["key"])
    return (verdict.violations, verdict.ran, verdict.extra_runs, verdict.pending) == ([], ran, extra, 0)


def test_a_moment_comes_once_and_then_the_schedule_has_ended(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron=ONCE, next_time=TIME - 100, alert_after=60)
    assert state(schedules) == "overdue"
    assert run(schedules) == [TIME]
    row = schedules["key"].metadata()
    assert (row.next_time, row.next_run_time, row.previous) == (NO_OCCURRENCE, NO_OCCURRENCE, TIME)
    assert state(schedules) == "ended"
    assert proved(schedules, 1)
    insight = ScheduleInsight(schedules)
    assert {name: insight.counts()[name].count for name in ("total", "due", "paused", "ended")} == {
        "total": 1, "due": 0, "paused": 0, "ended": 1,
    }  # fmt: skip
    assert [reason.word for reason in insight.details("key").waits] == ["ended"]
    assert list(insight.details("key").next_runs) == []
    assert sum(hour.starts for hour in insight.forecast().hours) == 0


def test_a_retry_of_the_last_occurrence_comes_before_the_end(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron=ONCE, next_time=TIME, max_attempts=2)
    for _ in range(2):
        task = schedules.poll()
        assert task is not None
        task.retry(error="it broke")
    assert schedules.poll() is None
    assert state(schedules) == "ended"
    [verdict] = schedules.audit(0, int(schedules.store.now()), keys=["key"])
    assert [(found.kind, found.time) for found in verdict.violations] == [("failed", TIME)]


def test_a_schedule_may_have_ended_when_it_is_added(
    schedules: ScheduleCollection, caplog: pytest.LogCaptureFixture
) -> None:
    schedules.add("key", "t", cron=ONCE)
    assert state(schedules) == "ended"
    assert "has no occurrence from now on" in caplog.text
    assert proved(schedules, 0)
    with pytest.raises(ValueError, match="no further occurrence"):
        schedules.add("other", "t", cron=ONCE, next_run_time=TIME)
    with pytest.raises(ValueError, match="no further occurrence"):
        schedules["key"].modify(next_run_time=TIME)


def test_what_has_ended_runs_on_request_and_by_another_rule(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron=ONCE, next_time=TIME)
    run(schedules)
    schedules["key"].run_now()
    assert state(schedules) == "due"
    [extra] = run(schedules)
    assert extra >= int(schedules.store.now()) - 60
    assert state(schedules) == "ended"
    assert schedules["key"].pause()
    assert state(schedules) == "paused"
    assert schedules["key"].resume()
    assert state(schedules) == "ended"
    schedules["key"].modify(delay=5)
    assert state(schedules) == "ended"
    schedules["key"].modify(cron="@every 10d")
    assert state(schedules) == "waiting"
    schedules["key"].modify(next_time=TIME, cron=ONCE, delay=0)
    assert run(schedules) == [TIME]
    assert state(schedules) == "ended"
    assert proved(schedules, 3, 1)
    schedules["key"].delete()
    assert proved(schedules, 3, 1)


@pytest.mark.parametrize("catch_up", ["all", "latest"])
def test_an_interval_runs_at_its_multiples(schedules: ScheduleCollection, catch_up: str) -> None:
    now = int(schedules.store.now())
    first = now // 86400 * 86400 - 10 * 86400 + 3600
    schedules.add("key", "t", cron="@every 1d phase 1h", timezone="Asia/Tokyo", next_time=first, catch_up=catch_up)
    times = run(schedules)
    expected = list(range(first, now + 1, 86400))
    assert times == (expected if catch_up == "all" else expected[-1:])
    assert state(schedules) == "waiting"
    assert proved(schedules, len(times))
