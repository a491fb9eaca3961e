"""The leases of a holder, all or some: listed, and released when the holder is dead. `rdb_compat` knows no holders."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from psched.errors import PreemptedError
from psched.model import WORKER_DIED, worker_died
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, keys_of, soon

DEAD = "host/4711/dead"


@pytest.fixture
def dead(bench: Bench) -> ScheduleStore:
    """The store of a process that will die."""
    return bench.open(DEAD)


def test_all_of_the_dead_is_due_as_before_but_its_suspects_after_a_second(
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
    assert [row and row.next_run_time - LONG_AGO for row in map(store.get, ["a", "c", "d"])] == [0, 2, 3]
    claims = store.acquire(10, 100)
    assert keys_of(claims) == ["a", "c", "d"]
    assert {claim.row.attempts for claim in claims} == {1}, "the attempt was counted though nothing had begun"
    assert {suspect.last_error, *(claim.row.last_error for claim in claims)} == {WORKER_DIED, None}


def test_what_ended_the_worker_is_kept_with_what_it_was_running(
    bench: Bench, store: ScheduleStore, dead: ScheduleStore
) -> None:
    bench.fill(store, ["a", "b"], lambda i: LONG_AGO + i)
    dead.acquire(2, 100)
    error = worker_died("was killed by SIGSEGV")
    store.give_back(DEAD, ["a"], 300, error)
    if not bench.compat:
        rows = [store.get(key) for key in ("a", "b")]
        assert [row and row.last_error for row in rows] == [error, None]


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
    first = bench.take(bench.open("host/4711/dead "), "key")
    bench.add(store, "key2")
    second = bench.take(bench.open("HOST/4711/dead"), "key2")
    assert store.held_claims(DEAD) == {}
    assert store.give_back(DEAD, ["key", "key2"], 300) == 0
    claims = {claim.row.key: claim.lease.claim for claim in (first, second)}
    assert store.give_back(DEAD, [], 300, claims=claims) == 0


def test_the_leases_of_a_holder_are_listed_until_it_settles_them_or_loses_them(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, dead: ScheduleStore
) -> None:
    bench.fill(store, ["held", "ended", "lost", "done", "retried", "theirs", "waiting"], due_but_the_last(7))
    bench.take(dead, "held")
    for key in ("ended", "lost"):
        bench.take(dead, key)
        bench.make_due(key)
        if key == "lost":
            bench.take(other, key)
        else:
            bench.write(key, **{bench.columns.due: (FAR_OFF - 1) * bench.columns.per_second})
    dead.advance(bench.take(dead, "done"), FAR_OFF, FAR_OFF, soon())
    dead.retry(bench.take(dead, "retried").lease, 500, "error", soon())
    bench.take(other, "theirs")
    before = [bench.raw(key) for key in ("held", "waiting")]
    assert sorted(store.held_claims(DEAD)) == ([] if bench.compat else ["ended", "held"])
    assert dead.held_claims(DEAD) == store.held_claims(DEAD), "the holder itself sees the same"
    assert store.held_claims("host/4711/none") == {}
    assert [bench.raw(key) for key in ("held", "waiting")] == before


def test_only_the_leases_that_are_named_are_given_back(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, dead: ScheduleStore
) -> None:
    bench.fill(store, ["theirs", "a", "b", "c", "d", "waiting"], due_but_the_last(6))
    theirs = bench.take(other, "theirs")
    claims = {claim.row.key: claim for claim in dead.acquire(4, 100)}
    left = ["theirs", "c", "d", "waiting"]
    before = [bench.raw(key) for key in left]
    # "d" is suspect, but is not named: as if a sibling of the dead worker runs it.
    named = {claim.row.key: claim.lease.claim for claim in (claims["a"], claims["b"], theirs)}
    count = store.give_back(DEAD, ["b", "d"], 300, claims=named | {"waiting": 0, "missing": 0})
    assert count == (0 if bench.compat else 2)
    assert [bench.raw(key) for key in left] == before
    if bench.compat:
        assert store.acquire(10, 100) == []
        return
    assert sorted(store.held_claims(DEAD)) == ["c", "d"]
    (again,) = store.acquire(10, 100)
    assert (again.row.key, again.row.attempts, again.row.last_error) == ("a", 1, None)
    suspect = store.get("b")
    assert suspect is not None
    assert (suspect.last_error, suspect.attempts) == (WORKER_DIED, 1)
    assert store.now() - 10 < suspect.next_run_time - 1 <= store.now() + 0.002, "a suspect waits for a second"
    for key in ("a", "b"):
        with pytest.raises(PreemptedError):
            dead.release(claims[key].lease, soon())
    for key in ("c", "d"):
        dead.release(claims[key].lease, soon())


def test_a_later_lease_of_the_same_holder_is_not_given_back(
    bench: Bench, store: ScheduleStore, dead: ScheduleStore
) -> None:
    bench.add(store, "key")
    before = bench.take(dead, "key").lease
    dead.release(before, soon())
    now = bench.take(dead, "key", 200).lease
    raw = bench.raw("key")
    assert store.give_back(DEAD, ["key"], 300, claims={"key": before.claim}) == 0
    assert bench.raw("key") == raw
    assert store.give_back(DEAD, ["key"], 300, claims={"key": now.claim}) == (0 if bench.compat else 1)


def test_no_lease_is_given_back_when_none_is_named(bench: Bench, store: ScheduleStore, dead: ScheduleStore) -> None:
    bench.fill(store, ["a", "b"], lambda i: LONG_AGO + i)
    dead.acquire(2, 100)
    before = [bench.raw("a"), bench.raw("b")]
    assert store.give_back(DEAD, ["a"], 300, claims={}) == 0
    assert [bench.raw("a"), bench.raw("b")] == before


def test_keys_that_look_alike_are_other_leases(bench: Bench, store: ScheduleStore, dead: ScheduleStore) -> None:
    bench.add(store, "key")
    claim = bench.take(dead, "key").lease.claim
    before = bench.raw("key")
    assert store.give_back(DEAD, [], 300, claims=dict.fromkeys(["KEY", "key ", " key", "ke", "%", "kéy"], claim)) == 0
    assert bench.raw("key") == before


def test_more_leases_than_one_statement_changes_are_given_back_once_each(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, dead: ScheduleStore
) -> None:
    keys = [f"key{n:04}" for n in range(1310)]
    bench.fill(store, keys, lambda i: LONG_AGO + i)
    theirs = other.acquire(50, 100)
    claims = dead.acquire(1260, 100)
    numbers = {claim.row.key: claim.lease.claim for claim in (*theirs, *claims)}
    named = {key: numbers[key] for key in keys[:1250]}  # 50 are leased by another
    assert (len(theirs), len(claims), bench.rows.raw(keys[0]) is None) == (50, 1260, False)
    before = [bench.raw(key) for key in (keys[0], keys[49], keys[1250], keys[1309])]
    count = store.give_back(DEAD, [keys[70], keys[1249], keys[1250]], 300, claims=named)
    assert count == (0 if bench.compat else 1200)
    assert [bench.raw(key) for key in (keys[0], keys[49], keys[1250], keys[1309])] == before
    if bench.compat:
        return
    assert sorted(store.held_claims(DEAD)) == keys[1250:]
    errors = {key: row and row.last_error for key in (keys[69], keys[70], keys[1249]) for row in [store.get(key)]}
    assert errors == {keys[69]: None, keys[70]: WORKER_DIED, keys[1249]: WORKER_DIED}
    free = {claim.row.key for claim in store.acquire(1310, 100)} - {keys[70], keys[1249]}  # which are due in a second
    assert sorted(free) == sorted({*keys[50:1250]} - {keys[70], keys[1249]})
    assert store.give_back(DEAD, [], 300) == 60, "all that is left is given back without naming it"
    assert store.held_claims(DEAD) == {}


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
    waits = [crash(bench, store, dead, 300) for _ in range(10)]
    stored = bench.raw("key")
    assert stored is not None
    assert stored["crashes"] == 10
    for crashes in (62, 2000):
        bench.write("key", crashes=crashes)
        waits += [crash(bench, store, dead, 300) for _ in range(3)]
    assert waits[-6:] == [300] * 6
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
    """Let the dead process acquire the row and die. Return in how many seconds the row is due (rounded down)."""
    bench.make_due("key")
    bench.take(dead, "key")
    before = store.now()
    assert store.give_back(DEAD, ["key"], longest) == 1
    row = store.get("key")
    assert row is not None
    return int(row.next_run_time - before + 0.001)


def due_but_the_last(count: int) -> Callable[[int], int]:
    """Return a function with the due times of `count` rows: long ago, one after another, but the last one far off."""
    return lambda i: FAR_OFF if i == count - 1 else LONG_AGO + i
