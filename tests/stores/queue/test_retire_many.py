"""Finishing many runs by one call: each with its own lease, and each with its own answer."""

from __future__ import annotations

from psched.errors import AlreadyFinishedError, NotFoundError, PreemptedError
from psched.model import Claim
from psched.store import TaskStore
from tests.stores.bench import LOST, soon
from tests.stores.queue.bench import QueueBench, keys_in, row_of

ODD = ["plain", "ÄÖ 😀", "'; --", 'a "quoted" \\ one', "new\nline", "50%", "x" * 255]


def taken(bench: QueueBench, store: TaskStore, keys: list[str]) -> dict[str, Claim]:
    bench.submit(store, keys)
    claims = {claim.row.key: claim for claim in store.acquire(len(keys), 100)}
    assert sorted(claims) == sorted(keys)
    return claims


def test_all_are_finished_whatever_their_keys(bench: QueueBench, store: TaskStore) -> None:
    keys = [key for key in ODD if bench.takes(key)]
    claims = taken(bench, store, keys)
    assert store.retire_many(list(claims.values()), "finished", 100, soon()) == [None] * len(keys)
    assert keys_in(store, status="finished") == keys_in(store)
    assert store.acquire(10, 100) == []
    assert store.extend([claim.lease for claim in claims.values()], 100) == [None] * len(keys)
    assert store.retire_many([], "finished", 100, soon()) == []


def test_what_is_finished_together_is_stored_as_what_is_finished_alone(ours: QueueBench) -> None:
    store = ours.queue()
    claims = taken(ours, store, ["alone", "one", "two"])
    store.retire(claims["alone"], "finished", None, 100, soon())
    store.retire_many([claims["one"], claims["two"]], "finished", 100, soon())
    alone, one = ours.raw("alone"), ours.raw("one")
    assert alone is not None
    assert one is not None
    assert {name for name in alone if alone[name] is not None} == {name for name in one if one[name] is not None}
    assert [row_of(store, key).status for key in claims] == ["finished"] * 3
    assert store.purge(10) == 0
    assert row_of(store, "one").attempts == 1


def test_more_than_fit_into_one_statement_are_finished_all_the_same(bench: QueueBench, store: TaskStore) -> None:
    claims = list(taken(bench, store, [f"key{n:03}" for n in range(503)]).values())
    store.delete("key501")
    found = store.retire_many(claims, "finished", 100, soon())
    assert [claim.row.key for claim, error in zip(claims, found, strict=True) if error is not None] == ["key501"]
    assert len(keys_in(store, status="finished")) == 502


def test_each_is_told_what_became_of_it_and_what_is_not_ours_is_left_alone(
    bench: QueueBench, store: TaskStore, other: TaskStore
) -> None:
    claims = taken(bench, store, ["a", "deleted", "forced", "m", "preempted", "retried", "z"])
    other.preempt("preempted", 100)
    other.delete("deleted")
    other.force_finish("forced", 100)
    store.retry(claims["retried"].lease, 50, None, soon())
    before = {key: bench.raw(key) for key in ("forced", "preempted", "retried")}
    found = dict(zip(claims, store.retire_many(list(claims.values()), "finished", 100, soon()), strict=True))
    assert [key for key, error in found.items() if error is None] == ["a", "m", "z"]
    assert isinstance(found["deleted"], NotFoundError)
    assert isinstance(found["preempted"], PreemptedError)
    assert isinstance(found["forced"], LOST)
    assert isinstance(found["retried"], LOST)
    assert {key: bench.raw(key) for key in before} == before
    assert [row_of(store, key).status for key in ("a", "m", "z")] == ["finished"] * 3


def test_a_stale_fence_finishes_nothing(bench: QueueBench, store: TaskStore) -> None:
    claims = taken(bench, store, ["one", "two"])
    stale = claims["one"]._replace(lease=claims["one"].lease._replace(fence=claims["one"].lease.fence - 1))
    first, second = store.retire_many([stale, claims["two"]], "finished", 100, soon())
    assert isinstance(first, PreemptedError)
    assert second is None
    assert row_of(store, "one").status == "running"


def test_what_was_finished_before_under_its_lease_stays_finished(bench: QueueBench, store: TaskStore) -> None:
    claims = taken(bench, store, ["one", "two"])
    store.retire(claims["one"], "finished", None, 100, soon())
    before = bench.raw("one")
    first, second = store.retire_many(list(claims.values()), "finished", 100, soon())
    assert first is None or isinstance(first, AlreadyFinishedError)
    assert second is None
    assert bench.raw("one") == before
