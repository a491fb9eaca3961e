"""Occurrences that do not run in time: options, pauses, extra runs. On SQLite in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from psched.backends import open_stores
from psched.errors import NotSupportedError, ScheduleError
from psched.insight import ScheduleInsight
from psched.model import LeaseTimes, NewSchedule, Policy, Rule, ScheduleRow
from psched.schedules.audit_result import Verdict
from psched.schedules.backfills import BackfillMode
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.schedules.settlement import PAUSE_RETRY
from psched.schedules.skip_policy import skip_entry
from psched.schedules_file.declared import DeclaredSchedules
from psched.schedules_file.plan import apply_declared
from psched.store import RowChange, StoreSettings
from psched.store.ledger import LedgerRow
from psched.testing.database_clock import DatabaseClock
from tests.prepared_sqlite import make_tables_in_memory

MINUTE = 60
NOW = 1_795_433_760 + 20.5
"""Unix seconds, in the middle of a minute. The database's clock stands still, so a slow test stays in this minute."""


@pytest.fixture(autouse=True)
def clock() -> Iterator[DatabaseClock]:
    clock = DatabaseClock()
    clock.travel_to(NOW)
    clock.start()
    yield clock
    clock.stop()


@pytest.fixture
def schedules() -> Iterator[ScheduleCollection]:
    settings = StoreSettings("sqlite://", "host/test/1", schedules="s", reckoning="vixie x")
    store = open_stores("rdb", settings).schedules
    assert store is not None
    make_tables_in_memory(store, "s")
    with ScheduleCollection(store, LeaseTimes(300, 300, 300), Defaults("UTC")) as collection:
        yield collection


