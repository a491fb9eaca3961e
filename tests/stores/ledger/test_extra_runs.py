"""An extra run, requested by `run_now`, moves no regular occurrence: the next one comes after the extra run."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

from psched.errors import ScheduleError
from psched.model import LeaseTimes, ScheduleRow
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import ScheduleStore
from psched.store.ledger import Ledger
from psched.task import Task, finish_many
from tests.daemon.harness import wait_for
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench

DAY = 86400


@pytest.fixture
def schedules(store: ScheduleStore) -> ScheduleCollection:
    return ScheduleCollection(store, LeaseTimes(300, 0, 300), Defaults("UTC"))


def polled(schedules: ScheduleCollection) -> Task:
    task = schedules.poll()
    assert task is not None
    return task


def extra_run(schedules: ScheduleCollection, key: str = "key") -> Task:
    """Request an extra run, and acquire it."""
    before = int(schedules.store.now())
    schedules[key].run_now()
    task = polled(schedules)
    assert before <= task.scheduled_time <= schedules.store.now()
    return task


def regular(schedules: ScheduleCollection, key: str = "key") -> tuple[int, float]:
    """Return the next regular occurrence, and when it is due."""
    row = schedules[key].metadata()
    assert not row.is_extra
    return row.next_time, row.next_run_time


def test_a_schedule_that_begins_in_a_month_begins_then(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=int(schedules.store.now()) + 30 * DAY, delay=7)
    first = regular(schedules)
    extra_run(schedules).finish()
    assert regular(schedules) == first
    assert schedules.poll() is None


def test_a_first_run_at_a_time_of_its_own_keeps_that(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF, next_run_time=FAR_OFF + 77.5)
    first = regular(schedules)
    extra_run(schedules).finish()
    assert regular(schedules) == first == (FAR_OFF + 1600, FAR_OFF + 77.5)


def ahead_of_time(schedules: ScheduleCollection) -> int:
    """Add a daily schedule that runs ten minutes before its occurrence, and is due now. Return the occurrence."""
    occurrence = (int(schedules.store.now()) + 300) // 60 * 60
    moment = time.gmtime(occurrence)
    schedules.add("key", "t", cron=f"{moment.tm_min} {moment.tm_hour} * * *", delay=-600)
    return occurrence


def test_an_occurrence_that_ran_ahead_of_its_time_does_not_run_again(schedules: ScheduleCollection) -> None:
    occurrence = ahead_of_time(schedules)
    task = polled(schedules)
    assert task.scheduled_time == occurrence
    task.finish()
    extra_run(schedules).finish()
    assert regular(schedules)[0] == occurrence + DAY
    assert [row.scheduled_time == occurrence for row in schedules.history("key")].count(True) == 1


def test_an_occurrence_that_failed_ahead_of_its_time_is_what_runs_now(schedules: ScheduleCollection) -> None:
    occurrence = ahead_of_time(schedules)
    polled(schedules).retry(1000, error="it broke")
    schedules["key"].run_now()
    task = polled(schedules)
    assert (task.scheduled_time, task.attempts) == (occurrence, 2)
    task.finish()
    assert regular(schedules)[0] == occurrence + DAY
    assert [(row.extra, row.detail) for row in schedules.history("key")] == [(False, "run-now")]


@pytest.mark.parametrize("verb", ["retry", "release", "give_back"])
def test_the_regular_occurrence_is_kept_while_the_extra_run_is_tried_again(
    schedules: ScheduleCollection, other: ScheduleStore, store: ScheduleStore, verb: str
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    first = regular(schedules)
    task = extra_run(schedules)
    node = schedules["key"].metadata().node
    assert node is not None
    actions: dict[str, Callable[[], Any]] = {
        "retry": lambda: task.retry(0, error="it broke"),
        "release": task.release,
        "give_back": lambda: other.give_back(node, [], 0),
    }
    actions[verb]()
    again = polled(schedules)
    assert (again.scheduled_time, again.attempts) == (task.scheduled_time, 2 if verb == "retry" else 1)
    again.finish()
    assert regular(schedules) == first
    [row] = schedules.history("key")
    assert (row.extra, row.attempts, row.previous) == (True, again.attempts, None)


def test_asking_twice_is_one_extra_run(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    first = regular(schedules)
    schedules["key"].run_now()
    schedules["key"].run_now()
    polled(schedules).finish()
    assert regular(schedules) == first
    assert schedules.poll() is None


CHANGES: list[tuple[dict[str, Any], tuple[int, float] | None]] = [
    ({"data": {"n": 2}}, None),
    ({"delay": 30}, (FAR_OFF + 1600, FAR_OFF + 1630)),
    ({"next_time": FAR_OFF + DAY}, (FAR_OFF + DAY + 1600, FAR_OFF + DAY + 1600)),
    ({"next_run_time": FAR_OFF}, (FAR_OFF + 1600, FAR_OFF)),
]


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize(("change", "expected"), CHANGES)
def test_what_is_changed_meanwhile_holds_for_the_regular_occurrences(
    schedules: ScheduleCollection, change: dict[str, Any], expected: tuple[int, float] | None, running: bool
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    first = regular(schedules)
    schedules["key"].run_now()
    task = polled(schedules) if running else None
    schedules["key"].modify(**change)
    (polled(schedules) if task is None else task).finish()
    assert regular(schedules) == (first if expected is None else expected)


def test_a_new_expression_meanwhile_gives_the_next_regular_occurrence(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    task = extra_run(schedules)
    schedules["key"].modify(cron="0 0 1 1 *")
    task.finish()
    moment = time.gmtime(regular(schedules)[0])
    assert (moment.tm_mon, moment.tm_mday, moment.tm_hour, moment.tm_min) == (1, 1, 0, 0)
    assert regular(schedules)[0] > schedules.store.now()


def test_a_paused_schedule_has_its_extra_run_and_stays_paused(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    first = regular(schedules)
    schedules["key"].pause()
    task = extra_run(schedules)
    task.retry(0, error="it broke")
    polled(schedules).finish()
    assert schedules["key"].metadata().paused
    assert schedules.poll() is None
    schedules["key"].resume()
    assert regular(schedules) == first


@pytest.mark.parametrize("running", [False, True])
def test_a_pause_that_begins_after_an_extra_run_was_asked_for_holds_for_it_too(
    schedules: ScheduleCollection, running: bool
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    first = regular(schedules)
    schedules["key"].run_now()
    task = polled(schedules) if running else None
    schedules["key"].pause()
    if task is not None:
        task.retry(0, error="it broke")
    assert schedules.poll() is None
    schedules["key"].resume()
    polled(schedules).finish()
    assert regular(schedules) == first


def test_a_pause_that_ends_during_an_extra_run_leaves_the_regular_occurrence_where_it_was(
    schedules: ScheduleCollection,
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    first = regular(schedules)
    schedules["key"].pause()
    task = extra_run(schedules)
    schedules["key"].resume()
    task.finish()
    assert regular(schedules) == first
    assert not schedules["key"].metadata().paused


@pytest.mark.parametrize(
    ("terms", "expected"),
    [
        ({}, [("finished", LONG_AGO)]),
        ({"catch_up": "latest"}, [("skipped", LONG_AGO), ("finished", None)]),
        ({"catch_up": "none", "max_lateness": 0}, [("skipped", LONG_AGO)]),
        ({"max_lateness": 5}, [("skipped", LONG_AGO)]),
    ],
)
def test_a_regular_occurrence_that_has_come_meanwhile_is_treated_as_its_policy_says(
    bench: Bench, schedules: ScheduleCollection, terms: dict[str, Any], expected: list[tuple[str, int | None]]
) -> None:
    schedules.add("key", "t", cron="40 */8 * * *", next_time=FAR_OFF, **terms)
    schedules["key"].run_now()
    came = LONG_AGO * 1000
    bench.write("key", regular_time=came, regular_due=came)
    task = polled(schedules)
    assert task.scheduled_time > LONG_AGO
    task.finish()
    assert regular(schedules) == (LONG_AGO, LONG_AGO)
    following = schedules.poll()
    if following is not None:
        following.finish()
    found = [(row.outcome, row.scheduled_time) for row in schedules.history("key") if not row.extra]
    assert [outcome for outcome, _ in found[: len(expected)]] == [outcome for outcome, _ in expected]
    assert found[0][1] == LONG_AGO


def test_the_ledger_tells_an_extra_run_from_the_regular_ones(
    schedules: ScheduleCollection, store: ScheduleStore, ledger: Ledger
) -> None:
    start = int(store.now()) // 60 * 60 - 120
    schedules.add("key", "t", cron="* * * * *", next_time=start)
    while (task := schedules.poll()) is not None:
        task.finish()
    last = schedules["key"].metadata().previous
    schedules["key"].modify(cron="0 0 1 1 *")
    pending = schedules["key"].metadata().next_time
    extra = extra_run(schedules)
    extra.finish()
    assert schedules["key"].metadata().previous == last
    [row] = [row for row in schedules.history("key") if row.extra]
    assert (row.scheduled_time, row.outcome, row.detail, row.previous) == (
        extra.scheduled_time,
        "finished",
        "run-now",
        last,
    )
    asked = ledger.changes("key")[-1]
    assert (asked.action, asked.pending, asked.first, asked.due) == ("run-now", pending, pending, pending)


def test_extra_runs_are_finished_together_with_others(schedules: ScheduleCollection, store: ScheduleStore) -> None:
    for key in ("extra", "other", "regular"):
        schedules.add(key, "t", cron="0 * * * *", next_time=FAR_OFF if key == "extra" else LONG_AGO)
    first = regular(schedules, "extra")
    schedules["extra"].run_now()
    tasks = schedules.source.poll_multi(3)
    assert finish_many(tasks, 1e12) == {}
    assert regular(schedules, "extra") == first
    assert {row.key: row.extra for row in schedules.history()} == {"extra": True, "other": False, "regular": False}


def test_an_extra_run_leaves_the_alarm_with_the_regular_occurrence(
    bench: Bench, schedules: ScheduleCollection, store: ScheduleStore
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF, alert_after=60)
    before = (bench.raw("key") or {})["alert_at"]
    task = extra_run(schedules)
    assert (bench.raw("key") or {})["alert_at"] == before == (FAR_OFF + 1660) * 1000
    assert store.alerts is not None
    assert store.alerts.overdue(10) == []
    bench.write("key", alert_at=LONG_AGO * 1000)
    [overdue] = store.alerts.unreported(10)
    assert overdue.scheduled_time == FAR_OFF + 1600
    assert store.alerts.claim(overdue, 60)
    store.alerts.mark_reported(overdue)
    assert store.alerts.unreported(10) == []
    task.finish()
    assert (bench.raw("key") or {})["alert_at"] == before


def test_a_schedule_deleted_during_its_extra_run_ends_with_the_regular_occurrence(
    schedules: ScheduleCollection, ledger: Ledger
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    extra_run(schedules)
    schedules["key"].delete()
    assert ledger.changes("key")[-1].pending == FAR_OFF + 1600


def test_no_extra_run_is_asked_for_during_a_run(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    extra_run(schedules)
    before: ScheduleRow = schedules["key"].metadata()
    with pytest.raises(ScheduleError, match="in progress"):
        schedules["key"].run_now()
    assert schedules["key"].metadata() == before


def test_extra_runs_asked_for_at_once_have_times_of_their_own(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF)
    begin, times = int(schedules.store.now()), []
    for _ in range(5):
        schedules["key"].run_now()
        task = wait_for(schedules.poll)
        assert task.scheduled_time <= schedules.store.now(), "it did not begin before its time"
        times.append(task.scheduled_time)
        task.finish()
    assert sorted(set(times)) == times
    assert [row.scheduled_time for row in schedules.history("key")] == times
    [verdict] = schedules.audit(begin, begin + 60)
    assert (verdict.violations, verdict.extra_runs) == ([], 5)
