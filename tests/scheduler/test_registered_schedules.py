"""Registrations in the program and in the store."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from psched import AlreadyExistsError, ScheduleError, Scheduler
from psched.model import ScheduleRow
from psched.scheduler.registered_schedules import Registration, store_registration, store_registrations
from psched.scheduler.stores import OpenStores, table_stem
from psched.schedules.collection import ScheduleCollection
from tests.scheduler.site import Site

YEARLY = "0 0 1 1 *"


def started_once(scheduler: Scheduler, **registration: Any) -> None:
    """Start a scheduler with this registration, and stop it again."""
    scheduler.bind("task", lambda data: None)
    scheduler.register("task", **registration)
    scheduler.start()
    scheduler.stop()


def stored(opened: OpenStores, name: str = "task") -> ScheduleRow:
    row = opened.schedules.store.get(name)
    assert row is not None
    return row


def test_a_registration_that_changes_in_the_code_changes_the_stored_one(sqlite_and_redis: Site) -> None:
    opened = sqlite_and_redis.opened()
    started_once(sqlite_and_redis.scheduler(), cron=YEARLY, data=1)
    assert (stored(opened).rule.cron, stored(opened).data) == (YEARLY, {"data": 1})
    other = {"cron": "30 2 * * *", "data": 2, "retry": True, "retry_timeout": 7, "timezone": "Asia/Tokyo"}
    started_once(sqlite_and_redis.scheduler(), **other)
    changed = stored(opened)
    assert (changed.rule.cron, changed.rule.timezone) == ("30 2 * * *", "Asia/Tokyo")
    assert changed.data == {"data": 2, "retry": True, "retry_timeout": 7}


def test_a_registration_removed_from_the_code_stays_and_is_logged_until_unregistered(
    site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    started_once(site.scheduler(), cron=YEARLY)
    later = site.scheduler()
    later.start()
    later.stop()
    assert "the registration 'task' (0 0 1 1 *) is in the store" in caplog.text
    assert "unregister('task')" in caplog.text
    assert later.unregister("task")
    assert site.opened().schedules.store.get("task") is None
    assert not later.unregister("task")


def test_a_registration_made_during_the_start_is_stored_although_the_database_fails(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = site.scheduler()
    scheduler.bind("task", lambda data: None)
    failures = iter((PoolTimeoutError("no connection"),) * 2)

    def store_all(schedules: ScheduleCollection, registrations: Mapping[str, Registration]) -> None:
        store_registrations(schedules, registrations)
        if not registrations:
            scheduler.register("task", YEARLY)

    def store_one(schedules: ScheduleCollection, registration: Registration) -> None:
        error = next(failures, None)
        if error is not None:
            raise error
        store_registration(schedules, registration)

    monkeypatch.setattr("psched.scheduler.threads.store_registrations", store_all)
    monkeypatch.setattr("psched.scheduler.threads.store_registration", store_one)
    scheduler.start()
    site.wait_for(lambda: site.opened().schedules.store.get("task") is not None)


def test_an_unregistered_name_is_not_stored_at_the_next_start(site: Site) -> None:
    scheduler = site.scheduler()
    started_once(scheduler, cron=YEARLY)
    scheduler.unregister("task")
    scheduler.start()
    assert site.opened().schedules.store.get("task") is None


def test_registering_at_once_in_several_instances_is_no_error(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = site.opened()
    add = opened.schedules.add
    monkeypatch.setattr("psched.schedules.collection.ScheduleCollection.add", adding_second(add))
    started_once(site.scheduler(), cron=YEARLY)
    assert stored(opened).rule.cron == YEARLY


def adding_second(add: Any) -> Any:
    """Return a version of `add` which reports that another instance has just added the schedule."""

    def adding(self: object, *arguments: Any, **more: Any) -> None:
        add(*arguments, **more)
        raise AlreadyExistsError("added by another instance")

    return adding


def test_prefixes_make_tables_of_their_own() -> None:
    assert table_stem("_schedule_mq:") == "_schedule_mq"
    assert table_stem("jobs") == "jobs"
    prefixes = ["my-app:", "my.app:", "my_app:", "1:", "11:", "a" * 50, "a" * 51, "ü:", ":a:"]
    stems = [table_stem(prefix) for prefix in prefixes]
    assert len(set(stems)) == len(prefixes)
    assert all(stem.isidentifier() and stem.isascii() and len(stem) <= 36 for stem in stems)


def test_a_name_is_registered_and_bound_once(site: Site) -> None:
    scheduler = site.scheduler()
    scheduler.bind("task", print)
    scheduler.register("task", cron=YEARLY)
    with pytest.raises(ScheduleError, match=r"'task' is bound already, to <built-in function print>"):
        scheduler.bind("task", len)
    with pytest.raises(ScheduleError, match="'task' is bound already"):

        @scheduler.bind("task")
        def task(data: Any) -> None: ...

    with pytest.raises(ScheduleError, match=r"'task' is registered already, with '0 0 1 1 \*'.*unregister\('task'\)"):
        scheduler.register("task", cron="@daily")
    scheduler.start()
    scheduler.stop()
    assert stored(site.opened()).rule.cron == YEARLY
    assert scheduler.unregister("task")
    scheduler.register("task", cron="@daily")
    with scheduler:
        assert stored(site.opened()).rule.cron == "@daily"
