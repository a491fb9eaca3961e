"""A lease on a task is identified by its fence, the number of its acquire, and its holder."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from psched.errors import ScheduleError
from psched.model import Claim
from psched.store import TaskStore
from tests.stores.bench import LOST, soon
from tests.stores.queue.bench import QueueBench, row_of


def test_tasks_of_users_and_preempted_tasks_have_fences_by_the_clock(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["key"], user="u")
    takes: list[Callable[[], Claim]] = [lambda: ours.claim(store, "key"), lambda: other.preempt("key", 100)]
    for take in takes:
        ours.write("key", fence=5)
        before = store.now()
        assert int(before * 1000) <= take().lease.fence <= store.now() * 1000


@pytest.mark.parametrize("verb", ["retire", "retire_many", "update_data"])
def test_a_lease_on_a_deleted_task_is_none_on_the_next_one_with_its_fence(ours: QueueBench, verb: str) -> None:
    store = ours.queue()
    ours.submit(store, ["key"])
    old = ours.claim(store, "key")
    store.delete("key")
    ours.submit(store, ["key"])
    new = ours.claim(store, "key")
    ours.write("key", fence=old.lease.fence)
    before = ours.raw("key")
    assert settle(store, old, verb) is not None
    assert store.extend([old.lease], 200) == [None]
    assert ours.raw("key") == before
    assert settle(store, Claim(new.row, new.lease._replace(fence=old.lease.fence)), verb) is None


@pytest.mark.parametrize("verb", ["retire", "retire_many", "update_data"])
def test_a_lease_is_worth_nothing_to_another_holder(ours: QueueBench, verb: str) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["key"])
    claim = ours.claim(store, "key")
    assert settle(other, claim, verb) is not None
    assert row_of(store, "key").status == "running"
    assert settle(store, claim, verb) is None


def test_a_lease_taken_by_preempting_settles_and_renews(ours: QueueBench) -> None:
    store = ours.queue()
    ours.submit(store, ["key"])
    claim = store.preempt("key", 100)
    (lease,) = store.extend([claim.lease], 200)
    assert lease is not None
    assert settle(store, Claim(claim.row, lease), "retire") is None


def settle(store: TaskStore, claim: Claim, verb: str) -> object:
    """Settle or write with the lease. Return None if that succeeded, else the error."""
    verbs: dict[str, Callable[[], object]] = {
        "retire": lambda: store.retire(claim, "finished", None, 100, soon()),
        "retire_many": lambda: store.retire_many([claim], "finished", 100, soon())[0],
        "update_data": lambda: store.update_data(claim, {"n": 2}, soon()),
    }
    try:
        found = verbs[verb]()
    except ScheduleError as error:
        found = error
    assert found is None or isinstance(found, LOST)
    return found