def ago(minutes: int) -> int:
    """Return the begin of the minute `minutes` minutes ago."""
    return (int(NOW) // MINUTE - minutes) * MINUTE


def work(schedules: ScheduleCollection) -> list[int]:
    """Run all due occurrences, and return them."""
    times = []
    while (task := schedules.poll()) is not None:
        times.append(task.scheduled_time)
        task.finish()
    return times


def entries(schedules: ScheduleCollection) -> list[tuple[str, str | None, int, int | None]]:
    return [(row.outcome, row.detail, row.scheduled_time, row.count) for row in schedules.history("a")]


def verdict(schedules: ScheduleCollection) -> Verdict:
    [found] = schedules.audit(0, int(schedules.store.now()), keys=["a"])
    return found


def test_all_missed_occurrences_run_by_default(schedules: ScheduleCollection) -> None:
    start = ago(5)
    schedules.add("a", "t", cron="* * * * *", next_time=start)
    assert work(schedules) == [start + n * MINUTE for n in range(6)]
    assert verdict(schedules).violations == []


def test_only_the_latest_due_occurrence_runs(schedules: ScheduleCollection) -> None:
    start = ago(5)
    schedules.add("a", "t", cron="* * * * *", next_time=start, catch_up="latest")
    assert work(schedules) == [ago(0)]
    assert entries(schedules) == [("skipped", "superseded", start, 5), ("finished", None, ago(0), 1)]
    assert verdict(schedules).violations == []
    assert verdict(schedules).skipped == 5


def test_no_occurrence_more_than_a_minute_late_runs() -> None:
    rule = Rule("0 * * * *", "UTC", 5)
    row = ScheduleRow("a", "t", {}, "running", 1, rule=rule, next_time=0, next_run_time=0, policy=Policy("none"))
    assert skip_entry(row, 65, "vixie") is None
    late = skip_entry(row, 65.1, "vixie")
    assert late is not None
    assert (late.detail, late.last, late.count) == ("late", None, 1)


def test_an_occurrence_that_would_begin_too_late_is_skipped(schedules: ScheduleCollection) -> None:
    start = ago(10)
    schedules.add("a", "t", cron="* * * * *", next_time=start, max_lateness=150)
    assert work(schedules) == [ago(2), ago(1), ago(0)]
    assert entries(schedules)[0] == ("skipped", "late", start, 8)
    assert verdict(schedules).violations == []


def test_an_occurrence_begun_in_time_is_retried_however_late() -> None:
    rule, policy = Rule("0 * * * *", "UTC"), Policy("all", 1)
    row = ScheduleRow("a", "t", {}, "running", 2, rule=rule, next_time=0, next_run_time=0, policy=policy)
    assert skip_entry(row, 1e6, "vixie") is None


def test_a_year_of_seconds_is_skipped_at_once(schedules: ScheduleCollection) -> None:
    start = int(NOW) - 365 * 86400
    schedules.add("a", "t", cron="* * * * * *", next_time=start, catch_up="latest")
    task = schedules.poll()
    assert task is not None
    assert task.scheduled_time == int(NOW)
    task.finish()
    first: LedgerRow = next(schedules.history("a"))
    assert (first.scheduled_time, first.count) == (start, None)
    assert first.last is not None
    assert task.scheduled_time - first.last == 1
    assert verdict(schedules).violations == []


@pytest.mark.parametrize(
    ("policy", "now", "expected"),
    [
        (Policy(), 1e6, None),
        (Policy("latest"), 59.9, None),
        (Policy("latest"), 62, ("superseded", None, 1)),
        (Policy("latest"), 125, ("superseded", 60, 2)),
        (Policy("none"), 61, None),
        (Policy("none"), 181, ("superseded", 60, 2)),
        (Policy("none", 10), 12.1, ("late", None, 1)),
        (Policy("all", 30), 32, None),
        (Policy("all", 30), 100, ("late", 60, 2)),
    ],
)
def test_which_occurrences_are_skipped(policy: Policy, now: float, expected: Any) -> None:
    rule = Rule("* * * * *", "UTC", 2)
    row = ScheduleRow("a", "t", {}, "running", 1, rule=rule, next_time=0, next_run_time=0, policy=policy)
    found = skip_entry(row, now, "vixie")
    assert (None if found is None else (found.detail, found.last, found.count)) == expected


@pytest.mark.parametrize(
    "terms", [{"catch_up": "some"}, {"max_lateness": -1}, {"alert_after": "soon"}, {"max_lateness": float("nan")}]
)
def test_an_unusable_policy_is_refused(schedules: ScheduleCollection, terms: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(terms))):
        schedules.add("a", "t", cron="* * * * *", **terms)
    assert not schedules["a"].exists()


def test_modify_changes_only_the_terms_that_are_given(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="* * * * *", catch_up="latest", max_lateness=5, alert_after=7)
    schedules["a"].modify(max_lateness=None)
    assert schedules["a"].metadata().policy == Policy("latest", None, 7)
    schedules["a"].modify(delay=3)
    assert schedules["a"].metadata().policy == Policy("latest", None, 7)


def test_occurrences_of_a_pause_are_skipped_and_those_before_are_caught_up(schedules: ScheduleCollection) -> None:
    start = ago(5)
    schedules.add("a", "t", cron="* * * * * *", next_time=start)
    task = schedules.poll()
    assert task is not None
    task.finish()
    schedules["a"].modify(cron="* * * * *")
    schedules["a"].pause()
    assert schedules["a"].metadata().paused
    assert schedules.poll() is None
    schedules["a"].pause()
    assert [change.action for change in schedules.ledger.changes("a")] == ["add", "modify", "pause"]
    schedules["a"].resume()
    assert work(schedules)[0] == start + 1
    assert not schedules["a"].metadata().paused
    assert verdict(schedules).violations == []


def test_the_occurrences_of_a_pause_are_one_ledger_entry(schedules: ScheduleCollection, clock: DatabaseClock) -> None:
    first = int(NOW) + 2
    schedules.add("a", "t", cron="* * * * * *", next_time=first)
    schedules["a"].pause()
    clock.travel_to(first + 1.5)
    assert schedules.poll() is None
    schedules["a"].resume()
    assert entries(schedules) == [("skipped", "paused", first, 2)]
    row = schedules["a"].metadata()
    assert row.next_time == row.next_run_time == first + 2
    assert verdict(schedules).violations == []


