"""Pushing while others start and stop the same scheduler."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from tests.scheduler.site import Site


def test_what_is_pushed_while_another_thread_starts_and_stops_is_accepted_and_run(file_and_server: Site) -> None:
    scheduler = file_and_server.scheduler()
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
        file_and_server.wait_for(lambda: run >= set(pushed))


def test_stores_in_use_are_closed_by_the_last_end_of_use(redis_site: Site) -> None:
    stores = redis_site.open_stores()
    stores.create_tables()
    stores.begin_use()
    stores.begin_use()
    stores.close()
    stores.end_use()
    assert stores.queue.now() > 0, "they still work"
    assert not stores.is_closed, "there is one user left"
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
def test_options_in_a_mapping_as_schedule_mq_takes_them_are_not_stored_as_data(
    open_section: Site, options: dict[str, Any], call: str
) -> None:
    scheduler = open_section.scheduler()
    with pytest.raises(ValueError, match=re.escape(call)):
        scheduler.push("task", options)
    assert open_section.tasks() == []
    scheduler.push("task", data=options)
    assert [task.data for task in open_section.tasks()] == [{"data": options}]


@pytest.mark.parametrize("data", [{}, {"retry": True, "uid": 1}, ["retry"], "im data", None])
def test_other_data_may_be_given_by_position(open_section: Site, data: Any) -> None:
    open_section.scheduler().push("task", data)
    assert [task.data for task in open_section.tasks()] == [{"data": data}]


def test_more_than_data_is_not_taken_by_position(open_section: Site) -> None:
    scheduler: Any = open_section.scheduler()
    for call in (lambda: scheduler.push("task", 1, 5), lambda: scheduler.push("task", 1, data=2)):
        with pytest.raises(TypeError, match="given by keyword"):
            call()


def test_options_of_a_registration_in_a_mapping_are_refused_with_the_call_to_write(open_section: Site) -> None:
    scheduler: Any = open_section.scheduler()
    with pytest.raises(ValueError, match=re.escape("register('task', cron='@daily', retry=True, retry_timeout=10)")):
        scheduler.register("task", {"cronExpr": "@daily", "retry": True, "retryTimeout": 10000})
