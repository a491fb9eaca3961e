"""Occurrences that came due while no instance ran are skipped; others are not."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from psched import Scheduler
from psched.clock import local_time
from psched.execution.stop_event import StopEvent
from psched.model import NewTask, ScheduleRow
from psched.scheduler.instances import InstanceRegistry
from psched.scheduler.jobs import INSTANCE
from psched.scheduler.missed import MissedOccurrences
from psched.scheduler.stores import OpenStores
from tests.scheduler.site import Site

EVERY_SECOND = "* * * * * *"
NAME = "task"


def stored(opened: OpenStores) -> ScheduleRow:
    row = opened.schedules.store.get(NAME)
    assert row is not None
    return row


def add_overdue(open_section: Site, seconds: float = 0) -> int:
    """Add a registration that is due since so many seconds, wait until two occurrences are over; return the first."""
    opened = open_section.opened()
    opened.schedules.add(NAME, NAME, cron=EVERY_SECOND, next_time=int(opened.queue.now() - seconds) + 1)
    due = stored(opened).next_time
    open_section.wait_for(lambda: opened.queue.now() > due + 1)
    return due


@contextmanager
def instance(open_section: Site, lease: float = 60) -> Iterator[InstanceRegistry]:
    """An instance that has bound the name; it sends no further heartbeat by itself."""
    registry = InstanceRegistry(open_section.opened().queue, {NAME}, lease)
    registry.register()
    yield registry
    registry.unregister()


def missed_occurrences(open_section: Site, registry: InstanceRegistry, patience: float = 0.5) -> MissedOccurrences:
    """The decision of the instance of `registry`, which starts now, without grace."""
    return MissedOccurrences(
        open_section.opened().schedules, registry, {NAME}, registry.register(), patience=patience, grace=0
    )


@pytest.fixture
def newcomer(open_section: Site) -> InstanceRegistry:
    """The instance that starts."""
    return InstanceRegistry(open_section.opened().queue, {NAME})


def test_nothing_that_came_in_a_downtime_is_run(file_and_server: Site, caplog: pytest.LogCaptureFixture) -> None:
    calls: queue.Queue[int] = queue.Queue()
    opened = file_and_server.opened()
    scheduler = file_and_server.scheduler()
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


def occurrence(scheduler: Scheduler) -> int:
    assert scheduler.current is not None
    return scheduler.current.scheduled_time


def test_what_came_while_an_instance_lived_is_left_to_be_run(open_section: Site, newcomer: InstanceRegistry) -> None:
    with instance(open_section) as old:
        due = add_overdue(open_section, -2)
        missed_occurrences(open_section, newcomer).skip(StopEvent())
        assert stored(open_section.opened()).next_time == due
        old.unregister()
        decision = missed_occurrences(open_section, newcomer)
        decision.skip(StopEvent())
        assert stored(open_section.opened()).next_time >= decision.since


def test_an_instance_that_came_later_is_no_witness_but_its_own_time_is_kept(
    open_section: Site, newcomer: InstanceRegistry
) -> None:
    add_overdue(open_section, 100)
    with instance(open_section):
        since = open_section.now()
        open_section.wait_for(lambda: open_section.now() > since + 1.1)
        missed_occurrences(open_section, newcomer).skip(StopEvent())
        kept = stored(open_section.opened()).next_time
        assert since - 1 < kept < since + 1.1, "what came since the first of the two is not skipped"


def test_an_instance_without_heartbeat_is_waited_for_and_then_deleted(
    open_section: Site, newcomer: InstanceRegistry
) -> None:
    with instance(open_section, lease=0.01):
        due = add_overdue(open_section)
        decision = missed_occurrences(open_section, newcomer, patience=0.6)
        thread = threading.Thread(target=decision.skip, args=(StopEvent(),))
        thread.start()
        thread.join(0.3)
        assert stored(open_section.opened()).next_time == due, "it was not waited for"
        thread.join()
        assert stored(open_section.opened()).next_time >= decision.since
        assert newcomer.others() == []


def test_an_instance_that_had_only_lost_the_database_keeps_what_it_lived_through(
    open_section: Site, newcomer: InstanceRegistry
) -> None:
    with instance(open_section, lease=1.0) as old:
        due = add_overdue(open_section)
        open_section.wait_for(lambda: not newcomer_sees_life(newcomer))
        decision = missed_occurrences(open_section, newcomer, patience=20)
        thread = threading.Thread(target=decision.skip, args=(StopEvent(),))
        thread.start()
        thread.join(0.2)
        old.heartbeat()
        thread.join()
        assert stored(open_section.opened()).next_time == due


def newcomer_sees_life(newcomer: InstanceRegistry) -> bool:
    return any(other.is_alive for other in newcomer.others())


def test_an_occurrence_that_somebody_died_with_is_skipped_when_his_lease_is_over(
    open_section: Site, newcomer: InstanceRegistry
) -> None:
    add_overdue(open_section, 100)
    assert open_section.opened().schedules.store.acquire(1, 1.0, [NAME])
    decision = missed_occurrences(open_section, newcomer)
    decision.skip(StopEvent())
    row = stored(open_section.opened())
    assert row.next_time >= decision.since
    assert row.settled


def test_the_order_to_stop_ends_the_waiting(open_section: Site, newcomer: InstanceRegistry) -> None:
    with instance(open_section, lease=0.01):
        due = add_overdue(open_section)
        stopping = StopEvent()
        thread = threading.Thread(
            target=missed_occurrences(open_section, newcomer, patience=3600).skip, args=(stopping,)
        )
        thread.start()
        stopping.set()
        thread.join(10)
        assert not thread.is_alive()
        assert stored(open_section.opened()).next_time == due


def test_a_heartbeat_row_that_was_deleted_is_created_again(open_section: Site, newcomer: InstanceRegistry) -> None:
    with instance(open_section) as old:
        newcomer.delete([old.key])
        assert newcomer.others() == []
        old.heartbeat()
        assert newcomer_sees_life(newcomer)


def test_a_row_that_says_nothing_usable_is_no_instance(open_section: Site, newcomer: InstanceRegistry) -> None:
    foreign: dict[str, Any] = {"names": None}
    open_section.opened().queue.submit([NewTask("foreign", INSTANCE, foreign)])
    assert [other.names for other in newcomer.others()] == [frozenset()]