def test_a_pause_takes_effect_after_the_run_in_progress(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="* * * * *", next_time=ago(3))
    task = schedules.poll()
    assert task is not None
    schedules["a"].pause()
    task.finish()
    assert schedules.poll() is None
    row = schedules["a"].metadata()
    assert (row.paused, row.attempts, row.next_time) == (True, 0, ago(2))
    schedules["a"].resume()
    assert ago(2) in work(schedules)


def test_a_change_leaves_a_pause_as_it_is(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="0 0 1 1 *")
    schedules["a"].pause()
    due = schedules["a"].metadata().next_run_time
    schedules["a"].modify(cron="* * * * *")
    schedules["a"].modify(next_time=ago(5))
    assert schedules["a"].metadata().next_run_time == due
    assert schedules.poll() is None
    with pytest.raises(ScheduleError, match="paused"):
        schedules["a"].modify(next_run_time=5)


@pytest.mark.parametrize("pausing", [False, True])
def test_an_extra_run_moves_no_regular_occurrence(schedules: ScheduleCollection, pausing: bool) -> None:
    schedules.add("a", "t", cron="0 0 1 1 *")
    regular = schedules["a"].metadata().next_time
    if pausing:
        schedules["a"].pause()
    schedules["a"].run_now()
    task = schedules.poll()
    assert task is not None
    assert task.scheduled_time == int(NOW)
    with pytest.raises(ScheduleError, match="in progress"):
        schedules["a"].run_now()
    task.finish()
    assert schedules["a"].metadata().next_time == regular
    assert schedules["a"].metadata().paused == pausing
    assert schedules.poll() is None
    assert entries(schedules) == [("finished", "run-now", task.scheduled_time, 1)]
    assert verdict(schedules).violations == []


def test_the_audit_accepts_an_extra_run_between_regular_ones(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="* * * * *", next_time=ago(3))
    work(schedules)
    schedules["a"].modify(cron="0 0 1 1 *")
    schedules["a"].run_now()
    [extra] = work(schedules)
    found = verdict(schedules)
    assert (found.violations, found.last) == ([], extra)
    assert [row.scheduled_time for row in schedules.history("a") if row.extra] == [extra]


def test_run_now_runs_an_occurrence_that_has_come_instead_of_an_extra_one(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="* * * * *", next_time=ago(5), next_run_time=NOW + 500, catch_up="latest")
    assert schedules.poll() is None
    schedules["a"].run_now()
    task = schedules.poll()
    assert task is not None
    assert task.scheduled_time == ago(5)


def test_a_store_without_policies_refuses_policies_pauses_and_run_now() -> None:
    store = open_stores("rdb_compat", StoreSettings("sqlite://", "host/test/1", schedules="s")).schedules
    assert store is not None
    store.create_tables()
    with ScheduleCollection(store, LeaseTimes(300, 300, 300), Defaults("UTC")) as schedules:
        with pytest.raises(NotSupportedError, match="keeps no catch_up"):
            schedules.add("a", "t", cron="* * * * *", catch_up="latest")
        schedules.add("a", "t", cron="* * * * *")
        for verb in (schedules["a"].pause, schedules["a"].resume, schedules["a"].run_now):
            with pytest.raises(NotSupportedError, match="type: rdb"):
                verb()


