"""An occurrence that keeps failing is given up after `max_attempts`: this is recorded, and the schedule goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from psched.errors import IdempotentAlreadyFinishedError
from psched.model import LeaseTimes, Policy, ScheduleRow
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.schedules.settlement import ScheduleSettlement
from psched.store import ScheduleStore
from psched.task import Task
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, soon

FIRST = (LONG_AGO // 3600 + 1) * 3600


def collection(store: ScheduleStore, max_attempts: int | None = None) -> ScheduleCollection:
    return ScheduleCollection(store, LeaseTimes(300, 0, 300), Defaults("UTC", max_attempts=max_attempts))


@pytest.fixture
def schedules(store: ScheduleStore) -> ScheduleCollection:
    return collection(store)


def polled(schedules: ScheduleCollection) -> Task:
    task = schedules.poll()
    assert task is not None
    return task


def outcomes(schedules: ScheduleCollection) -> list[tuple[str, int, int]]:
    return [(row.outcome, row.scheduled_time, row.attempts) for row in schedules.history("key")]


def test_an_occurrence_is_tried_for_ever_unless_told_otherwise(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO)
    for attempt in range(1, 8):
        task = polled(schedules)
        assert (task.scheduled_time, task.attempts, task.last_attempt) == (FIRST, attempt, False)
        task.retry(error="it broke")
    assert outcomes(schedules) == []


def test_after_its_last_attempt_an_occurrence_has_failed_and_the_next_one_comes(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO, max_attempts=3, alert_after=60)
    for attempt in range(1, 4):
        task = polled(schedules)
        assert (task.scheduled_time, task.attempts, task.last_attempt) == (FIRST, attempt, attempt == 3)
        task.retry(error=f"it broke {attempt}")
    assert task.outcome == "failed"
    [entry] = schedules.history("key")
    assert (entry.outcome, entry.scheduled_time, entry.attempts, entry.error) == ("failed", FIRST, 3, "it broke 3")
    assert entry.started is not None
    assert [row.scheduled_time for row in schedules.history(failed=True)] == [FIRST]
    following = polled(schedules)
    assert (following.scheduled_time, following.attempts) == (FIRST + 3600, 1)
    row = schedules["key"].metadata()
    assert (row.previous, row.last_error) == (FIRST, None)
    following.finish()
    assert outcomes(schedules) == [("failed", FIRST, 3), ("finished", FIRST + 3600, 1)]


@pytest.mark.parametrize(
    ("own", "of_type", "configured", "allowed"), [(2, 3, 4, 2), (None, 3, 4, 3), (None, None, 4, 4)]
)
def test_what_the_schedule_says_comes_before_its_type_and_that_before_the_configuration(
    store: ScheduleStore, own: int | None, of_type: int | None, configured: int, allowed: int
) -> None:
    schedules = collection(store, configured)
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO, max_attempts=own)
    for attempt in range(1, allowed + 1):
        task = polled(schedules)
        task.max_attempts = of_type
        task.retry(error="it broke")
        assert task.outcome == ("failed" if attempt == allowed else "retried")
    assert outcomes(schedules) == [("failed", FIRST, allowed)]


def test_workers_that_died_have_used_attempts_up(schedules: ScheduleCollection, store: ScheduleStore) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO, max_attempts=2)
    for _ in range(2):
        task = polled(schedules)
        node = task.row.node
        assert node is not None
        assert store.give_back(node, ["key"], 0) == 1
    following = polled(schedules)
    assert following.scheduled_time == FIRST + 3600
    [entry] = schedules.history("key")
    assert (entry.outcome, entry.attempts) == ("failed", 2)
    assert entry.error is not None


@pytest.mark.parametrize("ended_by", ["give_back", "itself"])
def test_while_it_is_paused_no_occurrence_is_given_up(
    bench: Bench, schedules: ScheduleCollection, store: ScheduleStore, ended_by: str
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO, max_attempts=1)
    task = polled(schedules)
    schedules["key"].pause()
    if ended_by == "give_back":
        assert store.give_back(str(task.row.node), ["key"], 0) == 1
    else:
        bench.make_due("key")
    assert schedules.poll() is None
    row = schedules["key"].metadata()
    assert (row.next_time, row.attempts, row.status) == (FIRST, 1, "waiting")
    assert row.next_run_time > FAR_OFF
    assert outcomes(schedules) == []
    schedules["key"].resume()
    assert polled(schedules).scheduled_time == FIRST + 3600
    assert outcomes(schedules) == [("failed", FIRST, 1)]
    [verdict] = schedules.audit(FIRST, FIRST)
    assert [violation.kind for violation in verdict.violations] == ["failed"]


def test_a_run_that_run_now_asks_for_in_a_pause_is_given_up(
    schedules: ScheduleCollection, store: ScheduleStore
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF, max_attempts=1)
    schedules["key"].pause()
    schedules["key"].run_now()
    task = polled(schedules)
    assert store.give_back(str(task.row.node), ["key"], 0) == 1
    assert schedules.poll() is None
    assert [entry.outcome for entry in schedules.history("key")] == ["failed"]


@pytest.mark.parametrize(("change", "outcome"), [({"max_attempts": 9}, "retried"), ({"data": {"n": 2}}, "failed")])
def test_a_bound_that_was_changed_during_the_last_attempt_counts(
    schedules: ScheduleCollection, change: dict[str, Any], outcome: str
) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO, max_attempts=1)
    task = polled(schedules)
    schedules["key"].modify(**change)
    task.retry(error="it broke")
    assert task.outcome == outcome
    assert len(outcomes(schedules)) == (outcome == "failed")


def test_an_extra_run_that_is_given_up_leaves_the_regular_occurrence_where_it_is(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF, max_attempts=1)
    regular = schedules["key"].metadata().next_time
    schedules["key"].run_now()
    task = polled(schedules)
    task.retry(error="it broke")
    assert task.outcome == "failed"
    assert schedules["key"].metadata().next_time == regular
    [entry] = schedules.history("key")
    assert (entry.outcome, entry.extra, entry.scheduled_time) == ("failed", True, task.scheduled_time)
    assert entry.detail == "run-now"


def test_the_entry_of_a_failed_occurrence_says_that_run_now_asked_for_it(schedules: ScheduleCollection) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO, max_attempts=1)
    schedules["key"].run_now()
    polled(schedules).retry(error="it broke")
    assert [(row.outcome, row.extra, row.detail) for row in schedules.history("key")] == [("failed", False, "run-now")]


def test_what_could_not_be_begun_uses_no_attempt_up(bench: Bench, store: ScheduleStore) -> None:
    schedules = ScheduleCollection(store, LeaseTimes(300, 0, 300), Defaults("UTC"))
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO, max_attempts=1)
    bench.write("key", cron="61 * * * *")
    for _ in range(3):
        assert schedules.poll() is None
    row = schedules["key"].metadata()
    assert (row.next_time, row.attempts) == (FIRST, 0)
    assert row.last_error is not None
    bench.write("key", cron="0 * * * *")
    assert polled(schedules).attempts == 1
    assert outcomes(schedules) == []


def test_the_bound_is_on_record_with_the_definition(schedules: ScheduleCollection, store: ScheduleStore) -> None:
    schedules.add("key", "t", cron="0 * * * *", next_time=FAR_OFF, max_attempts=3)
    schedules["key"].modify(max_attempts=None)
    assert [change.policy.max_attempts for change in schedules.ledger.changes("key")] == [3, None]
    assert schedules["key"].metadata().policy == Policy()


def test_a_failed_occurrence_is_entered_once_though_it_is_reported_twice(store: ScheduleStore) -> None:
    schedules = collection(store, 1)
    schedules.add("key", "t", cron="0 * * * *", next_time=LONG_AGO)
    [claim] = store.acquire(1, 100)
    settlement = ScheduleSettlement(store, "vixie", max_attempts=1)
    assert isinstance(claim.row, ScheduleRow)
    assert settlement.fail(claim, "it broke", soon()) is None
    changed = claim._replace(row=replace(claim.row, rule=replace(claim.row.rule, delay=1)))
    with pytest.raises(IdempotentAlreadyFinishedError):
        settlement.fail(changed, "it broke", soon())
    assert outcomes(schedules) == [("failed", FIRST, 1)]
