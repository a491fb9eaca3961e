"""Giving back what a dead holder held: at once, but suspects back off. `rdb_compat` knows no holders."""

from __future__ import annotations

import pytest

from psched.errors import PreemptedError
from psched.model import OUT_OF_MEMORY, WORKER_DIED
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, keys_of, soon

DEAD = "host/4711/dead"


@pytest.fixture
def dead(bench: Bench) -> ScheduleStore:
    """The store of a process that will be gone."""
    return bench.open(DEAD)


def test_all_of_the_dead_is_due_at_once_but_its_suspects_after_a_second(
    bench: Bench, store: ScheduleStore, dead: ScheduleStore
) -> None:
    bench.fill(store, ["a", "b", "c", "d"], lambda i: LONG_AGO + i)
    dead.acquire(4, 100)
    before = bench.raw("a")
    now = store.now()
    if bench.compat:
        assert store.give_back(DEAD, ["b"], 300) == 0
        assert bench.raw("a") == before
        assert store.acquire(10, 100) == []
        return
    assert store.give_back(DEAD, ["b"], 300) == 4
    suspect = store.get("b")
    assert suspect is not None
    assert now + 1 <= suspect.next_run_time + 0.001 <= store.now() + 1.002
    claims = store.acquire(10, 100)
    assert sorted(keys_of(claims)) == ["a", "c", "d"]
    assert {claim.row.attempts for claim in claims} == {1}, "the attempt was counted though nothing had begun"
    assert {suspect.last_error, *(claim.row.last_error for claim in claims)} == {WORKER_DIED, None}


def test_what_ended_the_worker_is_kept_with_what_it_was_running(
    bench: Bench, store: ScheduleStore, dead: ScheduleStore
) -> None:
    bench.fill(store, ["a", "b"], lambda i: LONG_AGO + i)
    dead.acquire(2, 100)
    store.give_back(DEAD, ["a"], 300, OUT_OF_MEMORY)
    if not bench.compat:
        rows = [store.get(key) for key in ("a", "b")]
        assert [row and row.last_error for row in rows] == [OUT_OF_MEMORY, None]


def test_nothing_is_given_back_twice(bench: Bench, store: ScheduleStore, dead: ScheduleStore) -> None:
    bench.fill(store, ["a", "b"], lambda i: LONG_AGO + i)
    dead.acquire(4, 100)
    assert store.give_back(DEAD, [], 300) == (0 if bench.compat else 2)
    store.acquire(2, 200)
    before = bench.raw("a")
    assert store.give_back(DEAD, ["a"], 300) == 0
    assert bench.raw("a") == before


def test_what_others_hold_or_the_dead_had_settled_is_left_alone(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, dead: ScheduleStore
) -> None:
    keys = ["theirs", "done", "retried", "released", "waiting"]
    bench.fill(store, keys, lambda i: FAR_OFF if i == 4 else LONG_AGO + i)
    bench.take(other, "theirs")
    for key, verb in (("done", "advance"), ("retried", "retry"), ("released", "release")):
        claim = bench.take(dead, key)
        if verb == "advance":
            dead.advance(claim, FAR_OFF, FAR_OFF, soon())
        elif verb == "retry":
            dead.retry(claim.lease, 500, "error", soon())
        else:
            dead.release(claim.lease, soon())
            bench.take(other, "released", 200)
    before = [bench.raw(key) for key in keys]
    assert store.give_back(DEAD, [*keys, "missing"], 300) == 0
    assert [bench.raw(key) for key in keys] == before


def test_a_holder_whose_name_looks_alike_is_another(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    bench.take(bench.open("host/4711/dead "), "key")
    bench.add(store, "key2")
    bench.take(bench.open("HOST/4711/dead"), "key2")
    assert store.give_back(DEAD, ["key", "key2"], 300) == 0


def test_a_lease_that_was_given_back_is_stale(bench: Bench, store: ScheduleStore, dead: ScheduleStore) -> None:
    if bench.compat:
        return  # nothing is given back: see the first test
    bench.fill(store, ["a", "b"], lambda i: LONG_AGO + i)
    claims = dead.acquire(4, 100)
    store.give_back(DEAD, ["b"], 300)
    before = [bench.raw("a"), bench.raw("b")]
    for claim in claims:
        with pytest.raises(PreemptedError):
            dead.release(claim.lease, soon())
        with pytest.raises(PreemptedError):
            dead.retry(claim.lease, 5, None, soon())
        with pytest.raises(PreemptedError):
            dead.advance(claim, FAR_OFF, FAR_OFF, soon())
    assert dead.extend([claim.lease for claim in claims], 100) == [None, None]
    assert [bench.raw("a"), bench.raw("b")] == before


def test_each_crash_in_a_row_doubles_the_wait_up_to_the_longest(
    bench: Bench, store: ScheduleStore, dead: ScheduleStore
) -> None:
    if bench.compat:
        return  # nothing is given back: see the first test
    bench.add(store, "key")
    assert [crash(bench, store, dead, 10) for _ in range(6)] == [1, 2, 4, 8, 10, 10]
    bench.make_due("key")
    store.advance(bench.take(store, "key"), LONG_AGO + 60, LONG_AGO + 60, soon())
    assert crash(bench, store, dead, 10) == 1, "a finished run ends the row of crashes"


def test_many_crashes_do_not_overflow(bench: Bench, store: ScheduleStore, dead: ScheduleStore) -> None:
    if bench.compat:
        return  # nothing is given back: see the first test
    bench.add(store, "key")
    waits = [crash(bench, store, dead, 300) for _ in range(80)]
    assert waits[-1] == 300
    assert waits == sorted(waits)


def test_the_longest_wait_may_be_shorter_than_a_second(bench: Bench, store: ScheduleStore, dead: ScheduleStore) -> None:
    if bench.compat:
        return  # nothing is given back: see the first test
    bench.add(store, "key")
    bench.take(dead, "key")
    before = store.now()
    store.give_back(DEAD, ["key"], 0.25)
    row = store.get("key")
    assert row is not None
    assert before + 0.25 <= row.next_run_time + 0.001 <= store.now() + 0.252


def crash(bench: Bench, store: ScheduleStore, dead: ScheduleStore, longest: float) -> int:
    """Let the dead process take the row and die over it; return after how many seconds it is due (rounded down)."""
    bench.make_due("key")
    bench.take(dead, "key")
    before = store.now()
    assert store.give_back(DEAD, ["key"], longest) == 1
    row = store.get("key")
    assert row is not None
    return int(row.next_run_time - before + 0.001)