def test_a_change_of_a_calendar_reaches_the_schedules_after_one_that_is_deleted_meanwhile(
    schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    schedules.calendars.set("holidays", ["2027-01-01"])
    for key in ("a", "b"):
        schedules.add(key, "t", cron="* * * * *", next_time=ago(-1), exclude=["holidays"])
    get = schedules.store.get

    def get_and_delete(key: str) -> ScheduleRow | None:
        row = get(key)
        if key == "a" and row is not None:
            schedules.store.delete(key)
        return row

    monkeypatch.setattr(schedules.store, "get", get_and_delete)
    schedules.calendars.set("holidays", ["2027-01-02"])
    [row] = schedules.list()
    assert (row.key, row.rule.exclude[0].dates) == ("b", ("2027-01-02",))


def test_a_pause_that_could_not_be_written_is_written_before_the_schedule_runs_again(
    schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch, clock: DatabaseClock
) -> None:
    schedules.add("a", "t", cron="* * * * *", next_time=ago(5), max_attempts=1, pause_after=1)

    def fail(*arguments: Any) -> bool:
        raise OSError("the connection is gone")

    with monkeypatch.context() as broken:
        broken.setattr(schedules.store, "modify", fail)
        task = schedules.poll()
        assert task is not None
        task.retry(error="it broke")
        assert task.outcome == "failed"
        assert schedules.poll() is None
    assert not schedules["a"].metadata().paused
    clock.travel_to(NOW + PAUSE_RETRY)
    assert schedules.poll() is None
    row = schedules["a"].metadata()
    assert (row.paused, row.status, row.attempts) == (True, "waiting", 0)
    schedules["a"].resume()
    assert work(schedules) == [ago(number) for number in (4, 3, 2, 1, 0)]


def backfilled(schedules: ScheduleCollection, mode: BackfillMode = "missing", since: int = 20) -> list[int]:
    """Start a backfill up to now, and run what is due. Return the occurrences, each as a number of minutes ago."""
    schedules.backfills.start("a", ago(since), int(NOW), mode)
    return [(ago(0) - time) // MINUTE for time in work(schedules)]


def test_a_backfill_does_not_count_for_max_runs_and_ends_with_the_last_run_that_it_allows(
    schedules: ScheduleCollection,
) -> None:
    schedules.add("a", "t", cron="* * * * *", next_time=ago(9), max_runs=2)
    assert backfilled(schedules, since=12) == [9, 8, 12, 11, 10]
    row = schedules["a"].metadata()
    assert (row.runs, row.ended) == (2, True)
    assert backfilled(schedules) == [20, 19, 18, 17, 16, 15, 14, 13]
    assert backfilled(schedules, "all", since=9) == [9, 8]


def test_a_paused_schedule_can_be_backfilled_up_to_its_pause(
    schedules: ScheduleCollection, clock: DatabaseClock
) -> None:
    schedules.add("a", "t", cron="* * * * *", next_time=ago(-1))
    schedules["a"].pause()
    assert backfilled(schedules, since=2) == [2, 1, 0]
    clock.travel_to(NOW + 3 * MINUTE)
    assert schedules.backfills.plan("a", ago(2), ago(-3), "all").spans == ((ago(2), ago(0)),)
    schedules["a"].resume()
    assert schedules.backfills.plan("a", ago(2), ago(-3)).count == 0
    assert schedules.backfills.plan("a", ago(2), ago(-3), "all").spans == ((ago(2), ago(-3)),)


def test_a_backfill_runs_nothing_before_the_start_after_the_end_or_on_excluded_days(
    schedules: ScheduleCollection,
) -> None:
    day = ago(0) // 86400 * 86400
    schedules.calendars.set("off", ["2026-11-19"])
    schedules.add("a", "t", cron="0 0 * * *", start=day - 6 * 86400, end=day - 3 * 86400, exclude=["off"])
    excluded = 1_795_046_400
    assert day - 6 * 86400 < excluded < day - 3 * 86400
    days = [day - n * 86400 for n in (6, 5, 4, 3) if day - n * 86400 != excluded]
    schedules.backfills.start("a", day - 30 * 86400, int(NOW))
    assert work(schedules) == days


def test_a_backfill_neither_skips_by_overlap_nor_lets_a_regular_run_be_skipped(
    schedules: ScheduleCollection, clock: DatabaseClock
) -> None:
    schedules.add("a", "t", cron="* * * * *", next_time=ago(-1), overlap="skip", spread=50, max_lateness=1)
    schedules["a"].modify(spread=0, max_lateness=None)
    schedules.backfills.start("a", ago(2), int(NOW))
    task = schedules.poll()
    assert task is not None
    clock.travel_to(NOW + MINUTE)
    task.finish()
    assert sorted(work(schedules)) == [ago(1), ago(0), ago(-1)]
    assert {row.outcome for row in schedules.history("a")} == {"finished"}


def test_pause_after_pauses_a_backfill_and_not_its_schedule(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="* * * * *", next_time=ago(-1), pause_after=2, max_attempts=1)
    schedules.backfills.start("a", ago(3), int(NOW))
    for _ in range(2):
        task = schedules.poll()
        assert task is not None
        task.retry(error="it broke")
    assert schedules.poll() is None
    [state] = schedules.backfills.list("a")
    assert (state.state, state.failed, state.left) == ("paused", 2, 2)
    row = schedules["a"].metadata()
    assert (row.paused, row.failures) == (False, None)
    assert schedules.backfills.resume("a") == ["a:1"]
    assert work(schedules) == [ago(1), ago(0)]


def test_the_late_runs_of_a_schedule_include_failed_attempts_of_its_backfills(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="* * * * *", next_time=ago(-1), retry_wait=0)
    schedules.backfills.start("a", ago(2), int(NOW))
    task = schedules.poll()
    assert task is not None
    task.retry(error="it broke")
    assert work(schedules) == [ago(2), ago(1), ago(0)]
    insight = ScheduleInsight(schedules)
    [of_all] = insight.history(late=60)
    [of_key] = insight.history("a", late=60)
    assert of_key == of_all
    assert (of_key.key, of_key.backfill, of_key.scheduled_time, of_key.attempts) == ("a", 1, ago(2), 2)


def test_the_last_run_of_an_occurrence_decides_whether_a_backfill_runs_it(
    schedules: ScheduleCollection, clock: DatabaseClock
) -> None:
    schedules.add("a", "t", cron="* * * * *", next_time=ago(-1), max_attempts=1)
    schedules.backfills.start("a", ago(1), int(NOW))
    for seconds in (1, 2):
        task = schedules.poll()
        assert task is not None
        clock.travel_to(NOW + seconds)
        task.retry(error="it broke")
    schedules["a"].modify(next_time=ago(1), end=ago(1))
    assert work(schedules) == [ago(1)]
    schedules["a"].modify(end=None)
    assert schedules.backfills.plan("a", ago(1), ago(0), "failed").spans == ((ago(0), ago(0)),)


def test_a_plan_that_is_applied_while_a_backfill_starts_harms_neither(
    schedules: ScheduleCollection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The backfill reads the definition before the change, and writes its rows after the change."""
    schedules.add("a", "t", cron="* * * * *", next_time=ago(3), owner="me", data={"n": 1})
    regular = schedules.poll()
    assert regular is not None
    changed = NewSchedule("a", "other", "*/2 * * * *", data={"n": 2})
    apply = schedules.store.apply

    def late(changes: Sequence[RowChange]) -> list[str]:
        monkeypatch.setattr(schedules.store, "apply", apply)
        apply_declared(schedules, [DeclaredSchedules("jobs.yml", "me", (changed,), str)])
        return apply(changes)

    monkeypatch.setattr(schedules.store, "apply", late)
    assert schedules.backfills.start("a", ago(6), int(NOW)) is not None
    task = schedules.poll()
    assert task is not None
    assert (task.backfill, task.type, task.data, task.scheduled_time) == ("a:1", "t", {"n": 1}, ago(6))
    task.finish()
    regular.finish()
    assert sorted(work(schedules)) == [ago(5), ago(4), ago(2), ago(0)]
    [verdict] = schedules.audit(ago(6), int(NOW))
    assert (verdict.violations, verdict.ran, verdict.backfilled) == ([], 6, 3)
