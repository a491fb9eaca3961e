"""An embedded scheduler: bind, register, push, start and stop."""

from __future__ import annotations

import asyncio
import os
import queue
import threading
from collections import defaultdict
from itertools import pairwise
from typing import Any

import pytest

from psched import ConfigError, ScheduleError, create_scheduler
from psched.store.node_registry import Node, NodeRun
from tests.scheduler.site import Site

VALUES = [None, True, 0, 1.5, "im data", "", [1, [2, None]], {"a": {"b": "ü🙂"}}, {}]
EVERY_SECOND = "* * * * * *"


@pytest.fixture
def calls() -> queue.Queue[Any]:
    """The queue into which handlers put their arguments."""
    return queue.Queue()


def test_data_pushed_before_the_start_reaches_the_handler_unchanged(each_site: Site, calls: queue.Queue[Any]) -> None:
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


def test_with_retry_a_failed_task_runs_again_after_retry_timeout_until_it_succeeds(each_site: Site) -> None:
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


def test_without_retry_a_failed_task_is_not_run_again(site: Site, calls: queue.Queue[Any]) -> None:
    scheduler = site.scheduler()

    @scheduler.bind("fail")
    def fail(way: str) -> bool:
        calls.put(way)
        if way == "raise":
            raise ValueError("as told")
        return False

    with scheduler:
        for key in [scheduler.push("fail", data=way) for way in ("raise", "return False")]:
            site.wait_until_over(key)
    assert [task.status for task in site.tasks()] == ["failed", "failed"]
    assert calls.qsize() == 2


@pytest.mark.parametrize("result", [None, True, 0, "", []])
def test_returning_anything_but_false_is_success(site: Site, result: object) -> None:
    scheduler = site.scheduler()
    scheduler.bind("any", lambda data: result)
    with scheduler:
        site.wait_until_over(scheduler.push("any", retry=True))
    assert [task.status for task in site.tasks()] == ["finished"]


def test_a_delayed_task_is_not_run_before_its_time(sqlite_and_redis: Site, calls: queue.Queue[Any]) -> None:
    scheduler = sqlite_and_redis.scheduler()
    scheduler.bind("late", lambda data: calls.put(sqlite_and_redis.now()))
    with scheduler:
        pushed = sqlite_and_redis.now()
        scheduler.push("late", delay=0.7)
        assert calls.get(timeout=10) - pushed >= 0.7


def test_an_instance_acquires_only_tasks_of_names_that_it_has_bound(site: Site, calls: queue.Queue[Any]) -> None:
    one, other = site.scheduler(), site.scheduler()
    one.bind("mine", lambda data: calls.put("one"))
    other.bind("yours", lambda data: calls.put("other"))
    with one:
        one.push("yours")
        one.push("mine")
        assert calls.get(timeout=10) == "one"
        assert {task.status for task in site.tasks() if task.type == "yours"} == {"waiting"}
        with other:
            assert calls.get(timeout=10) == "other"


def test_a_task_wakes_an_idle_handler_of_the_process_that_submits_it(site: Site, calls: queue.Queue[Any]) -> None:
    scheduler = site.scheduler(poll_interval=60)
    scheduler.bind("task", calls.put)
    scheduler.register("task", cron=EVERY_SECOND, data="made of an occurrence")
    with scheduler:
        assert calls.get(timeout=10) == "made of an occurrence"
        assert calls.get(timeout=10) == "made of an occurrence"
    scheduler.unregister("task")
    with scheduler:
        for _ in range(3):
            site.wait_until_over(scheduler.push("task", data="pushed"))


def test_schedulers_with_different_prefixes_share_nothing(site: Site, calls: queue.Queue[Any]) -> None:
    one, other = site.scheduler(prefix="one:"), site.scheduler(prefix="other:")
    one.bind("task", lambda data: calls.put("one"))
    other.bind("task", lambda data: calls.put("other"))
    with one, other:
        for _ in range(3):
            one.push("task")
        assert [calls.get(timeout=10) for _ in range(3)] == ["one"] * 3
        other.clear()
        one.push("task")
        assert calls.get(timeout=10) == "one"


def test_concurrency_is_the_number_of_handlers_that_run_at_a_time(site: Site) -> None:
    together = threading.Barrier(3)
    scheduler = site.scheduler(concurrency=3)
    scheduler.bind("together", lambda data: together.wait(10))
    with scheduler:
        for _ in range(3):
            key = scheduler.push("together")
        site.wait_until_over(key)
    assert not together.broken


