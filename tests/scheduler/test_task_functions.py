"""Functions decorated by an App, in an embedded scheduler: arguments, options, registrations, submits."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest

import psched
from psched import App, ArgumentsError, ScheduleError, Task
from tests.scheduler.site import Site

DAY = date(2026, 11, 23)
ran: list[tuple[Any, ...]] = []
app = App()


@app.task("report", priority=7)
def report(task: Task, region: str, *, day: date | None = None) -> int:
    ran.append((task.key, region, day))
    return len(region)


@app.task("fail", max_attempts=2, retry_wait=0)
async def fail(region: str) -> None:
    ran.append((region,))
    await asyncio.sleep(0)
    raise ValueError("as told")


@pytest.fixture(autouse=True)
def _configured() -> Iterator[None]:
    ran.clear()
    yield
    psched.configure(None)


def test_a_bound_function_gets_its_arguments_from_submits_and_occurrences(each_site: Site) -> None:
    scheduler = each_site.scheduler(timezone="UTC")
    assert scheduler.bind(report) is report
    scheduler.register(report, "* * * * * *", data={"region": "north", "day": DAY})
    psched.configure(scheduler)
    key = report.using(key="k1").submit("south").key
    with scheduler:
        each_site.wait_for(lambda: {("k1", "south", None)} < set(ran))
        psched.configure(None)
    occurrences = [entry for entry in ran if entry[0] != key]
    assert occurrences[0][0].startswith("report@")
    assert occurrences[0][1:] == ("north", DAY)
    rows = {row.key: row for row in each_site.tasks()}
    assert (rows[key].data, rows[key].priority) == ({"region": "south"}, 7)
    assert rows[occurrences[0][0]].priority == 7


def test_the_options_of_the_type_hold(redis_site: Site) -> None:
    scheduler = redis_site.scheduler()
    scheduler.bind(fail)
    psched.configure(scheduler)
    with scheduler:
        queued = fail.submit("x")
        redis_site.wait_for(lambda: queued.metadata().status == "failed")
        psched.configure(None)
    assert ran == [("x",), ("x",)]


def test_a_handler_sees_its_task_as_current(redis_site: Site) -> None:
    scheduler = redis_site.scheduler()
    seen: list[str] = []

    @scheduler.bind
    @app.task("current")
    def current() -> None:
        assert scheduler.current is not None
        seen.append(scheduler.current.key)

    psched.configure(scheduler)
    with scheduler:
        current.using(key="k1").submit()
        redis_site.wait_for(lambda: seen == ["k1"])
        psched.configure(None)


def test_what_does_not_fit_the_function_is_refused_when_it_is_registered(site: Site) -> None:
    scheduler = site.scheduler()
    with pytest.raises(TypeError, match=r"report\(\): missing a required argument: 'region'"):
        scheduler.register(report, "@daily")
    with pytest.raises(ValueError, match="region: expected text, got 5"):
        scheduler.register(report, "@daily", data={"region": 5})
    with pytest.raises(ValueError, match="data must be a mapping of the arguments of report, got 'north'"):
        scheduler.register(report, "@daily", data="north")
    with pytest.raises(ValueError, match=r"report: retry is for functions bound by a name; write retry_wait= in @app"):
        scheduler.register(report, "@daily", data={"region": "north"}, retry=True)


def test_the_name_of_a_bound_function_does_not_stand_for_it(site: Site) -> None:
    scheduler = site.scheduler()
    scheduler.register("report", "@daily", data={"region": "north"})
    with pytest.raises(ArgumentsError, match="region is missing; data is not a parameter"):
        scheduler.bind(report)
    scheduler.unregister("report")
    scheduler.bind(report)
    with pytest.raises(ValueError, match=r"'report' is the type of a decorated function; write report\.submit\(…\)"):
        scheduler.push("report", {"region": "north"})
    with pytest.raises(ValueError, match=r"'report' is the type of a decorated function; write report\.submit\(…\)"):
        scheduler.push(report, data={"region": "x"})  # type: ignore[call-overload]
    with pytest.raises(ValueError, match=r"'report' is the type of a decorated function; write register\(report, …\)"):
        scheduler.register("report", "@daily", data={"region": "north"})
    with pytest.raises(ScheduleError, match="'report' is bound already"):
        scheduler.bind(report)


def test_a_registered_function_can_be_unregistered(site: Site) -> None:
    scheduler = site.scheduler()
    scheduler.bind(report)
    scheduler.register(report, "@daily", data={"region": "north"})
    with scheduler:
        assert [row.data for row in site.opened().schedules.list()] == [{"region": "north"}]
    assert scheduler.unregister(report)
    assert list(site.opened().schedules.list()) == []
