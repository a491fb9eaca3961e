"""Occurrences that became due while no instance was running are skipped; others are not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from psched import Scheduler
from psched.execution.stop_event import StopEvent
from psched.model import NewTask, ScheduleRow
from psched.scheduler.instance_registry import INSTANCE, Instance, InstanceRegistry
from psched.scheduler.skip_missed import MissedOccurrences
from psched.scheduler.stores import OpenStores
from psched.time_text import local_time
from tests.scheduler.site import Site

EVERY_SECOND = "* * * * * *"
NAME = "task"


def stored(opened: OpenStores) -> ScheduleRow:
    row = opened.schedules.store.get(NAME)
    assert row is not None
    return row


def add_overdue(site: Site, seconds: float = 0) -> int:
    """Add a registration that has been due for `seconds`.

    Wait until it has two due occurrences, and return the first.
    """
    opened = site.opened()
    opened.schedules.add(NAME, NAME, cron=EVERY_SECOND, next_time=int(opened.queue.now() - seconds) + 1)
    due = stored(opened).next_time
    site.wait_for(lambda: opened.queue.now() > due + 1)
    return due


@contextmanager
def instance(site: Site, lease: float = 60) -> Iterator[InstanceRegistry]:
    """Register an instance that has bound the name but sends no heartbeats. `lease`: seconds."""
    registry = InstanceRegistry(site.opened().queue, {NAME}, lease)
    registry.register()
    yield registry
    registry.unregister()


def missed_occurrences(site: Site, registry: InstanceRegistry, patience: float = 0.5) -> MissedOccurrences:
    """Return the object that decides on missed occurrences, for an instance that starts now. Its grace is 0 seconds."""
    return MissedOccurrences(site.opened().schedules, registry, {NAME}, registry.register(), 0, patience)


@pytest.fixture
def new_instance(site: Site) -> InstanceRegistry:
    """Return the registry of an instance that is not registered yet."""
    return InstanceRegistry(site.opened().queue, {NAME})


def test_occurrences_of_a_downtime_are_skipped(sqlite_and_redis: Site, caplog: pytest.LogCaptureFixture) -> None:
    calls: queue.Queue[int] = queue.Queue()
    opened = sqlite_and_redis.opened()
    scheduler = sqlite_and_redis.scheduler()
    scheduler.bind(NAME, lambda data: calls.put(occurrence(scheduler)))
    scheduler.register(NAME, cron=EVERY_SECOND)
    missed = int(opened.queue.now()) - 3600
    opened.schedules.add(NAME, NAME, cron=EVERY_SECOND, next_time=missed, data={"data": None})
    before = opened.queue.now()
    with scheduler:
        found = [calls.get(timeout=10) for _ in range(2)]
    assert found[0] >= int(before)
    assert found[1] == found[0] + 1
    assert f"'task' was due at {local_time(missed)}, when no instance ran" in caplog.text


def test_occurrences_of_a_downtime_shorter_than_the_misfire_grace_time_are_run(site: Site) -> None:
    calls: queue.Queue[int] = queue.Queue()
    scheduler = site.scheduler(misfire_grace_time=20)
    scheduler.bind(NAME, lambda data: calls.put(occurrence(scheduler)))
    scheduler.register(NAME, cron=EVERY_SECOND)
    missed = int(site.opened().queue.now()) - 8
    site.opened().schedules.add(NAME, NAME, cron=EVERY_SECOND, next_time=missed, data={"data": None})
    with scheduler:
        assert set(range(missed, missed + 8)) <= {calls.get(timeout=10) for _ in range(12)}


def occurrence(scheduler: Scheduler) -> int:
    assert scheduler.current is not None
    return scheduler.current.scheduled_time


def test_an_occurrence_that_came_while_an_instance_lived_is_not_skipped(
    site: Site, new_instance: InstanceRegistry
) -> None:
    with instance(site) as old:
        due = add_overdue(site, -2)
        missed_occurrences(site, new_instance).skip(StopEvent())
        assert stored(site.opened()).next_time == due
        old.unregister()
        decision = missed_occurrences(site, new_instance)
        decision.skip(StopEvent())
        assert stored(site.opened()).next_time >= decision.since


def test_only_occurrences_before_the_first_live_instance_are_skipped(
    site: Site, new_instance: InstanceRegistry
) -> None:
    add_overdue(site, 100)
    with instance(site):
        since = site.now()
        site.wait_for(lambda: site.now() > since + 1.1)
        missed_occurrences(site, new_instance).skip(StopEvent())
        kept = stored(site.opened()).next_time
        assert since - 1 < kept < since + 1.1, "occurrences since the start of the first instance are not skipped"


def test_an_instance_whose_lease_has_ended_is_waited_for_and_then_deleted(
    site: Site, new_instance: InstanceRegistry
) -> None:
    with instance(site, lease=0.01):
        due = add_overdue(site)
        decision = missed_occurrences(site, new_instance, patience=0.6)
        thread = threading.Thread(target=decision.skip, args=(StopEvent(),))
        thread.start()
        thread.join(0.3)
        assert stored(site.opened()).next_time == due, "the instance was not waited for"
        thread.join()
        assert stored(site.opened()).next_time >= decision.since
        assert new_instance.others() == []


def test_occurrences_of_an_instance_that_renews_its_ended_lease_are_not_skipped(
    site: Site, new_instance: InstanceRegistry
) -> None:
    with instance(site, lease=1.0) as old:
        due = add_overdue(site)
        site.wait_for(lambda: not sees_live_instance(new_instance))
        decision = missed_occurrences(site, new_instance, patience=20)
        thread = threading.Thread(target=decision.skip, args=(StopEvent(),))
        thread.start()
        thread.join(0.2)
        old.heartbeat()
        thread.join()
        assert stored(site.opened()).next_time == due


def sees_live_instance(new_instance: InstanceRegistry) -> bool:
    return any(other.is_alive for other in new_instance.others())


def test_a_missed_occurrence_of_a_dead_worker_is_skipped_when_its_lease_has_ended(
    site: Site, new_instance: InstanceRegistry
) -> None:
    add_overdue(site, 100)
    assert site.opened().schedules.store.acquire(1, 1.0, [NAME])
    decision = missed_occurrences(site, new_instance)
    decision.skip(StopEvent())
    row = stored(site.opened())
    assert row.next_time >= decision.since
    assert row.settled


def test_a_stop_ends_the_wait_for_an_instance_whose_lease_has_ended(site: Site, new_instance: InstanceRegistry) -> None:
    with instance(site, lease=0.01):
        due = add_overdue(site)
        stopping = StopEvent()
        thread = threading.Thread(target=missed_occurrences(site, new_instance, patience=3600).skip, args=(stopping,))
        thread.start()
        stopping.set()
        thread.join(10)
        assert not thread.is_alive()
        assert stored(site.opened()).next_time == due


def test_a_heartbeat_row_that_was_deleted_is_created_again(site: Site, new_instance: InstanceRegistry) -> None:
    with instance(site) as old:
        new_instance.delete([old.key])
        assert new_instance.others() == []
        old.heartbeat()
        assert sees_live_instance(new_instance)


def test_the_row_of_an_instance_that_died_long_ago_is_deleted(
    site: Site, new_instance: InstanceRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("psched.scheduler.instance_registry.INTERVAL", 0.1)
    monkeypatch.setattr("psched.scheduler.instance_registry._CLEANUP_INTERVAL", 5)
    with instance(site, lease=0.01), instance(site) as alive:
        new_instance.register()
        for _ in range(4):
            new_instance.heartbeat()
        site.wait_for(lambda: dead(new_instance))
        (expired,) = [each.expires_at for each in dead(new_instance)]
        site.wait_for(lambda: site.opened().queue.now() > expired + 1)
        new_instance.heartbeat()
        assert [each.key for each in new_instance.others()] == [alive.key]


def dead(new_instance: InstanceRegistry) -> list[Instance]:
    return [each for each in new_instance.others() if not each.is_alive]


def test_a_row_without_names_is_an_instance_that_has_bound_none(site: Site, new_instance: InstanceRegistry) -> None:
    foreign: dict[str, Any] = {"names": None}
    site.opened().queue.submit([NewTask("foreign", INSTANCE, foreign)])
    assert [other.names for other in new_instance.others()] == [frozenset()]
