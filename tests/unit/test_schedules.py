"""The collection of schedules: what add and modify compute, and what a run may do. On SQLite in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from psched.backends import open_stores
from psched.errors import (
    AlreadyExistsError,
    ConfigError,
    IdempotentAlreadyFinishedError,
    NotFoundError,
    PreemptedError,
    ScheduleError,
)
from psched.model import LeaseTimes, NewSchedule, Rule, ScheduleRow
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.schedules.rule_change import moved
from psched.store import StoreSettings
from tests.prepared_sqlite import make_tables_in_memory

HOUR = 3600
NOON = int(datetime(2026, 6, 1, 12, tzinfo=UTC).timestamp())


@pytest.fixture
def schedules() -> Iterator[ScheduleCollection]:
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", schedules="psched_schedules")).schedules
    assert store is not None
    make_tables_in_memory(store, "psched_schedules")
    times = LeaseTimes(alive_time=300, retry_wait=300, prefetch_time=15)
    with ScheduleCollection(store, times, Defaults("UTC")) as collection:
        yield collection


def test_the_first_occurrence_is_the_first_match_at_or_after_next_time(schedules: ScheduleCollection) -> None:
    row = schedules.add("a", "t", cron="0 * * * *", next_time=NOON, delay=30).metadata()
    assert (row.next_time, row.next_run_time) == (NOON, NOON + 30)
    row = schedules.add("b", "t", cron="0 * * * *", next_time=NOON + 1).metadata()
    assert row.next_time == NOON + HOUR


@pytest.mark.parametrize(
    ("cron", "warning"), [("@at 2026-01-01T00:00", "'b' has ended"), ("*/77 1 1 1 *", "matches 0 alone")]
)
def test_only_written_schedules_are_warned_about(
    schedules: ScheduleCollection, caplog: pytest.LogCaptureFixture, cron: str, warning: str
) -> None:
    schedules.add("a", "t", cron="@daily")
    with pytest.raises(AlreadyExistsError):
        schedules.add("a", "t", cron=cron)
    assert schedules.add_many([NewSchedule("a", "t", cron)]) == ["a"]
    assert caplog.messages == []
    schedules.add("b", "t", cron=cron)
    [message] = caplog.messages
    assert warning in message


def test_next_run_time_moves_the_first_run_only(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="0 * * * *", next_time=NOON, next_run_time=NOON + 7, delay=30)
    assert schedules["a"].metadata().next_run_time == NOON + 7
    run(schedules).finish()
    assert schedules["a"].metadata().next_run_time == NOON + HOUR + 30


def test_without_next_time_the_first_occurrence_is_not_in_the_past(schedules: ScheduleCollection) -> None:
    row = schedules.add("a", "t", cron="* * * * * *").metadata()
    assert 0 <= row.next_time - schedules.store.now() + 1 <= 60


def test_an_option_that_no_schedule_has_is_refused(schedules: ScheduleCollection) -> None:
    schedules.add("a", "type", cron="0 * * * *")
    with pytest.raises(TypeError, match="unknown option 'timzone'; did you mean 'timezone'"):
        schedules["a"].modify(timzone="UTC")  # type: ignore[call-arg]


def test_a_finished_run_moves_to_the_next_match_after_its_occurrence_not_after_now(
    schedules: ScheduleCollection,
) -> None:
    schedules.add("a", "t", cron="0 * * * *", next_time=NOON, data={"n": 1})
    for hour in range(3):
        task = run(schedules)
        assert (task.scheduled_time, task.data, task.type) == (NOON + hour * HOUR, {"n": 1}, "t")
        task.finish()


def test_the_time_zone_defaults_to_the_configured_one(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="0 0 * * *", timezone="Asia/Tokyo", next_time=NOON)
    assert schedules["a"].metadata().rule == Rule("0 0 * * *", "Asia/Tokyo", 0)
    assert schedules["a"].metadata().next_time == NOON + 3 * HOUR
    assert schedules.add("b", "t", cron="0 0 * * *", next_time=NOON).metadata().rule.timezone == "UTC"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"cron": "61 * * * *"}, ConfigError),
        ({"timezone": "Mars/Olympus"}, ConfigError),
        ({"delay": "soon"}, ValueError),
        ({"delay": float("nan")}, ValueError),
        ({"data": {"x": float("nan")}}, ValueError),
        ({"data": {"x": {1, 2}}}, ValueError),
        ({"type": ""}, ValueError),
    ],
)
def test_values_that_cannot_be_stored_are_refused_before_anything_is_written(
    schedules: ScheduleCollection, change: dict[str, Any], error: type[Exception]
) -> None:
    before = schedules.add("a", "t", cron="0 * * * *", next_time=NOON).metadata()
    with pytest.raises(error):
        schedules["a"].modify(**change)
    assert schedules["a"].metadata() == before
    with pytest.raises(error):
        schedules.add("b", **{"type": "t", "cron": "0 * * * *", **change})
    assert not schedules["b"].exists()


def test_a_key_is_added_once(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="0 * * * *")
    with pytest.raises(AlreadyExistsError):
        schedules.add("a", "t", cron="0 * * * *")


def test_add_many_adds_the_same_rows_as_add(schedules: ScheduleCollection) -> None:
    schedules.add("old", "t", cron="0 * * * *", next_time=NOON)
    terms: list[dict[str, Any]] = [
        {"cron": "5 * * * *", "next_time": NOON},
        {"cron": "0 9 * * *", "timezone": "Asia/Tokyo", "delay": 30, "next_time": NOON, "data": {"n": 1}},
        {"cron": "0 9 * * *", "next_time": NOON, "next_run_time": NOON + 7, "catch_up": "latest", "alert_after": 5},
    ]
    for number, given in enumerate(terms):
        schedules.add(f"single{number}", "t", **given)
    news = [NewSchedule(f"many{number}", "t", **given) for number, given in enumerate(terms)]
    assert schedules.add_many([NewSchedule("old", "t", "1 * * * *"), *news]) == ["old"]
    for number in range(len(terms)):
        single, many = schedules[f"single{number}"].metadata(), schedules[f"many{number}"].metadata()
        assert replace(single, key="", version=0) == replace(many, key="", version=0)
    assert schedules.add_many([]) == []


@pytest.mark.parametrize(
    ("fields", "error"),
    [({"cron": "61 * * * *"}, ConfigError), ({"data": {"x": {1}}}, ValueError), ({"key": "a"}, ValueError)],
)
def test_add_many_adds_none_when_one_is_refused(
    schedules: ScheduleCollection, fields: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        schedules.add_many(
            [
                NewSchedule("a", "t", "0 * * * *"),
                NewSchedule(**{"key": "b", "type": "t", "cron": "0 * * * *", **fields}),
            ]
        )
    assert list(schedules.list()) == []


def test_add_many_checks_each_value_even_if_an_equal_one_is_valid(schedules: ScheduleCollection) -> None:
    truth: Any = True
    for name in ("max_attempts", "delay", "max_runs", "pause_after"):
        fields: list[dict[str, Any]] = [{name: 1}, {name: truth}]
        with pytest.raises(ValueError, match=f"{name} must be"):
            schedules.add_many([NewSchedule(f"k{n}", "t", "@daily", **each) for n, each in enumerate(fields)])


def test_references_to_missing_schedules_raise_not_found(schedules: ScheduleCollection) -> None:
    assert not schedules["a"].exists()
    for verb in (schedules["a"].metadata, schedules["a"].delete, lambda: schedules["a"].modify(delay=1)):
        with pytest.raises(NotFoundError, match="'a'"):
            verb()


def test_a_new_rule_moves_an_occurrence_that_is_still_to_come(schedules: ScheduleCollection) -> None:
    now = schedules.store.now()
    schedules.add("a", "t", cron="0 0 1 1 *")
    schedules["a"].modify(cron="* * * * *", delay=5)
    row = schedules["a"].metadata()
    assert now <= row.next_time <= now + 61
    assert row.next_run_time == row.next_time + 5


def test_a_new_rule_does_not_drop_an_occurrence_that_is_due(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="0 * * * *", next_time=NOON)
    schedules["a"].modify(cron="30 * * * *")
    task = run(schedules)
    assert task.scheduled_time == NOON
    task.finish()
    assert schedules["a"].metadata().next_time == NOON + HOUR // 2


def test_a_run_settles_by_a_rule_that_was_modified_during_it(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="0 * * * *", next_time=NOON)
    task = run(schedules)
    schedules["a"].modify(cron="45 * * * *", delay=9, timezone="Asia/Kolkata", data={"new": 1})
    task.heartbeat()
    assert schedules.poll() is None
    task.finish()
    row = schedules["a"].metadata()
    assert (row.next_time, row.next_run_time, row.data) == (NOON + HOUR // 4, NOON + HOUR // 4 + 9, {"new": 1})


def test_times_cannot_be_moved_during_a_run(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="0 * * * *", next_time=NOON)
    task = run(schedules)
    with pytest.raises(ScheduleError, match="in progress"):
        schedules["a"].modify(next_time=NOON)
    task.finish()
    schedules["a"].modify(next_time=NOON, next_run_time=NOON + 1)
    row = schedules["a"].metadata()
    assert (row.next_time, row.next_run_time) == (NOON, NOON + 1)


def test_a_task_is_settled_once(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="0 * * * *", next_time=NOON)
    task = run(schedules)
    task.finish()
    for verb in (task.finish, task.retry, task.release, task.heartbeat):
        with pytest.raises(IdempotentAlreadyFinishedError, match="already finished"):
            verb()


def test_a_deleted_schedule_preempts_its_run(schedules: ScheduleCollection) -> None:
    schedules.add("a", "t", cron="0 * * * *", next_time=NOON)
    task = run(schedules)
    schedules["a"].delete()
    with pytest.raises(PreemptedError):
        task.heartbeat()
    with pytest.raises(NotFoundError):
        task.finish()


def test_a_row_with_a_broken_rule_is_deferred_and_logged_once(
    schedules: ScheduleCollection, caplog: pytest.LogCaptureFixture
) -> None:
    seen = schedules.add("broken", "t", cron="0 * * * *", next_time=NOON).metadata()
    schedules.add("sound", "t", cron="0 * * * *", next_time=NOON)
    assert schedules.store.modify(seen, replace(seen, rule=Rule("0 0 * *", "UTC", 0)))
    assert [task.key for task in schedules.poll_multi(10)] == ["sound"]
    assert schedules.poll() is None
    reports = [record for record in caplog.records if "broken" in record.getMessage()]
    assert len(reports) == 1
    assert "correct or delete the schedule" in reports[0].getMessage()


ROW = ScheduleRow("a", "t", {}, "waiting", rule=Rule("0 * * * *", "UTC", 60), next_time=NOON, next_run_time=NOON)


@pytest.mark.parametrize(
    ("now", "old", "next_time", "next_run_time", "expected"),
    [
        pytest.param(NOON + 50, Rule("9 9 * * *", "UTC", 50), NOON, NOON + 50, (NOON, NOON + 50), id="due"),
        pytest.param(
            NOON + 10, Rule("9 9 * * *", "UTC", 90), NOON, NOON + 90, (NOON, NOON + 60), id="come but delayed"
        ),
        pytest.param(NOON - 99, Rule("0 * * * *", "UTC", 90), NOON, NOON + 90, (NOON, NOON + 60), id="delay only"),
        pytest.param(
            NOON - HOUR + 0.5, Rule("9 9 * * *", "UTC", 60), NOON + 99, NOON + 99, (NOON, NOON + 60), id="to come"
        ),
        pytest.param(
            float(NOON), Rule("9 9 * * *", "UTC", 60), NOON + 99, NOON + 99, (NOON, NOON + 60), id="a match is now"
        ),
    ],
)
def test_the_next_occurrence_by_a_new_rule(
    now: float, old: Rule, next_time: int, next_run_time: float, expected: tuple[int, float]
) -> None:
    row = moved(replace(ROW, next_time=next_time, next_run_time=next_run_time), old, now, "vixie")
    assert (row.next_time, row.next_run_time) == expected


def run(schedules: ScheduleCollection) -> Any:
    task = schedules.poll()
    assert task is not None
    return task
