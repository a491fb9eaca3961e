"""Times and durations that cannot be kept are refused where they enter, by a ValueError that names them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from psched.application import App
from psched.backends import open_stores
from psched.errors import ConfigError
from psched.queue import Queue
from psched.schedules import Defaults, ScheduleCollection
from psched.source import LeaseTimes
from psched.store import StoreSettings

NO_NUMBERS = [math.inf, -math.inf, math.nan, 1e17, -1e17, 10**400, "5", True]


@pytest.fixture
def schedules() -> Iterator[ScheduleCollection]:
    store = open_stores("rdb", StoreSettings("sqlite://", "host/test/1", schedules="psched_schedules")).schedules
    assert store is not None
    store.create_tables()
    with ScheduleCollection(store, LeaseTimes(300, 300, 15), Defaults("UTC")) as schedules:
        schedules.add("key", "t", cron="0 * * * *")
        yield schedules


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
@pytest.mark.parametrize("name", ["delay", "next_time", "next_run_time", "max_lateness", "alert_after"])
def test_no_schedule_is_added_or_changed_with_it(schedules: ScheduleCollection, name: str, value: Any) -> None:
    before = schedules["key"].metadata()
    with pytest.raises(ValueError, match=name):
        schedules.add("new", "t", cron="0 * * * *", **{name: value})
    with pytest.raises(ValueError, match=name):
        schedules["key"].modify(**{name: value})
    assert [row.key for row in schedules.list()] == ["key"]
    assert schedules["key"].metadata() == before


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_no_run_waits_for_it(queue: Queue, value: Any) -> None:
    with pytest.raises(ValueError, match="run_at"):
        queue.submit("late", "t", run_at=value)
    queue.submit("key", "t")
    task = queue.poll()
    assert task is not None
    with pytest.raises(ValueError, match="retry_wait must be a number of seconds from 0 to 1000000000"):
        task.retry(value)
    task.retry(0)
    assert queue["key"].metadata().status == "waiting"


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_no_handler_is_registered_with_it(app: App, value: Any) -> None:
    register: Callable[..., Any] = app.task
    with pytest.raises(ConfigError, match="retry_wait"):
        register("t", retry_wait=value)(lambda task: None)


@pytest.mark.parametrize("value", [*NO_NUMBERS, 0, -1, 1.5, 2**31], ids=repr)
def test_no_handler_gives_up_after_so_many_attempts(app: App, value: Any) -> None:
    register: Callable[..., Any] = app.task
    with pytest.raises(ConfigError, match="max_attempts of 't' must be a whole number from 1 to 2147483647"):
        register("t", max_attempts=value)(lambda task: None)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_no_audit_asks_for_it(schedules: ScheduleCollection, value: Any) -> None:
    audit: Callable[..., Any] = schedules.audit
    with pytest.raises(ValueError, match="late must be a number of seconds from 0 to 1000000000"):
        audit(0, 100, late=value)
    with pytest.raises(ValueError, match="since must be unix seconds"):
        audit(value, 100)
    with pytest.raises(ValueError, match="until must be unix seconds"):
        audit(0, value)


@pytest.mark.parametrize("value", [math.inf, 1e17, 10**19, "5", None, 1.5], ids=repr)
def test_no_poll_asks_for_it(queue: Queue, value: Any) -> None:
    with pytest.raises(ValueError, match="max_acquire"):
        queue.poll_multi(value)


def test_a_schedule_whose_tasks_would_have_too_long_keys_is_refused(schedules: ScheduleCollection) -> None:
    longest = "k" * 242
    schedules.add(longest, "enqueue", cron="0 * * * *")
    for type_ in ("enqueue", "enqueue.report"):
        with pytest.raises(ValueError, match="at most 242"):
            schedules.add("k" * 243, type_, cron="0 * * * *")
    schedules.add("k" * 255, "enqueued", cron="0 * * * *")
    with pytest.raises(ValueError, match="at most 242"):
        schedules["k" * 255].modify(type="enqueue.report")