def test_bind_register_and_start_are_refused_until_a_stop(site: Site, calls: queue.Queue[Any]) -> None:
    scheduler = site.scheduler()
    scheduler.bind("task", calls.put)
    with scheduler:
        for forbidden in (
            lambda: scheduler.bind("other", calls.put),
            lambda: scheduler.bind("other"),
            scheduler.start,
        ):
            with pytest.raises(ScheduleError, match="while the scheduler is running; stop it first"):
                forbidden()
    scheduler.bind("other", lambda data: calls.put("other"))
    scheduler.register("other", cron=EVERY_SECOND)
    with scheduler:
        assert calls.get(timeout=10) == "other"


def test_a_registered_name_must_be_bound(site: Site) -> None:
    scheduler = site.scheduler()
    scheduler.register("unbound", cron=EVERY_SECOND)
    with pytest.raises(ScheduleError, match="not bound to a handler: 'unbound'; bind each before the start"):
        scheduler.start()


def test_stop_waits_for_running_handlers_and_acquires_no_more_tasks(site: Site, calls: queue.Queue[Any]) -> None:
    scheduler = site.scheduler(concurrency=1)
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
    site.wait_until_over(key)
    assert sorted(task.status for task in site.tasks()) == ["finished", "waiting", "waiting"]
    scheduler.start()
    assert scheduler.stop()
    assert scheduler.stop(), "stopping a stopped scheduler does nothing"


def test_a_handler_cannot_stop_the_scheduler_that_would_wait_for_it(site: Site, calls: queue.Queue[Any]) -> None:
    scheduler = site.scheduler()

    @scheduler.bind("stop")
    def stop(data: Any) -> None:
        with pytest.raises(ScheduleError, match="a handler cannot stop"):
            scheduler.stop()
        calls.put("went on")

    with scheduler:
        scheduler.push("stop")
        assert calls.get(timeout=10) == "went on"


def test_clear_removes_registrations_and_tasks(sqlite_and_redis: Site) -> None:
    scheduler = sqlite_and_redis.scheduler()
    scheduler.bind("task", lambda data: None)
    scheduler.register("task", cron="@yearly")
    scheduler.start()
    scheduler.push("unbound")
    scheduler.stop()
    scheduler.clear()
    assert not list(sqlite_and_redis.opened().schedules.list())
    assert not sqlite_and_redis.tasks()


def test_finished_and_failed_tasks_are_deleted(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psched.backends.sql.store.sent_within", lambda timeouts: 0)
    scheduler = site.scheduler(retention_time=0.2)
    scheduler.bind("good", lambda data: None)
    scheduler.bind("bad", lambda data: False)
    with scheduler:
        for _ in range(3):
            scheduler.push("good")
            scheduler.push("bad")
        site.wait_for(lambda: not site.tasks())


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
def test_push_refuses_values_that_cannot_be_stored(site: Site, wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="data|delay|retry|key|name"):
        site.scheduler().push(**{"name": "task", **wrong})


def test_unusable_arguments_are_refused_at_the_call(site: Site) -> None:
    scheduler = site.scheduler()
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
            create_scheduler(site.url, **wrong)  # type: ignore[arg-type]
    for url in ("nothing", "gopher://localhost/1"):
        with pytest.raises(ConfigError):
            create_scheduler(url)
    with pytest.raises(ConfigError, match="prefix"):
        create_scheduler(site.url, prefix="")


def test_an_instance_tells_what_it_runs_until_it_stops(sqlite_and_redis: Site) -> None:
    scheduler, ends = sqlite_and_redis.scheduler(), threading.Event()
    scheduler.bind("long", lambda data: ends.wait(10))
    nodes = sqlite_and_redis.opened().queue.nodes
    assert nodes is not None
    scheduler.push("long")
    with scheduler:
        [node] = sqlite_and_redis.wait_for(lambda: [node for node in nodes.alive() if any(_runs(node))])
        assert (node.pid, node.section) == (os.getpid(), "queue")
        [run] = _runs(node)
        assert node.started < run.since <= sqlite_and_redis.now()
        ends.set()
    assert nodes.known() == []


def _runs(node: Node) -> list[NodeRun]:
    return [run for process in node.processes for run in process.runs]
