"""Times and durations that cannot be stored are refused by a ValueError that names them, where they are passed in."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from psched.application import App
from psched.backends import open_stores
from psched.error_messages import shown
from psched.errors import ConfigError
from psched.model import LeaseTimes, Policy, Rule
from psched.queue.queue import Queue
from psched.schedules.collection import Defaults, ScheduleCollection
from psched.store import StoreSettings
from tests.prepared_sqlite import make_tables_in_memory

NO_NUMBERS = [math.inf, -math.inf, math.nan, 1e17, -1e17, 10**400, 10**5000, "5", True]
IDS = [shown(value) for value in NO_NUMBERS]


@pytest.fixture
def schedules() -> Iterator[ScheduleCollection]:
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", schedules="psched_schedules")).schedules
    assert store is not None
    make_tables_in_memory(store, "psched_schedules")
    with ScheduleCollection(store, LeaseTimes(300, 300, 15), Defaults("UTC")) as schedules:
        schedules.add("key", "t", cron="0 * * * *")
        yield schedules


@pytest.mark.parametrize("value", NO_NUMBERS, ids=IDS)
@pytest.mark.parametrize("name", ["delay", "next_time", "next_run_time", "max_lateness", "alert_after"])
def test_schedules_refuse_unusable_times_and_durations(schedules: ScheduleCollection, name: str, value: Any) -> None:
    before = schedules["key"].metadata()
    with pytest.raises(ValueError, match=name):
        schedules.add("new", "t", cron="0 * * * *", **{name: value})
    with pytest.raises(ValueError, match=name):
        schedules["key"].modify(**{name: value})
    assert [row.key for row in schedules.list()] == ["key"]
    assert schedules["key"].metadata() == before


@pytest.mark.parametrize("value", NO_NUMBERS, ids=IDS)
def test_the_queue_refuses_unusable_times_and_durations(queue: Queue, value: Any) -> None:
    with pytest.raises(ValueError, match="run_at"):
        queue.submit("late", "t", run_at=value)
    queue.submit("key", "t")
    task = queue.poll()
    assert task is not None
    with pytest.raises(ValueError, match="retry_wait must be a number of seconds from 0 to 1000000000"):
        task.retry(value)
    task.retry(0)
    assert queue["key"].metadata().status == "waiting"


@pytest.mark.parametrize("value", NO_NUMBERS, ids=IDS)
def test_handlers_refuse_an_unusable_retry_wait(app: App, value: Any) -> None:
    register: Callable[..., Any] = app.task
    with pytest.raises(ConfigError, match="retry_wait"):
        register("t", retry_wait=value)(lambda task: None)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1, 1.5, 2**31], ids=shown)
def test_handlers_refuse_an_unusable_number_of_attempts(app: App, value: Any) -> None:
    register: Callable[..., Any] = app.task
    with pytest.raises(ConfigError, match="max_attempts of 't' must be a whole number from 1 to 2147483647"):
        register("t", max_attempts=value)(lambda task: None)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=IDS)
def test_audits_refuse_unusable_times_and_durations(schedules: ScheduleCollection, value: Any) -> None:
    audit: Callable[..., Any] = schedules.audit
    with pytest.raises(ValueError, match="late must be a number of seconds from 0 to 1000000000"):
        audit(0, 100, late=value)
    with pytest.raises(ValueError, match="since must be unix seconds"):
        audit(value, 100)
    with pytest.raises(ValueError, match="until must be unix seconds"):
        audit(0, value)


@pytest.mark.parametrize("value", [math.inf, 1e17, 10**19, "5", None, 1.5, 10**5000], ids=shown)
def test_polls_refuse_an_unusable_number_of_tasks(queue: Queue, value: Any) -> None:
    with pytest.raises(ValueError, match="max_acquire"):
        queue.poll_multi(value)


def test_a_schedule_whose_tasks_would_have_too_long_keys_is_refused(schedules: ScheduleCollection) -> None:
    longest = "k" * 236
    schedules.add(longest, "enqueue", cron="0 * * * *")
    for type_ in ("enqueue", "enqueue.report"):
        with pytest.raises(ValueError, match="at most 236"):
            schedules.add("k" * 237, type_, cron="0 * * * *")
    schedules.add("k" * 255, "enqueued", cron="0 * * * *")
    with pytest.raises(ValueError, match="at most 236"):
        schedules["k" * 255].modify(type="enqueue.report")


@pytest.mark.parametrize("delay", [-9e9, -31_622_401, 31_622_401])
def test_no_delay_is_longer_than_a_year(schedules: ScheduleCollection, delay: float) -> None:
    expected = r"delay must be a number of seconds from -31622400 to 31622400 \(366 days\), got -?\d+"
    with pytest.raises(ValueError, match=expected):
        schedules.add("new", "t", cron="0 0 1 1 *", delay=delay)
    with pytest.raises(ValueError, match=expected):
        schedules["key"].modify(delay=delay)


@pytest.mark.parametrize(
    ("cron", "delay", "ahead"),
    [("* * * * * *", -1000, 1000), ("* * * * * *", -1001, 1001), ("* * * 12 *", -86400, 1440), ("0 0 1 1 *", -3e7, 0)],
)
def test_a_delay_brings_at_most_a_thousand_occurrences_forward(
    schedules: ScheduleCollection, cron: str, delay: float, ahead: int
) -> None:
    if ahead > 1000:
        with pytest.raises(
            ValueError, match=f"makes {ahead} occurrences of cron .* due together, .*expected at most 1000"
        ):
            schedules.add("new", "t", cron=cron, delay=delay)
    else:
        assert schedules.add("new", "t", cron=cron, delay=delay).metadata().rule.delay == delay


def test_a_stored_delay_that_runs_years_ahead_is_a_problem_of_its_row(schedules: ScheduleCollection) -> None:
    schedules.store.add("wild", "t", Rule("0 * * * *", "UTC", -9e9), 2_000_000_000, 1.0, {}, Policy())
    assert schedules.poll() is None
    assert "delay must be a number of seconds" in str(schedules["wild"].metadata().last_error)


@pytest.mark.parametrize("value", [-1, -0.5, *NO_NUMBERS], ids=shown)
def test_a_time_must_be_a_number_from_1970_on(schedules: ScheduleCollection, queue: Queue, value: Any) -> None:
    expected = r"must be unix seconds, a number from 0 to 253402300799 \(the years 1970 to 9999\), got "
    asked: list[Callable[[], Any]] = [
        lambda: schedules.add("new", "t", cron="0 * * * *", next_time=value),
        lambda: schedules["key"].modify(next_run_time=value),
        lambda: schedules.history(since=value),
        lambda: schedules.history("key", until=value),
        lambda: schedules.audit(value, 1),
        lambda: queue.submit("key", "t", run_at=value),
    ]
    for ask in asked:
        with pytest.raises(ValueError, match=expected):
            ask()


def test_a_datetime_is_refused_with_the_expression_to_write_instead(schedules: ScheduleCollection) -> None:
    for when in (datetime(2026, 12, 1), datetime(2026, 12, 1, tzinfo=UTC)):  # noqa: DTZ001 – that is the point
        add: Callable[..., Any] = schedules.add
        with pytest.raises(ValueError, match=r"convert a datetime that has a zone with int\(when.timestamp\(\)\)"):
            add("new", "t", cron="0 * * * *", next_time=when)


@pytest.mark.parametrize("ask", ["history", "audit", "list"])
def test_keys_types_and_users_that_cannot_be_stored_are_refused_in_queries(
    schedules: ScheduleCollection, queue: Queue, ask: str
) -> None:
    questions: dict[str, list[Callable[[], Any]]] = {
        "history": [lambda: schedules.history("\udcff")],
        "audit": [lambda: schedules.audit(0, 1, keys=["\udcff"])],
        "list": [lambda: queue.list(type="\udcff"), lambda: queue.list(user="\udcff")],
    }
    for question in questions[ask]:
        with pytest.raises(ValueError, match="contains a character that cannot be stored, U.DCFF"):
            question()


@pytest.mark.parametrize("data", ["abc", [1, 2], 5])
def test_data_must_be_an_object(schedules: ScheduleCollection, queue: Queue, data: Any) -> None:
    queue.submit("there", "t")
    task = queue.poll()
    assert task is not None
    asked: list[Callable[[], Any]] = [
        lambda: schedules.add("new", "t", cron="@daily", data=data),
        lambda: schedules["key"].modify(data=data),
        lambda: queue.submit("new", "t", data),
        lambda: task.update_data(data),
    ]
    for ask in asked:
        with pytest.raises(ValueError, match=rf"data must be a JSON object \(a dict\), got {type(data).__name__}"):
            ask()


@pytest.mark.parametrize("value", [5, [], b"@daily"], ids=repr)
def test_expressions_and_zones_must_be_text(schedules: ScheduleCollection, value: Any) -> None:
    asked: list[tuple[str, Callable[[], Any]]] = [
        ("cron", lambda: schedules.add("new", "t", cron=value)),
        ("timezone", lambda: schedules.add("new", "t", cron="@daily", timezone=value)),
        ("cron", lambda: schedules["key"].modify(cron=value)),
        ("timezone", lambda: schedules["key"].modify(timezone=value)),
    ]
    for name, ask in asked:
        with pytest.raises(ConfigError, match=f"{name} must be text like "):
            ask()


def test_a_wrong_collection_or_member_is_named(schedules: ScheduleCollection, queue: Queue) -> None:
    anything: Any = schedules, queue
    schedules_, queue_ = anything
    asked: dict[str, Callable[[], Any]] = {
        "each schedule must be a psched.NewSchedule, got 'x'": lambda: schedules_.add_many(["x"]),
        "each task must be a psched.NewTask, got 'x'": lambda: queue_.submit_many(["x"]),
        "types must be a collection of types .* got 'report'": lambda: queue_.poll(types="report"),
        "types must be a collection of types .* got 5": lambda: schedules_.poll(types=5),
        "type contains a character that cannot be stored": lambda: queue_.poll_multi(1, types=["\udcff"]),
        "keys must be a collection of keys": lambda: schedules_.audit(0, 1, keys="key"),
    }
    for message, ask in asked.items():
        with pytest.raises(ValueError, match=message):
            ask()


def test_an_error_is_text(queue: Queue) -> None:
    queue.submit("key", "t")
    task: Any = queue.poll()
    with pytest.raises(ValueError, match="error must be text, such as str"):
        task.retry(error=ValueError("it broke"))
    task.retry(error="it broke")


def test_a_start_between_two_seconds_begins_at_the_next_one(schedules: ScheduleCollection) -> None:
    start: Any = 2_000_000_000.5
    assert schedules.add("new", "t", cron="* * * * * *", next_time=start).metadata().next_time == 2_000_000_001
