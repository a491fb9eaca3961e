"""A prefetched schedule that never began is charged no attempt. `rdb_compat` counts no attempts."""

from __future__ import annotations

from psched.model import Claim
from psched.store import ScheduleStore
from tests.stores.bench import Bench, eventually, soon


def taken_again(store: ScheduleStore, ahead: bool = True, alive_time: float = 100) -> Claim:
    """Wait until the lease of the only row has ended, and acquire the row."""
    (claim,) = eventually(lambda: store.acquire(5, alive_time, ahead=ahead))
    return claim


def counted(bench: Bench, claim: Claim) -> int | None:
    return None if bench.compat else claim.row.attempts


def test_a_lease_that_ends_before_its_run_begins_is_no_attempt_however_often(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.add(store, "key")
    (first,) = store.acquire(5, bench.lease, ahead=True)
    assert not first.records_begin
    claims = [taken_again(taker, alive_time=bench.lease) for taker in (other, store, other)]
    assert {counted(bench, claim) for claim in claims} == {None if bench.compat else 1}
    assert all(claim.records_begin is not bench.compat for claim in claims), "none knows what became of it"
    assert other.failing(0, 10) == []


def test_a_run_that_is_recorded_as_begun_counts_however_its_lease_ends(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.add(store, "key")
    (claim,) = store.acquire(5, bench.lease, ahead=True)
    assert store.extend([claim.lease], bench.lease, begun=True) != [None]
    second = taken_again(other, alive_time=bench.lease)
    assert counted(bench, second) == (None if bench.compat else 2)
    assert second.records_begin is not bench.compat
    assert counted(bench, taken_again(store)) == (None if bench.compat else 2), "the second run never began"


def test_to_renew_what_waits_does_not_begin_it(bench: Bench, store: ScheduleStore, other: ScheduleStore) -> None:
    bench.add(store, "key")
    (claim,) = store.acquire(5, bench.lease, ahead=True)
    assert store.extend([claim.lease], bench.lease, begun=False) != [None]
    assert counted(bench, taken_again(other)) == (None if bench.compat else 1)


def test_what_is_not_prefetched_has_begun(bench: Bench, store: ScheduleStore, other: ScheduleStore) -> None:
    bench.add(store, "key")
    bench.take(store, "key", bench.lease)
    claim = taken_again(other, ahead=False)
    assert counted(bench, claim) == (None if bench.compat else 2)
    assert not claim.records_begin


def test_a_lease_that_its_holder_ends_leaves_nothing_unknown(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    attempts = []
    for verb in ("release", "retry", "give back", ""):
        (claim,) = store.acquire(5, 100, ahead=True)
        assert not claim.records_begin
        attempts.append(claim.row.attempts)
        if verb == "release":
            store.release(claim.lease, soon())
        elif verb == "retry":
            store.retry(claim.lease, 0, "error", soon())
        elif verb == "give back" and bench.compat:
            break
        elif verb == "give back":
            assert store.give_back(store.get("key").node, [], 300) == 1  # type: ignore[union-attr,arg-type]
    assert bench.compat or attempts == [1, 1, 2, 2]


def test_what_is_given_back_after_a_lease_that_ended_before_its_run_has_no_attempt(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    if bench.compat:
        return
    bench.add(store, "key")
    store.acquire(5, bench.lease, ahead=True)
    claim = taken_again(other)
    other.release(claim.lease, soon())
    row = store.get("key")
    assert row is not None
    assert row.attempts == 0


def test_a_renewal_tells_that_the_schedule_is_paused(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    (claim,) = store.acquire(5, 100, ahead=True)
    held, told = claim.lease, []
    for pause in ({}, {"paused_from": 1000}, {"paused_from": 1000, "paused_until": 2000}):
        if pause and not bench.compat:
            bench.write("key", **pause)
        (lease,) = store.extend([held], 100, begun=False)
        assert lease is not None
        held = lease
        told.append(lease.paused)
    assert told == [False, not bench.compat, False]
