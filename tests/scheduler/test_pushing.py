"""Pushing tasks, also while other threads start and stop the scheduler."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from tests.scheduler.site import Site


def test_tasks_pushed_while_another_thread_starts_and_stops_all_run(sqlite_and_redis: Site) -> None:
    scheduler = sqlite_and_redis.scheduler()
    run: set[str] = set()
    pushed: list[str] = []
    errors: list[Exception] = []
    enough = threading.Event()

    @scheduler.bind("task")
    def task(data: Any) -> None:
        assert scheduler.current is not None
        run.add(scheduler.current.key)

    def push() -> None:
        while not enough.is_set():
            try:
                pushed.append(scheduler.push("task"))
            except Exception as error:  # noqa: BLE001 – whatever it is, there must be none
                errors.append(error)
            enough.wait(0.002)

    pushers = [threading.Thread(target=push) for _ in range(3)]
    for pusher in pushers:
        pusher.start()
    for _ in range(5):
        scheduler.start()
        scheduler.stop()
    enough.set()
    for pusher in pushers:
        pusher.join()
    assert not errors
    with scheduler:
        sqlite_and_redis.wait_for(lambda: run >= set(pushed))


def test_stores_in_use_are_closed_by_the_last_end_of_use(redis_site: Site) -> None:
    stores = redis_site.open_stores()
    stores.create_tables()
    stores.begin_use()
    stores.begin_use()
    stores.close()
    stores.end_use()
    assert stores.queue.now() > 0, "the stores are still open"
    assert not stores.is_closed, "one user is left"
    stores.end_use()
    assert stores.is_closed


@pytest.mark.parametrize(
    ("options", "call"),
    [
        ({"retry": True, "retryTimeout": 5000}, "push('task', retry=True, retry_timeout=5)"),
        ({"data": "im data", "delay": 1500}, "push('task', data=…, delay=1.5)"),
        ({"delay": 5000}, "push('task', delay=5)"),
        ({"data": "im data"}, "push('task', data=…)"),
    ],
)
def test_a_mapping_of_schedule_mq_options_is_refused_as_data(site: Site, options: dict[str, Any], call: str) -> None:
    scheduler = site.scheduler()
    with pytest.raises(ValueError, match=re.escape(call)):
        scheduler.push("task", options)
    assert site.tasks() == []
    scheduler.push("task", data=options)
    assert [task.data for task in site.tasks()] == [{"data": options}]


@pytest.mark.parametrize("data", [{}, {"retry": True, "uid": 1}, ["retry"], "im data", None])
def test_other_data_may_be_given_by_position(site: Site, data: Any) -> None:
    site.scheduler().push("task", data)
    assert [task.data for task in site.tasks()] == [{"data": data}]


def test_options_are_refused_by_position(site: Site) -> None:
    scheduler: Any = site.scheduler()
    for call in (lambda: scheduler.push("task", 1, 5), lambda: scheduler.push("task", 1, data=2)):
        with pytest.raises(TypeError, match="retry_timeout by keyword"):
            call()


def test_a_mapping_of_schedule_mq_options_is_refused_by_register(site: Site) -> None:
    scheduler: Any = site.scheduler()
    with pytest.raises(ValueError, match=re.escape("register('task', cron='@daily', retry=True, retry_timeout=10)")):
        scheduler.register("task", {"cronExpr": "@daily", "retry": True, "retryTimeout": 10000})
