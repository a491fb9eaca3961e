"""The options of a schedule hold on every store."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psched.insight import ScheduleInsight
from psched.model import NO_OCCURRENCE, LeaseTimes, NewSchedule, Policy, Rule, spread_offset
from psched.retry_wait import Backoff
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from psched.task import finish_many
from tests.stores.bench import Bench, soon

DAY = 86400
FIRST = 1_600_041_600
"""Unix seconds: 2020-09-14 00:00 UTC."""


@pytest.fixture
def schedules(store: ScheduleStore) -> ScheduleCollection:
    return ScheduleCollection(store, LeaseTimes(300, 0, 300), Defaults("UTC"))


def run(schedules: ScheduleCollection) -> list[int]:
    """Finish all that is due. Return the occurrences."""
    times = []
    while (task := schedules.poll()) is not None:
        times.append(task.scheduled_time)
        task.finish()
    return times


def proved(schedules: ScheduleCollection, ran: int, skipped: int = 0) -> bool:
    [verdict] = schedules.audit(0, int(schedules.store.now()), keys=["key"])
    return (verdict.violations, verdict.ran, verdict.skipped, verdict.pending) == ([], ran, skipped, 0)


def alert_at(bench: Bench) -> int:
    row = bench.raw("key")
    assert row is not None
    return int(row["alert_at"])


@pytest.mark.parametrize("catch_up", ["all", "latest"])
def test_occurrences_are_from_start_to_end(schedules: ScheduleCollection, catch_up: str) -> None:
    start, end = FIRST + DAY + 1, FIRST + 4 * DAY
    schedules.add("key", "t", cron="@daily", next_time=FIRST, start=start, end=end, catch_up=catch_up)
    row = schedules["key"].metadata()
    assert (row.next_time, row.rule.start, row.rule.end) == (FIRST + 2 * DAY, start, end)
    expected = [FIRST + 2 * DAY, FIRST + 3 * DAY, FIRST + 4 * DAY]
    assert run(schedules) == (expected if catch_up == "all" else expected[-1:])
    assert schedules["key"].metadata().next_time == NO_OCCURRENCE
    assert proved(schedules, *((3, 0) if catch_up == "all" else (1, 2)))
    schedules["key"].modify(end=None, next_time=FIRST + 5 * DAY)
    assert schedules["key"].metadata().rule == Rule("@daily", "UTC", start=start)
    schedules["key"].modify(end=FIRST + 5 * DAY + 0.5)
    assert run(schedules) == [FIRST + 5 * DAY]
    assert proved(schedules, *((4, 0) if catch_up == "all" else (2, 2)))
    assert [change.rule.end for change in schedules.ledger.changes("key")] == [end, None, FIRST + 5 * DAY + 0.5]


def test_a_spread_delays_the_run_and_all_that_is_counted_from_it(
    bench: Bench, store: ScheduleStore, schedules: ScheduleCollection
) -> None:
    offset = spread_offset("key", 3600) / 1000
    schedules.add("key", "t", cron="@daily", next_time=FIRST, delay=2.5, spread=3600, alert_after=60, max_lateness=DAY)
    row = schedules["key"].metadata()
    assert row.rule == Rule("@daily", "UTC", 2.5, spread=3600)
    assert row.next_run_time == pytest.approx(FIRST + 2.5 + offset, abs=0.001)
    alert = 1000 * (FIRST + 62.5 + offset)
    assert alert_at(bench) == pytest.approx(alert, abs=1)
    claim = bench.take(store, "key")
    schedules._settlement.finish(claim, float("inf"))
    row = schedules["key"].metadata()
    assert row.next_run_time == pytest.approx(FIRST + DAY + 2.5 + offset, abs=0.001)
    assert alert_at(bench) == pytest.approx(alert + 1000 * DAY, abs=1)
    [change] = schedules.ledger.changes("key")
    assert change.rule == row.rule
    schedules["key"].modify(spread=0)
    assert schedules["key"].metadata().rule == Rule("@daily", "UTC", 2.5)
    schedules["key"].modify(spread=60, delay=0)
    assert schedules["key"].metadata().rule == Rule("@daily", "UTC", spread=60)
    [verdict] = schedules.audit(0, int(store.now()), keys=["key"])
    assert {found.kind for found in verdict.violations} == {"missing"}


def test_the_forecast_knows_spread_and_end(schedules: ScheduleCollection) -> None:
    begin = int(schedules.store.now()) // 3600 * 3600 + 3600
    new = NewSchedule("", "t", f"@every 1d phase {begin % DAY}s", spread=7200, overlap="skip", on_failure="billing")
    schedules.add_many([new._replace(key=f"key{n}") for n in range(50)])
    schedules.add("ended", "t", cron=new.cron, end=FIRST)
    found = ScheduleInsight(schedules).forecast(24)
    later = sum(spread_offset(f"key{n}", 7200) >= 3_600_000 for n in range(50))
    assert [hour.starts for hour in found.hours[:3]] == [50 - later, later, 0]
    assert (found.schedules, found.may_skip) == (50, 50)
    assert {use.on_failure for use in schedules.store.reads.rules()} == {"billing"}
    details = ScheduleInsight(schedules).details("key1")
    assert details.next_runs[0].time == pytest.approx(begin + spread_offset("key1", 7200) / 1000, abs=0.001)
    row = schedules["key1"].metadata()
    assert replace(row.rule, spread=0) == Rule(new.cron, "UTC")


def test_a_schedule_ends_when_it_has_run_often_enough(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="@daily", next_time=FIRST, max_runs=3)
    assert len(ScheduleInsight(schedules).details("key").next_runs) == 3
    assert run(schedules) == [FIRST, FIRST + DAY, FIRST + 2 * DAY]
    row = schedules["key"].metadata()
    assert (row.ended, row.runs) == (True, 3)
    assert proved(schedules, 3)
    schedules["key"].run_now()
    assert len(run(schedules)) == 1
    assert schedules["key"].metadata().runs == 3
    schedules["key"].modify(max_runs=4)
    now = schedules.store.now()
    row = schedules["key"].metadata()
    assert now <= row.next_time <= now + DAY
    schedules["key"].modify(max_runs=3)
    assert schedules["key"].metadata().ended
    schedules["key"].modify(max_runs=None)
    assert (schedules["key"].metadata().ended, schedules["key"].metadata().runs) == (False, None)
    [verdict] = schedules.audit(0, int(schedules.store.now()), keys=["key"])
    assert (verdict.violations, verdict.ran, verdict.extra_runs) == ([], 4, 1)


def test_runs_are_counted_and_skips_are_not(bench: Bench, schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="@daily", next_time=FIRST, max_runs=2, catch_up="latest", max_attempts=1)
    task = schedules.poll()
    assert task is not None
    task.retry(error="it broke")
    row = schedules["key"].metadata()
    assert (row.runs, row.ended) == (1, False)
    others = [NewSchedule(f"other{n}", "t", "@daily", next_time=FIRST, max_runs=1) for n in range(3)]
    schedules.add_many([*others, NewSchedule("plain", "t", "@daily", next_time=FIRST)])
    tasks = schedules.poll_multi(10)
    assert finish_many(tasks, soon()) == {}
    assert [schedules[f"other{n}"].metadata().ended for n in range(3)] == [True] * 3
    assert schedules["plain"].metadata().runs is None


def test_max_runs_that_is_given_during_a_run_counts_that_run(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="@daily", next_time=FIRST)
    task = schedules.poll()
    assert task is not None
    schedules["key"].modify(max_runs=1)
    task.finish()
    row = schedules["key"].metadata()
    assert (row.ended, row.runs) == (True, 1)
    assert proved(schedules, 1)


def test_what_comes_due_before_the_run_before_is_settled_is_skipped(
    store: ScheduleStore, schedules: ScheduleCollection
) -> None:
    last = FIRST + 4 * DAY
    schedules.add("key", "t", cron="@daily", next_time=FIRST, end=last, overlap="skip", max_attempts=2, delay=60)
    task = schedules.poll()
    assert task is not None
    task.retry(error="it broke")  # a retry is part of the run
    assert run(schedules) == [FIRST]
    assert [(row.outcome, row.detail, row.scheduled_time, row.end) for row in schedules.history("key")] == [
        ("finished", None, FIRST, FIRST),
        ("skipped", "overlap", FIRST + DAY, last),
    ]
    assert proved(schedules, 1, 4)
    [verdict] = schedules.audit(FIRST + 2 * DAY, last, keys=["key"])
    assert (verdict.violations, verdict.skipped) == ([], 3)
    ahead = int(store.now()) + DAY
    schedules["key"].modify(end=None, next_time=ahead)
    schedules["key"].run_now()
    assert len(run(schedules)) == 1  # an extra run skips no regular occurrence
    assert schedules["key"].metadata().next_time >= ahead
    schedules["key"].modify(end=FIRST + DAY, next_time=FIRST)  # occurrences that are asked for again
    assert run(schedules) == [FIRST]
    schedules["key"].modify(overlap="wait", next_time=FIRST)
    assert run(schedules) == [FIRST, FIRST + DAY]
    assert schedules["key"].metadata().previous_ended is None


def test_failures_in_a_row_pause_a_schedule(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="@daily", next_time=FIRST, end=FIRST + 9 * DAY, max_attempts=1, pause_after=2)

    def occur(*errors: str | None) -> None:
        for error in errors:
            task = schedules.poll()
            assert task is not None
            task.finish() if error is None else task.retry(error=error)

    occur("first", None, "second")
    assert (schedules["key"].metadata().failures, schedules["key"].metadata().paused) == (1, False)
    occur("third")
    row = schedules["key"].metadata()
    assert (row.failures, row.paused) == (2, True)
    assert schedules.poll() is None
    assert [change.action for change in schedules.ledger.changes("key")] == ["add", "pause-after"]
    schedules["key"].run_now()
    occur("fourth")  # although it is paused
    assert schedules["key"].resume()
    assert schedules["key"].metadata().failures is None
    occur("fifth")
    assert not schedules["key"].metadata().paused
    schedules["key"].modify(pause_after=1)  # as often as it has failed already
    assert schedules.poll() is None
    assert schedules["key"].metadata().paused
    schedules["key"].modify(pause_after=None)
    schedules["key"].resume()
    assert len(run(schedules)) == 4
    [verdict] = schedules.audit(0, int(schedules.store.now()), keys=["key"])
    assert {violation.kind.value for violation in verdict.violations} == {"failed"}


def test_a_schedule_has_its_own_wait_and_time_limit(schedules: ScheduleCollection) -> None:
    growing = {"first": 2000, "factor": 2, "limit": 3000, "jitter": 0}
    schedules.add("key", "t", cron="@daily", next_time=FIRST, retry_wait=growing, timeout=90, on_failure="pager")
    task = schedules.poll()
    assert task is not None
    assert task.own_timeout == 90
    before = schedules.store.now()
    task.retry(error="it broke")
    assert 1999 < schedules["key"].metadata().next_run_time - before < 2600
    expected = Policy(retry_wait=Backoff(**growing), timeout=90, on_failure="pager")
    assert schedules["key"].metadata().policy == expected == schedules.ledger.changes("key")[0].policy
