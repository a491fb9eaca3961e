"""Extending many leases by one call, and recognising the lost ones."""

from __future__ import annotations

import threading

from psched.model import Claim, Lease
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, eventually, keys_of, soon


def test_extending_moves_the_end_of_a_lease(bench: Bench, store: ScheduleStore, other: ScheduleStore) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key", bench.lease)
    before = store.now()
    (lease,) = store.extend([claim.lease], 60)
    after = store.now()
    assert lease is not None
    assert before + 60 <= lease.expires_at + 0.001
    assert lease.expires_at <= after + 60 + bench.grain
    eventually(lambda: other.now() > claim.lease.expires_at)
    assert other.acquire(10, 100) == []


def test_extending_can_bring_the_end_nearer(bench: Bench, store: ScheduleStore, other: ScheduleStore) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key", 1000)
    store.extend([claim.lease], bench.lease)
    assert keys_of(eventually(lambda: other.acquire(1, 100))) == ["key"]


def test_a_lease_extended_again_and_again_settles(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    lease: Lease | None = claim.lease
    for n in range(5):
        assert lease is not None
        (lease,) = store.extend([lease], 100 + n % 2)
    assert lease is not None
    store.release(lease, soon())
    bench.take(store, "key")


def test_many_leases_are_extended_at_once_and_lost_ones_told_apart(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.fill(store, [f"key{n:03}" for n in range(120)], lambda i: LONG_AGO + i)
    claims = store.acquire(120, 100)
    leases = [claim.lease for claim in claims]
    store.delete("key003")
    store.release(leases[50], soon())
    store.advance(claims[70], FAR_OFF, FAR_OFF, soon())
    store.release(leases[119], soon())
    for claim in other.acquire(2, 200):
        assert claim.row.key in ("key050", "key119")
    before = {key: bench.raw(key) for key in ("key050", "key070", "key119")}
    answer = store.extend(leases, 150)
    assert [n for n, lease in enumerate(answer) if lease is None] == [3, 50, 70, 119]
    assert all(new is None or new.key == old.key for new, old in zip(answer, leases, strict=True))
    assert {key: bench.raw(key) for key in before} == before


def test_extending_nothing_is_nothing(store: ScheduleStore) -> None:
    assert store.extend([], 100) == []


def test_the_answer_is_in_the_order_asked(bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, [f"key{n}" for n in range(10)], lambda i: LONG_AGO + i)
    leases = [claim.lease for claim in store.acquire(10, 100)][::-1]
    assert [lease and lease.key for lease in store.extend(leases, 100)] == [lease.key for lease in leases]


def test_an_ended_lease_is_either_extended_or_taken_but_never_both(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.fill(store, [f"key{n:02}" for n in range(40)], lambda i: LONG_AGO + i)
    leases = [claim.lease for claim in store.acquire(40, bench.lease)]
    eventually(lambda: store.now() > leases[-1].expires_at)
    taken: list[Claim] = []
    taker = threading.Thread(target=lambda: taken.extend(other.acquire(25, 200)))
    taker.start()
    parts = [store.extend(leases[start : start + 8], 100) for start in range(0, 40, 8)]
    taker.join()
    extended = [lease for part in parts for lease in part if lease is not None]
    assert not {lease.key for lease in extended} & set(keys_of(taken))
    for lease in extended:
        store.release(lease, soon())
    for claim in taken:
        other.release(claim.lease, soon())
