"""What a poll returns if some due rows cannot be run. On SQLite in memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from psched.acquisition.task_source import TaskSource
from psched.backends import open_stores
from psched.errors import OutcomeUnknownError, PreemptedError
from psched.model import Claim, LeaseTimes, Policy, Rule
from psched.schedules.settlement import ScheduleSettlement
from psched.store import ScheduleStore, StoreSettings
from psched.task import Task, extend_many
from tests.prepared_sqlite import make_tables_in_memory

NOON = int(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp())


@pytest.fixture
def store() -> Iterator[ScheduleStore]:
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", schedules="psched_schedules")).schedules
    assert store is not None
    make_tables_in_memory(store, "psched_schedules")
    for number in range(5):
        store.add(f"broken {number}", "t", Rule("99 * * * *", "UTC"), NOON, NOON + number, {})
    yield store
    store.close()


def source(store: ScheduleStore, retry_wait: float) -> TaskSource:
    return TaskSource(store, ScheduleSettlement(store, "vixie"), LeaseTimes(60, retry_wait, 15))


def polled_first(source: TaskSource) -> Task | None:
    return next(iter(source.poll_multi(1)), None)


def test_what_cannot_be_run_keeps_nothing_behind_it_waiting(store: ScheduleStore) -> None:
    store.add("whole", "t", Rule("0 * * * *", "UTC"), NOON, NOON + 5, {})
    task = polled_first(source(store, retry_wait=300))
    assert task is not None
    assert task.key == "whole"


@pytest.mark.parametrize("ahead", [False, True])
def test_many_rows_that_cannot_be_run_take_few_acquires(
    store: ScheduleStore, monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    for number in range(5, 300):
        store.add(f"broken {number}", "t", Rule("99 * * * *", "UTC"), NOON, NOON + number, {})
    for key in ("first", "second", "third"):
        store.add(key, "t", Rule("0 * * * *", "UTC"), NOON, NOON + 1000, {})
    limits = []
    acquire = store.acquire

    def counted(limit: int, *arguments: Any, **options: Any) -> Sequence[Claim]:
        limits.append(limit)
        return acquire(limit, *arguments, **options)

    monkeypatch.setattr(store, "acquire", counted)
    tasks = source(store, retry_wait=300).poll_multi(1, ahead=ahead)
    assert len(tasks) == 1
    assert limits == [1, 4, 16, 64, 256]
    others = [row for row in store.list() if row.key in {"first", "second", "third"} - {tasks[0].key}]
    assert [(row.status, row.attempts, row.next_run_time) for row in others] == [("waiting", 0, NOON + 1000)] * 2
    assert len(source(store, retry_wait=300).poll_multi(2)) == 2, "what was acquired beyond the limit was not released"


def test_a_poll_ends_when_what_cannot_be_run_comes_back_at_once(store: ScheduleStore) -> None:
    assert polled_first(source(store, retry_wait=0)) is None
    assert all(row.status == "waiting" for row in store.list())


def test_a_run_whose_row_was_deleted_and_came_again_is_told_so_while_the_new_one_goes_on(store: ScheduleStore) -> None:
    polled = source(store, retry_wait=300)
    store.add("again", "t", Rule("0 * * * *", "UTC"), NOON, NOON, {})
    first = polled_first(polled)
    store.delete("again")
    store.add("again", "t", Rule("0 * * * *", "UTC"), NOON, NOON, {})
    second = polled_first(polled)
    assert (first and first.key, second and second.key) == ("again", "again")
    assert extend_many(polled.held) == [first]
    assert polled.held == [second]


def test_a_task_prefetched_does_not_begin_once_its_lease_is_found_lost(store: ScheduleStore) -> None:
    polled = source(store, retry_wait=300)
    for key in ("kept", "lost"):
        store.add(key, "t", Rule("0 * * * *", "UTC"), NOON, NOON, {})
    kept, lost = polled.poll_multi(10, ahead=True)
    store.delete("lost")
    assert extend_many([kept, lost]) == [lost]
    assert not lost.begin()
    assert not lost.started
    assert kept.begin()


def test_a_release_that_was_never_answered_is_not_said_to_have_changed_nothing(
    store: ScheduleStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    polled = source(store, retry_wait=300)
    store.add("key", "t", Rule("0 * * * *", "UTC"), NOON, NOON, {})
    task = polled_first(polled)
    assert task is not None
    with monkeypatch.context() as patch:
        patch.setattr(store, "release", unanswered)
        with pytest.raises(TimeoutError):
            task.release()
    store.delete("key")
    store.add("key", "t", Rule("0 * * * *", "UTC"), NOON, NOON, {})
    with pytest.raises(OutcomeUnknownError):
        task.release()
    assert task.lease_lost


def unanswered(*_: object) -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    ("number", "max_attempts", "expired", "recorded"),
    [
        (10, None, False, 0),
        (10, None, True, 1),
        (10, 2, False, 0),
        (10, 1, False, 1),
        (1, 1, True, 0),
    ],
)
def test_only_a_run_that_may_have_begun_before_or_is_the_last_is_recorded_as_begun_beforehand(
    store: ScheduleStore,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
    max_attempts: int | None,
    expired: bool,
    recorded: int,
) -> None:
    policy = Policy(max_attempts=max_attempts)
    store.add("key", "t", Rule("0 * * * *", "UTC"), NOON - 3600, NOON - 3600, {}, policy)
    polled = source(store, retry_wait=300)
    if expired:
        store.acquire(1, 0, ahead=True)
    task = {task.key: task for task in polled.poll_multi(number, ahead=True)}["key"]
    extended: list[bool] = []
    extend = store.extend
    monkeypatch.setattr(store, "extend", lambda *given: extended.append(given[-1]) or extend(*given))
    assert task.begin()
    for _ in range(2):
        task.record_begin()
    assert extended == [True] * recorded
    assert task.attempts == 1


def test_a_run_whose_lease_is_lost_when_its_begin_is_recorded_does_not_begin(store: ScheduleStore) -> None:
    store.add("key", "t", Rule("0 * * * *", "UTC"), NOON - 3600, NOON - 3600, {}, Policy(max_attempts=1))
    task = {task.key: task for task in source(store, retry_wait=300).poll_multi(10, ahead=True)}["key"]
    assert task.begin()
    store.delete("key")
    with pytest.raises(PreemptedError):
        task.record_begin()
    assert task.lease_lost


def test_a_task_prefetched_is_not_to_begin_once_its_schedule_is_found_paused(store: ScheduleStore) -> None:
    polled = source(store, retry_wait=300)
    for key in ("goes on", "is paused"):
        store.add(key, "t", Rule("0 * * * *", "UTC"), NOON, NOON, {})
    tasks = polled.poll_multi(10, ahead=True)
    seen = store.get("is paused")
    assert seen is not None
    assert store.modify(seen, replace(seen, paused_from=NOON))
    assert all(task.may_begin for task in tasks), "nobody has looked"
    extend_many(tasks)
    assert [task.key for task in tasks if task.may_begin] == ["goes on"]


def test_references_to_dropped_tasks_are_removed_while_tasks_in_flight_are_kept(store: ScheduleStore) -> None:
    polled = source(store, retry_wait=300)
    for number in range(20):
        store.add(f"key {number:02}", "t", Rule("0 * * * *", "UTC"), NOON, NOON + number, {})
    kept = [polled_first(polled)]
    for _ in range(15):
        task = polled_first(polled)
        assert task is not None
        task.finish()
    kept.append(polled_first(polled))
    assert polled.held == kept
    assert len(polled._acquired) <= 5
