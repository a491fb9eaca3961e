"""A prefetched task that never began is charged no attempt, on each store that counts attempts."""

from __future__ import annotations

from psched.model import Claim
from psched.store import TaskStore
from tests.stores.bench import eventually, soon
from tests.stores.queue.bench import QueueBench, row_of


def taken_again(store: TaskStore, ahead: bool = True, alive_time: float = 100) -> Claim:
    """Wait until the lease of the only row has ended, and acquire the row."""
    (claim,) = eventually(lambda: store.acquire(5, alive_time, ahead=ahead))
    return claim


def test_a_lease_that_ends_before_its_run_begins_is_no_attempt_however_often(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["key"], user="u", max_running=1, max_attempts=1)
    (first,) = store.acquire(5, ours.lease, ahead=True)
    assert not first.records_begin
    claims = [taken_again(taker, alive_time=ours.lease) for taker in (other, store, other)]
    assert [(claim.row.attempts, claim.records_begin) for claim in claims] == [(1, True)] * 3


def test_a_run_that_is_recorded_as_begun_counts_however_its_lease_ends(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["key"])
    (claim,) = store.acquire(5, ours.lease, ahead=True)
    assert store.extend([claim.lease], ours.lease, begun=True) != [None]
    second = taken_again(other, alive_time=ours.lease)
    assert (second.row.attempts, second.records_begin) == (2, True)
    third = taken_again(store, ahead=False)
    assert (third.row.attempts, third.records_begin) == (2, False), "the second run never began"


def test_to_renew_what_waits_does_not_begin_it(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["key"])
    (claim,) = store.acquire(5, ours.lease, ahead=True)
    assert store.extend([claim.lease], ours.lease, begun=False) != [None]
    assert taken_again(other).row.attempts == 1


def test_what_is_not_prefetched_has_begun(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["key"])
    ours.claim(store, "key", ours.lease)
    assert taken_again(other, ahead=False).row.attempts == 2


def test_preempting_what_was_prefetched_counts_one_attempt(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["ahead"])
    store.acquire(5, 100, ahead=True)
    assert other.preempt("ahead", 100).row.attempts == 1
    assert store.preempt("ahead", 100).row.attempts == 2, "who preempts begins at once"


def test_a_lease_that_its_holder_ends_leaves_nothing_unknown(ours: QueueBench) -> None:
    store, other = ours.queue(), ours.queue()
    ours.submit(store, ["key"])
    store.acquire(5, ours.lease, ahead=True)
    other.release(taken_again(other).lease, soon())
    assert row_of(store, "key").attempts == 0
    (claim,) = store.acquire(5, 100, ahead=True)
    store.retry(claim.lease, 0, "error", soon())
    (claim,) = store.acquire(5, 100, ahead=True)
    assert (claim.row.attempts, claim.records_begin) == (2, False)
