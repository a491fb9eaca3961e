"""Binding, registering, pushing, starting and stopping."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from psched import ConfigError, ScheduleError, create_scheduler
from tests.scheduler.site import Site

VALUES = [None, True, 0, 1.5, "im data", "", [1, [2, None]], {"a": {"b": "ü🙂"}}, {}]
EVERY_SECOND = "* * * * * *"


@pytest.fixture
def calls() -> queue.Queue[Any]:
    """What handlers were called with."""
    return queue.Queue()


def test_what_is_pushed_before_the_start_reaches_the_handler_as_it_was(
    each_site: Site, calls: queue.Queue[Any]
) -> None:
    scheduler = each_site.scheduler()
    scheduler.bind("record", calls.put)
    keys = [scheduler.push("record", data=value) for value in VALUES]
    with scheduler:
        found = [calls.get(timeout=10) for _ in VALUES]
    assert sorted(map(repr, found)) == sorted(map(repr, VALUES))
    assert len(set(keys)) == len(VALUES)


def test_a_registration_fires_with_its_data_at_each_occurrence(each_site: Site, calls: queue.Queue[Any]) -> None:
    scheduler = each_site.scheduler()

    @scheduler.bind("tick")
    def tick(data: Any) -> None:
        task = scheduler.current
        assert task is not None
        calls.put((data, task.scheduled_time))

    scheduler.register("tick", cron=EVERY_SECOND, data=["every", "second"])
    with scheduler:
        found = [calls.get(timeout=10) for _ in range(2)]
    assert [data for data, _ in found] == [["every", "second"]] * 2
    assert found[1][1] == found[0][1] + 1
    assert scheduler.current is None


def test_with_retry_what_fails_is_run_again_after_retry_timeout_until_it_succeeds(each_site: Site) -> None:
    scheduler = each_site.scheduler()
    runs: dict[str, list[float]] = defaultdict(list)

    def fail(way: str) -> bool | None:
        task = scheduler.current
        assert task is not None
        runs[task.key].append(each_site.now())
        if task.attempts == 3:
            return None
        if way == "raise":
            raise ValueError("as told")
        return False

    async def fail_later(way: str) -> bool | None:
        await asyncio.sleep(0)
        return fail(way)

    scheduler.bind("fail", fail)
    scheduler.bind("async", fail_later)
    with scheduler:
        keys = [
            scheduler.push(name, data=way, retry=True, retry_timeout=0.4)
            for name in ("fail", "async")
            for way in ("raise", "return False")
        ]
        for key in keys:
            each_site.wait_until_over(key)
    assert all(len(runs[key]) == 3 for key in keys)
    assert all(after - before >= 0.39 for key in keys for before, after in pairwise(runs[key]))
    assert [task.status for task in each_site.tasks()] == ["finished"] * len(keys)


def test_without_retry_what_fails_is_not_run_again(open_section: Site, calls: queue.Queue[Any]) -> None:
    scheduler = open_section.scheduler()

    @scheduler.bind("fail")
    def fail(way: str) -> bool:
        calls.put(way)
        if way == "raise":
            raise ValueError("as told")
        return False

    with scheduler:
        for key in [scheduler.push("fail", data=way) for way in ("raise", "return False")]:
            open_section.wait_until_over(key)
    assert [task.status for task in open_section.tasks()] == ["failed", "failed"]
    assert calls.qsize() == 2


@pytest.mark.parametrize("result", [None, True, 0, "", []])
def test_returning_anything_but_false_is_success(open_section: Site, result: object) -> None:
    scheduler = open_section.scheduler()
    scheduler.bind("any", lambda data: result)
    with scheduler:
        open_section.wait_until_over(scheduler.push("any", retry=True))
    assert [task.status for task in open_section.tasks()] == ["finished"]


def test_a_delayed_task_is_not_run_before_its_time(file_and_server: Site, calls: queue.Queue[Any]) -> None:
    scheduler = file_and_server.scheduler()
    scheduler.bind("late", lambda data: calls.put(file_and_server.now()))
    with scheduler:
        pushed = file_and_server.now()
        scheduler.push("late", delay=0.7)
        assert calls.get(timeout=10) - pushed >= 0.7


def test_an_instance_takes_only_what_it_has_bound(open_section: Site, calls: queue.Queue[Any]) -> None:
    one, other = open_section.scheduler(), open_section.scheduler()
    one.bind("mine", lambda data: calls.put("one"))
    other.bind("yours", lambda data: calls.put("other"))
    with one:
        one.push("yours")
        one.push("mine")
        assert calls.get(timeout=10) == "one"
        assert {task.status for task in open_section.tasks() if task.type == "yours"} == {"waiting"}
        with other:
            assert calls.get(timeout=10) == "other"


def test_a_task_that_is_made_here_wakes_a_resting_handler_of_this_process(
    open_section: Site, calls: queue.Queue[Any]
) -> None:
    scheduler = open_section.scheduler(poll_interval=60)
    scheduler.bind("task", calls.put)
    scheduler.register("task", cron=EVERY_SECOND, data="made of an occurrence")
    with scheduler:
        assert calls.get(timeout=10) == "made of an occurrence"
        assert calls.get(timeout=10) == "made of an occurrence"
    scheduler.unregister("task")
    with scheduler:
        for _ in range(3):
            open_section.wait_until_over(scheduler.push("task", data="pushed"))


def test_prefixes_do_not_see_one_another(open_section: Site, calls: queue.Queue[Any]) -> None:
    one, other = open_section.scheduler(prefix="one:"), open_section.scheduler(prefix="other:")
    one.bind("task", lambda data: calls.put("one"))
    other.bind("task", lambda data: calls.put("other"))
    with one, other:
        for _ in range(3):
            one.push("task")
        assert [calls.get(timeout=10) for _ in range(3)] == ["one"] * 3
        other.clear()
        one.push("task")
        assert calls.get(timeout=10) == "one"


def test_handlers_run_as_many_at_a_time_as_concurrency_says(open_section: Site) -> None:
    together = threading.Barrier(3)
    scheduler = open_section.scheduler(concurrency=3)
    scheduler.bind("together", lambda data: together.wait(10))
    with scheduler:
        for _ in range(3):
            site_key = scheduler.push("together")
        open_section.wait_until_over(site_key)
    assert not together.broken


def test_nothing_is_bound_registered_or_started_while_it_runs_and_everything_after_a_stop(
    open_section: Site, calls: queue.Queue[Any]
) -> None:
    scheduler = open_section.scheduler()
    scheduler.bind("task", calls.put)
    with scheduler:
        for forbidden in (
            lambda: scheduler.bind("other", calls.put),
            lambda: scheduler.bind("other"),
            lambda: scheduler.register("task", cron=EVERY_SECOND),
            scheduler.start,
        ):
            with pytest.raises(ScheduleError, match="while the scheduler is running; stop it first"):
                forbidden()
    scheduler.bind("other", lambda data: calls.put("other"))
    scheduler.register("other", cron=EVERY_SECOND)
    with scheduler:
        assert calls.get(timeout=10) == "other"


def test_what_is_registered_must_be_bound(open_section: Site) -> None:
    scheduler = open_section.scheduler()
    scheduler.register("nobody's", cron=EVERY_SECOND)
    with pytest.raises(ScheduleError, match='not bound to a handler: "nobody\'s"; bind each before the start'):
        scheduler.start()


def test_stop_waits_for_running_handlers_and_takes_nothing_new(open_section: Site, calls: queue.Queue[Any]) -> None:
    scheduler = open_section.scheduler(concurrency=1)
    go = threading.Event()

    @scheduler.bind("long")
    def long(data: Any) -> None:
        calls.put("begun")
        go.wait(20)
        scheduler.push("pushed by a handler that is waited for")

    scheduler.start()
    key = scheduler.push("long")
    assert calls.get(timeout=10) == "begun"
    scheduler.push("long")
    assert not scheduler.stop(timeout=0.2)
    go.set()
    open_section.wait_until_over(key)
    assert sorted(task.status for task in open_section.tasks()) == ["finished", "waiting", "waiting"]
    scheduler.start()
    assert scheduler.stop()
    assert scheduler.stop(), "stopping what is stopped does nothing"


def test_a_handler_cannot_stop_the_scheduler_that_would_wait_for_it(
    open_section: Site, calls: queue.Queue[Any]
) -> None:
    scheduler = open_section.scheduler()

    @scheduler.bind("stop")
    def stop(data: Any) -> None:
        with pytest.raises(ScheduleError, match="a handler cannot stop"):
            scheduler.stop()
        calls.put("went on")

    with scheduler:
        scheduler.push("stop")
        assert calls.get(timeout=10) == "went on"


def test_clear_removes_registrations_and_tasks(file_and_server: Site) -> None:
    scheduler = file_and_server.scheduler()
    scheduler.bind("task", lambda data: None)
    scheduler.register("task", cron="@yearly")
    scheduler.start()
    scheduler.push("nobody's")
    scheduler.stop()
    scheduler.clear()
    assert not list(file_and_server.opened().schedules.list())
    assert not file_and_server.tasks()


def test_tasks_that_are_over_do_not_pile_up(open_section: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.backends.sql.store.sent_within", lambda timeouts: 0)
    scheduler = open_section.scheduler(retention_time=0.2)
    scheduler.bind("good", lambda data: None)
    scheduler.bind("bad", lambda data: False)
    with scheduler:
        for _ in range(3):
            scheduler.push("good")
            scheduler.push("bad")
        open_section.wait_for(lambda: not open_section.tasks())


@pytest.mark.parametrize(
    "wrong",
    [
        {"data": {1, 2}},
        {"data": float("nan")},
        {"delay": -1},
        {"delay": float("inf")},
        {"retry": "yes"},
        {"retry_timeout": 0},
        {"name": ""},
        {"name": "n" * 201},
        {"name": "psched.instance"},
    ],
    ids=str,
)
def test_what_cannot_be_stored_is_refused_by_push(open_section: Site, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="data|delay|retry|key|name"):
        open_section.scheduler().push(**{"name": "task", **wrong})


def test_what_makes_no_sense_is_refused_when_it_is_said(open_section: Site) -> None:
    scheduler = open_section.scheduler()
    with pytest.raises(ConfigError, match="61"):
        scheduler.register("task", cron="61 * * * *")
    with pytest.raises(ConfigError, match="Nowhere"):
        scheduler.register("task", cron="* * * * *", timezone="Nowhere/Else")
    with pytest.raises(ValueError, match="retry_timeout"):
        scheduler.register("task", cron="* * * * *", retry=True, retry_timeout=-1)
    with pytest.raises(ValueError, match="expected a function"):
        scheduler.bind("task", "no function")  # type: ignore[type-var]
    for wrong in ({"concurrency": 0}, {"poll_interval": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            create_scheduler(open_section.url, **wrong)  # type: ignore[arg-type]
    for url in ("nothing", "gopher://localhost/1"):
        with pytest.raises(ConfigError):
            create_scheduler(url)
    with pytest.raises(ConfigError, match="prefix"):
        create_scheduler(open_section.url, prefix="")
