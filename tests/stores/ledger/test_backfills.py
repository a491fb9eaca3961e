"""A backfill runs past occurrences that a schedule has not run, each once, beside the regular runs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pytest

from psched.errors import NotFoundError, PreemptedError, ScheduleError
from psched.insight import ScheduleInsight
from psched.model import LeaseTimes
from psched.schedules.audit_result import Kind, Verdict
from psched.schedules.backfills import BackfillState
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import RowChange, ScheduleStore
from psched.task import Task, finish_many
from tests.stores.bench import FAR_OFF, Bench, soon

DAY = 86400
FIRST = 1_600_041_600
"""Unix seconds: 2020-09-14 00:00 UTC."""
DAYS = [FIRST + n * DAY for n in range(10)]


@pytest.fixture
def schedules(store: ScheduleStore) -> ScheduleCollection:
    return ScheduleCollection(store, LeaseTimes(300, 0, 300), Defaults("UTC"))


def add(schedules: ScheduleCollection, next_time: int = FAR_OFF, **options: object) -> None:
    schedules.add("key", "t", cron="@daily", next_time=next_time, data={"n": 1}, **options)  # type: ignore[arg-type]


def next_task(schedules: ScheduleCollection) -> Task | None:
    """Acquire what is due now or within a second. The recorded begin of a run is late by a round trip at most."""
    while (task := schedules.poll()) is None and (wait := schedules.store.next_due()) is not None and wait < 1:
        time.sleep(wait)
    return task


def polled(schedules: ScheduleCollection) -> Task:
    task = next_task(schedules)
    assert task is not None
    return task


def run(schedules: ScheduleCollection, most: int = 100) -> list[int]:
    """Finish what is due. Return the occurrences."""
    times: list[int] = []
    while len(times) < most and (task := next_task(schedules)) is not None:
        times.append(task.scheduled_time)
        task.finish()
    return times


def started(
    schedules: ScheduleCollection, first: int, last: int, mode: str = "missing", **how: object
) -> BackfillState:
    found = schedules.backfills.start("key", DAYS[first], DAYS[last], mode, **how)  # type: ignore[arg-type]
    assert found is not None
    return found


def verdict_of(schedules: ScheduleCollection) -> Verdict:
    [verdict] = schedules.audit(0, int(schedules.store.now()))
    assert verdict.key == "key"
    return verdict


def of_backfills(schedules: ScheduleCollection) -> list[tuple[int, int | None]]:
    return [(row.scheduled_time, row.backfill) for row in schedules.history("key")]


def test_a_backfill_runs_each_missing_occurrence_once_in_order(schedules: ScheduleCollection) -> None:
    add(schedules)
    assert schedules.backfills.plan("key", DAYS[0], DAYS[4]).count == 5
    state = started(schedules, 0, 4)
    assert (state.name, state.first, state.last, state.done, state.left) == ("key:1", DAYS[0], DAYS[4], 0, 5)
    assert state.state == "waiting"
    task = polled(schedules)
    assert (task.key, task.backfill, task.type, task.data) == ("key", "key:1", "t", {"n": 1})
    assert (task.scheduled_time, task.waited) == (DAYS[0], None)
    assert schedules.poll() is None
    task.finish()
    assert [each.left for each in schedules.backfills.list("key")] == [4]
    assert run(schedules) == DAYS[1:5]
    [state] = schedules.backfills.list()
    assert (state.state, state.done, state.failed, state.left) == ("finished", 5, 0, 0)
    assert schedules.backfills.start("key", DAYS[0], DAYS[4]) is None
    assert of_backfills(schedules) == [(day, 1) for day in DAYS[:5]]
    assert {row.key for row in schedules.history()} == {"key"}
    verdict = verdict_of(schedules)
    assert (verdict.violations, verdict.ran, verdict.backfilled, verdict.notes) == ([], 5, 5, [])


def test_a_backfill_from_the_end_of_its_range_runs_the_last_occurrence_first(schedules: ScheduleCollection) -> None:
    add(schedules)
    started(schedules, 0, 4, reverse=True)
    assert run(schedules, 3) == [DAYS[4], DAYS[3], DAYS[2]]
    verdict = verdict_of(schedules)
    assert (verdict.violations, verdict.backfilled, len(verdict.notes)) == ([], 3, 1)
    assert [each.left for each in schedules.backfills.list("key")] == [2]
    assert run(schedules) == [DAYS[1], DAYS[0]]
    verdict = verdict_of(schedules)
    assert (verdict.violations, verdict.backfilled, len(verdict.notes)) == ([], 5, 0)


def test_as_many_occurrences_run_at_once_as_asked_for(schedules: ScheduleCollection) -> None:
    add(schedules)
    started(schedules, 0, 6, max_running=3)
    tasks = [polled(schedules) for _ in range(3)]
    assert schedules.poll() is None
    assert len({task.scheduled_time for task in tasks}) == 3
    finish_many(tasks, soon())
    assert sorted([task.scheduled_time for task in tasks] + run(schedules)) == DAYS[:7]
    verdict = verdict_of(schedules)
    assert (verdict.violations, verdict.ran) == ([], 7)
    started(schedules, 8, 8, max_running=3)
    assert run(schedules) == [DAYS[8]]


def test_what_ran_was_skipped_or_is_to_come_is_left_out(schedules: ScheduleCollection) -> None:
    """Only occurrences without a ledger entry, and occurrences that were skipped as too late, are missing."""
    add(schedules, DAYS[2], max_attempts=1, end=DAYS[8])
    polled(schedules).finish()
    polled(schedules).retry(0, "it broke")  # given up
    schedules["key"].pause()
    schedules["key"].resume()
    schedules["key"].modify(next_time=DAYS[5], max_lateness=60)
    assert schedules.poll() is None
    assert [row.detail for row in schedules.history("key")][-1:] == ["late"]
    schedules["key"].modify(max_lateness=None, end=None, next_time=FAR_OFF)
    assert schedules.backfills.plan("key", 0, FAR_OFF).total > 7
    missing = schedules.backfills.plan("key", DAYS[0], DAYS[9])
    assert missing.spans == ((DAYS[0], DAYS[1]), (DAYS[4], DAYS[9]))
    assert schedules.backfills.plan("key", DAYS[0], DAYS[9], "failed").spans == (
        (DAYS[0], DAYS[1]),
        (DAYS[3], DAYS[9]),
    )
    assert schedules.backfills.plan("key", DAYS[0], DAYS[9], "all").spans == ((DAYS[0], DAYS[9]),)
    schedules["key"].modify(next_time=DAYS[6])
    assert schedules.backfills.plan("key", DAYS[0], DAYS[9], "all").spans == ((DAYS[0], DAYS[5]),)


def test_an_occurrence_that_was_skipped_counts_as_run_once_a_backfill_has_run_it(schedules: ScheduleCollection) -> None:
    add(schedules, DAYS[0], max_lateness=60, end=DAYS[4])
    assert schedules.poll() is None
    verdict = verdict_of(schedules)
    assert (verdict.expected, verdict.skipped, verdict.reasons) == (5, 5, {"late"})
    started(schedules, 1, 2)
    assert run(schedules) == DAYS[1:3]
    verdict = verdict_of(schedules)
    assert (verdict.expected, verdict.skipped, verdict.ran, verdict.violations) == (5, 3, 2, [])
    schedules["key"].modify(cron="0 */12 * * *", next_time=FAR_OFF, end=None)
    started(schedules, 3, 4, "all")
    assert run(schedules, 3) == [DAYS[3], DAYS[3] + 43_200, DAYS[4]], "twelve o'clock was no occurrence before"
    assert verdict_of(schedules).skipped == 1


def test_an_occurrence_that_failed_is_proved_once_a_backfill_has_run_it(schedules: ScheduleCollection) -> None:
    add(schedules, DAYS[0], max_attempts=1, end=DAYS[2])
    polled(schedules).finish()
    polled(schedules).retry(0, "it broke")
    polled(schedules).finish()
    assert verdict_of(schedules).counts[Kind.FAILED] == 1
    started(schedules, 0, 2, "failed")
    assert schedules.backfills.start("key", DAYS[0], DAYS[2], "failed") is None
    polled(schedules).retry(0, "it broke again")
    verdict = verdict_of(schedules)
    assert [found.what for found in verdict.violations] == [
        "given up by the backfill key:1 after 1 attempts: it broke again"
    ]
    assert [each.failed for each in schedules.backfills.list("key")] == [1]
    started(schedules, 0, 2, "failed")
    assert run(schedules) == [DAYS[1]]
    verdict = verdict_of(schedules)
    assert (verdict.violations, verdict.ran, verdict.backfilled) == ([], 3, 1)
    assert started(schedules, 0, 2, "all").left == 3


def test_a_running_backfill_keeps_its_occurrences_to_itself(schedules: ScheduleCollection) -> None:
    add(schedules)
    started(schedules, 2, 5)
    task = polled(schedules)
    for mode in ("missing", "failed", "all"):
        assert schedules.backfills.start("key", DAYS[2], DAYS[5], mode) is None  # type: ignore[arg-type]
    assert started(schedules, 0, 7).left == 4
    task.finish()
    assert sorted(run(schedules)) == [*DAYS[:2], *DAYS[3:8]]
    assert verdict_of(schedules).violations == []


def test_a_backfill_that_is_started_twice_at_the_same_moment_is_started_once(
    schedules: ScheduleCollection, store: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(schedules)
    apply, others = store.apply, ScheduleCollection(store, LeaseTimes(300, 0), Defaults("UTC"))

    def late(changes: Sequence[RowChange]) -> list[str]:
        monkeypatch.setattr(store, "apply", apply)
        assert others.backfills.start("key", DAYS[0], DAYS[3]) is not None
        return apply(changes)

    monkeypatch.setattr(store, "apply", late)
    assert schedules.backfills.start("key", DAYS[0], DAYS[3]) is None
    assert run(schedules) == DAYS[:4]


def test_a_backfill_is_paused_resumed_and_cancelled(schedules: ScheduleCollection) -> None:
    add(schedules)
    started(schedules, 0, 9, max_running=2)
    task = polled(schedules)
    assert schedules.backfills.pause("key") == ["key:1"]
    assert schedules.backfills.pause("key", 1) == []
    task.finish()
    assert schedules.poll() is None
    assert [each.state for each in schedules.backfills.list("key")] == ["paused"]
    assert schedules.backfills.resume("key") == ["key:1"]
    tasks = [polled(schedules), polled(schedules)]
    tasks[0].finish()
    assert schedules.backfills.cancel("key", 1) == ["key:1"]
    assert schedules.backfills.cancel("key") == []
    tasks[1].finish()
    assert schedules.poll() is None
    [state] = schedules.backfills.list("key")
    assert (state.state, state.done, state.left) == ("cancelled", 3, 0)
    assert verdict_of(schedules).violations == []
    assert started(schedules, 0, 9).left == 7
    with pytest.raises(NotFoundError, match="no backfill 7; its backfills: 1, 2"):
        schedules.backfills.cancel("key", 7)


def test_the_schedule_may_change_and_be_deleted_meanwhile(schedules: ScheduleCollection) -> None:
    """A backfill runs with the values of its start, until the schedule is deleted."""
    add(schedules)
    started(schedules, 0, 4)
    schedules["key"].modify(type="other", data={"n": 2}, cron="@hourly")
    schedules["key"].pause()
    task = polled(schedules)
    assert (task.type, task.data) == ("t", {"n": 1})
    schedules["key"].delete()
    task.finish()
    assert schedules.poll() is None
    assert list(schedules.backfills.list()) == []
    assert verdict_of(schedules).violations == []
    add(schedules)
    assert started(schedules, 0, 4).name == "key:2"
    assert run(schedules) == DAYS[1:5]


def test_schedules_that_are_overdue_come_before_a_backfill(schedules: ScheduleCollection) -> None:
    add(schedules)
    started(schedules, 0, 3)
    polled(schedules).finish()
    schedules.backfills.pause("key")
    schedules.backfills.resume("key")
    now = int(schedules.store.now())
    for number, begun in enumerate((DAYS[1], DAYS[2]), 1):
        schedules.add(f"due{number}", "t", cron="@every 1s", next_time=now - 10, end=now - 10)
        assert polled(schedules).key == f"due{number}"
        task = polled(schedules)
        assert task.scheduled_time == begun
        task.finish()


def test_a_backfill_is_no_schedule(bench: Bench, schedules: ScheduleCollection, store: ScheduleStore) -> None:
    add(schedules, alert_after=1, owner="me", tags=["x"])
    insight = ScheduleInsight(schedules)
    before = insight.counts()
    started(schedules, 0, 4, max_running=2)
    polled(schedules).retry(10_000, "it broke")
    polled(schedules)
    assert insight.counts() == before
    assert [row.key for row, _ in insight.rows(owner="me")] == ["key"]
    assert list(insight.failing()) == []
    assert insight.forecast(24).schedules == 1
    bench.make_due("backfill:key:1.1")
    assert store.long_due(60, 10) == schedules.overdue(10) == []
    assert store.alerts is not None
    assert store.alerts.overdue(10) == []
    words = {row.key: (state.word, state.is_overdue) for row, state in insight.rows() if row.is_backfill}
    assert words == {"backfill:key:1.1": ("failing", False), "backfill:key:1.2": ("running", False)}
    [state] = insight.backfills("key")
    assert (state.state, state.last_error) == ("failing", "it broke")
    part = schedules["backfill:key:1.1"]
    for change in (part.run_now, lambda: part.modify(cron="@hourly")):
        with pytest.raises(ScheduleError, match="is a backfill, which cannot be"):
            change()
    with pytest.raises(ValueError, match="audited with its schedule 'key'"):
        list(schedules.audit(0, 1, keys=[part.key]))
    with pytest.raises(ValueError, match="reserved for backfills"):
        schedules.add("backfill:mine", "t", cron="@daily")


def test_a_run_of_a_backfill_that_lost_its_lease_changes_nothing(bench: Bench, schedules: ScheduleCollection) -> None:
    add(schedules)
    started(schedules, 0, 2)
    lost = polled(ScheduleCollection(bench.open(), LeaseTimes(300, 0), Defaults("UTC")))
    bench.make_due(lost.lease.key)
    again = polled(schedules)
    assert (again.scheduled_time, again.attempts) == (DAYS[0], 2)
    with pytest.raises(PreemptedError):
        lost.finish()
    again.finish()
    assert run(schedules) == DAYS[1:3]
    assert verdict_of(schedules).violations == []


def test_the_audit_finds_what_a_backfill_has_passed_over(store: ScheduleStore, schedules: ScheduleCollection) -> None:
    add(schedules)
    started(schedules, 0, 4)
    run(schedules, 1)
    seen = schedules["backfill:key:1.1"].metadata()
    assert store.apply([RowChange(seen, replace(seen, next_time=DAYS[3]))]) == []
    run(schedules, 1)
    verdict = verdict_of(schedules)
    assert [(each.kind, each.time, each.last) for each in verdict.violations] == [(Kind.MISSING, DAYS[1], DAYS[2])]
    assert [note for note, _ in verdict.notes] == ["the backfill key:1 has occurrences left, the first at"]


def test_a_schedule_that_submits_tasks_submits_further_ones(schedules: ScheduleCollection) -> None:
    schedules.add("key", "enqueue.t", cron="@daily", next_time=FAR_OFF)
    started(schedules, 0, 0)
    assert polled(schedules).enqueued_key == f"backfill:key:1.1@{DAYS[0]}"


def test_values_that_cannot_be_used_are_named(schedules: ScheduleCollection) -> None:
    add(schedules)
    with pytest.raises(NotFoundError, match="no schedule has the key 'other'"):
        schedules.backfills.start("other", DAYS[0], DAYS[1])
    with pytest.raises(ValueError, match="max_running must be a whole number from 1 to 100, got 0"):
        schedules.backfills.start("key", DAYS[0], DAYS[1], max_running=0)
    with pytest.raises(ValueError, match="mode must be one of missing, failed, all, got 'some'"):
        schedules.backfills.plan("key", DAYS[0], DAYS[1], "some")  # type: ignore[arg-type]
    assert schedules.backfills.plan("key", DAYS[1], DAYS[0]).count == 0
