"""Two instances change registrations while they run, on every store."""

from __future__ import annotations

import queue
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from psched import ConfigError, NotFoundError, ScheduleError, Scheduler
from tests.scheduler.site import Site

EVERY_SECOND = "* * * * * *"
YEARLY = "0 0 1 1 *"
PATIENCE = 30


def pair(site: Site) -> tuple[Scheduler, Scheduler, queue.Queue[Any]]:
    """Return two started instances that have bound `task`, and a queue with the arguments of its handlers' calls."""
    calls: queue.Queue[Any] = queue.Queue()
    schedulers = (site.scheduler(poll_interval=0.2), site.scheduler(poll_interval=0.2))
    for scheduler in schedulers:
        scheduler.bind("task", calls.put)
        scheduler.start()
    return (*schedulers, calls)


def listed(scheduler: Scheduler) -> dict[str, str]:
    return {row.key: row.rule.cron for row in scheduler.registrations()}


def test_a_registration_is_made_changed_paused_and_removed_while_instances_run(
    each_site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    one, other, calls = pair(each_site)
    one.register("task", EVERY_SECOND, data="first")
    assert calls.get(timeout=PATIENCE) == "first"
    other.modify("task", data="second")
    while calls.get(timeout=PATIENCE) != "second":
        pass
    assert other.pause("task")
    assert not one.pause("task")
    [row] = one.registrations()
    assert row.paused
    other.modify("task", cron=YEARLY, data="third")
    one.run_now("task")
    while calls.get(timeout=PATIENCE) != "third":
        pass
    assert one.resume("task")
    assert listed(other) == {"task": YEARLY}
    other.register("task", every="2h", spread=60)
    assert listed(one) == {"task": "@every 2h"}
    assert "changed the stored registration 'task' to that of this newer instance: @every 2h" in caplog.text
    assert other.unregister("task")
    assert listed(one) == {}
    with pytest.raises(NotFoundError, match="'task'"):
        other.modify("task", cron=YEARLY)


def test_a_moment_comes_once(each_site: Site) -> None:
    one, other, calls = pair(each_site)
    one.register("task", at=each_site.now() + 4, data="once", timezone="Asia/Tokyo")
    assert calls.get(timeout=PATIENCE) == "once"
    each_site.wait_for(lambda: all(row.ended for row in other.registrations()))
    assert calls.empty()


def test_a_registration_takes_the_terms_of_a_schedule(site: Site) -> None:
    with site.opened().schedules as schedules:
        schedules.calendars.set("holidays", ["2027-01-01"])
        scheduler = site.scheduler()
        scheduler.bind("task", print)
        terms: dict[str, Any] = {"start": 1_900_000_000, "max_runs": 3, "spread": 60, "owner": "team", "delay": 5}
        scheduler.register("task", YEARLY, exclude=["holidays"], alert_after=60, **terms)
        with scheduler:
            [row] = scheduler.registrations()
            assert {name: getattr(row.rule, name, None) or getattr(row.policy, name, None) for name in terms} == terms
            assert [each.name for each in row.rule.exclude] == ["holidays"]
            scheduler.modify("task", max_runs=None, exclude=[])
            [row] = scheduler.registrations()
            assert (row.rule.max_runs, row.rule.exclude, row.rule.delay, row.policy.alert_after) == (None, (), 5, 60)
        with scheduler:
            assert scheduler.registrations() == [row], "the next start stores what modify has changed"


def test_a_pause_lasts_over_a_restart(site: Site) -> None:
    scheduler = site.scheduler(misfire_grace_time=0)
    scheduler.bind("task", print)
    scheduler.register("task", EVERY_SECOND)
    with scheduler:
        scheduler.pause("task")
    before = scheduler.registrations()
    site.wait_for(lambda: site.now() > before[0].next_time + 1)
    with scheduler:
        site.wait_for(lambda: site.now() > before[0].next_time + 2)
    assert scheduler.registrations() == before


@pytest.mark.parametrize(
    ("every", "expression"),
    [(90, "@every 90s"), (timedelta(minutes=5), "@every 300s"), ("1d phase 3h", "@every 1d phase 3h")],
)
def test_intervals(site: Site, every: Any, expression: str) -> None:
    scheduler = site.scheduler()
    scheduler.bind("task", print)
    scheduler.register("task", every=every)
    with scheduler:
        assert listed(scheduler) == {"task": expression}


@pytest.mark.parametrize(
    "at",
    [
        "2027-03-01T10:00:00",
        datetime(2027, 3, 1, 10, 0),  # noqa: DTZ001 - in the time zone of the registration
        datetime(2027, 3, 1, 9, 0, tzinfo=UTC),
        datetime(2027, 3, 1, 9, 0, tzinfo=UTC).timestamp(),
        datetime(2027, 3, 1, 9, 59, 59, 1),  # noqa: DTZ001 - never before the given time
        datetime(2027, 3, 1, 8, 59, 59, 1, tzinfo=UTC),
        datetime(2027, 3, 1, 8, 59, 59, 500_000, tzinfo=UTC).timestamp(),
    ],
)
def test_moments(site: Site, at: Any) -> None:
    scheduler = site.scheduler(timezone="Europe/Paris")
    scheduler.bind("task", print)
    scheduler.register("task", at=at)
    with scheduler:
        assert listed(scheduler) == {"task": "@at 2027-03-01T10:00:00"}


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "give exactly one of cron=, every= and at="),
        ({"cron": YEARLY, "every": 5}, ValueError, "got cron, every"),
        ({"every": 1.5}, ValueError, "whole seconds"),
        ({"at": datetime(2027, 10, 31, 1, 0, tzinfo=UTC), "timezone": "Europe/Paris"}, ValueError, "twice"),
        ({"at": datetime.max.replace(tzinfo=UTC), "timezone": "Europe/Paris"}, ValueError, "9999-12-31 23.* 1970 to"),
        ({"at": datetime.min.replace(tzinfo=UTC), "timezone": "America/Lima"}, ValueError, "0001-01-01 00.* 1970 to"),
        ({"at": datetime.min.replace(tzinfo=ZoneInfo("Asia/Tokyo"))}, ValueError, "0001-01-01 00.* 1970 to"),
        (
            {"at": date(2027, 1, 1)},
            ValueError,
            r"at must be a datetime, unix seconds or text such as .*, got datetime\.date",
        ),
        ({"at": -1}, ValueError, "at must be unix seconds, a number from 0"),
        ({"at": 253402300799, "timezone": "Europe/Paris"}, ValueError, "at 253402300799.* 1970 to 9999"),
        ({"at": 5, "timezone": "Nowhere"}, ConfigError, "Nowhere"),
        ({"cron": YEARLY, "max_attempts": 3}, ValueError, "retry=True"),
        ({"cron": YEARLY, "colour": 3}, TypeError, "'colour'"),
        ({"crn": YEARLY}, TypeError, "unknown option 'crn'; did you mean 'cron'"),
        ({"cron": YEARLY, "max_runs": 0}, ValueError, "max_runs"),
    ],
)
def test_wrong_registrations_are_refused(
    site: Site, arguments: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        site.scheduler().register("task", **arguments)


def test_a_name_that_is_not_bound_is_refused_while_the_scheduler_runs(site: Site) -> None:
    with site.scheduler() as scheduler:
        with pytest.raises(ScheduleError, match="'task' is not bound to a handler; bind it before the start"):
            scheduler.register("task", YEARLY)
        assert scheduler.registrations() == []


@pytest.mark.parametrize("call", [Scheduler.pause, Scheduler.resume, Scheduler.run_now])
def test_a_registration_that_is_not_stored_is_named(site: Site, call: Callable[[Scheduler, str], object]) -> None:
    scheduler = site.scheduler()
    with pytest.raises(NotFoundError, match="^the database has no registration 'task'$"):
        call(scheduler, "task")
    scheduler.register("task", YEARLY)
    with pytest.raises(NotFoundError, match="no registration 'task'; the start of this scheduler stores it"):
        call(scheduler, "task")


def test_a_registration_that_cannot_be_stored_is_not_kept(site: Site) -> None:
    scheduler = site.scheduler()
    scheduler.bind("task", print)
    with scheduler:
        site.wait_for(lambda: scheduler.registrations() == [])
        with pytest.raises(ConfigError, match="there is no calendar 'none'"):
            scheduler.register("task", YEARLY, exclude=["none"])
        scheduler.register("task", YEARLY)
        assert listed(scheduler) == {"task": YEARLY}
