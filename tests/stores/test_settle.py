"""With a lease, release, retry and advance have their effects, and each has them once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from psched.errors import IdempotentAlreadyFinishedError, NotFoundError
from psched.model import Claim, Rule
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, LOST, Bench, eventually, keys_of, soon

NEXT = LONG_AGO + 3600


def test_a_released_row_is_due_now_and_the_attempt_not_counted(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.add(store, "key")
    before = store.now()
    store.release(bench.take(store, "key").lease, soon())
    row = store.get("key")
    assert row is not None
    assert before - bench.grain <= row.next_run_time <= store.now()
    assert row.next_time == LONG_AGO
    assert bench.take(other, "key").row.attempts == (0 if bench.compat else 1)


def test_rows_released_before_their_runs_began_are_due_as_before(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.fill(store, ["a", "b", "c"], lambda i: LONG_AGO + i)
    before = store.now()
    first, *rest = store.acquire(3, 100, ahead=True)
    store.release(first.lease, soon(), begun=False)
    assert store.release_many([claim.lease for claim in rest], soon(), begun=False) == [None, None]
    for n, claim in enumerate([first, *rest]):
        row = store.get(claim.row.key)
        assert row is not None
        if bench.compat:  # the table does not keep when the row was due
            assert before - bench.grain <= row.next_run_time <= store.now()
        else:
            assert (row.next_run_time, row.attempts, row.settled) == (LONG_AGO + n, 0, True)
    with pytest.raises(LOST):
        store.release(first.lease, soon(), begun=False)
    assert keys_of(other.acquire(3, 100)) == ["a", "b", "c"]


def test_a_retried_row_waits_by_the_databases_clock(bench: Bench, store: ScheduleStore, other: ScheduleStore) -> None:
    bench.add(store, "key")
    lease = bench.take(store, "key").lease
    before = store.now()
    store.retry(lease, bench.lease, "it broke", soon())
    row = store.get("key")
    assert row is not None
    assert before + bench.lease <= row.next_run_time + 0.001
    assert row.next_run_time <= store.now() + bench.lease + bench.grain
    assert row.next_time == LONG_AGO
    assert not row.settled
    (claim,) = eventually(lambda: other.acquire(1, 100))
    assert other.now() >= row.next_run_time
    if not bench.compat:
        assert (row.last_error, claim.row.attempts) == ("it broke", 2)


@pytest.mark.parametrize("wait", [0, -5])
def test_a_retry_without_a_wait_is_due_at_once(bench: Bench, store: ScheduleStore, wait: float) -> None:
    bench.add(store, "key")
    store.retry(bench.take(store, "key").lease, wait, None, soon())
    row = store.get("key")
    assert row is not None
    assert row.next_run_time <= store.now() + bench.grain
    eventually(lambda: store.acquire(1, 100))


def test_no_text_of_an_error_keeps_a_retry_from_being_stored(bench: Bench, store: ScheduleStore) -> None:
    errors = ["ä€😀" * 50_000, "nul \0 in it", "half a character \ud800", "", "line\nline\ttab 'quote' %s :x"]
    for n, error in enumerate(errors):
        bench.add(store, f"key{n}")
        store.retry(bench.take(store, f"key{n}").lease, 100, error, soon())
        row = store.get(f"key{n}")
        assert row is not None
        assert row.next_run_time > store.now()
        assert not bench.compat or row.last_error is None
        if n == 0 and not bench.compat:
            assert str(row.last_error).endswith("ä€😀"), "the tail says most"


def test_advancing_stores_the_next_occurrence_and_ends_the_lease(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    assert store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF + 30, soon()) is None
    row = store.get("key")
    assert row is not None
    assert (row.next_time, row.next_run_time, row.attempts) == (FAR_OFF, FAR_OFF + 30, 0)
    assert (row.data, row.type, row.rule) == ({"n": 1}, "type1", Rule("0 * * * *", "UTC"))
    assert store.acquire(10, 100) == []


def test_a_row_is_settled_unless_it_is_leased_or_waits_for_a_retry(bench: Bench, store: ScheduleStore) -> None:
    def settled() -> bool:
        row = store.get("key")
        assert row is not None
        return row.settled

    store.add("key", "type1", Rule("0 * * * *", "UTC", 30), LONG_AGO, LONG_AGO + 30, {})
    assert settled()
    claim = bench.take(store, "key")
    assert not settled()
    store.retry(claim.lease, 0, None, soon())
    assert not settled()
    claim = eventually(lambda: store.acquire(1, 100))[0]
    store.advance(claim, FAR_OFF, FAR_OFF + 30, soon())
    assert settled()


def test_an_outage_is_caught_up_one_occurrence_at_a_time(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    for n in range(5):
        claim = bench.take(store, "key")
        assert claim.row.scheduled_time == LONG_AGO + n * 60
        following = LONG_AGO + (n + 1) * 60
        assert store.advance(claim, following, following, soon()) is None


def test_advancing_by_a_rule_that_was_changed_returns_the_new_one_and_writes_nothing(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    new = Rule("*/5 * * * *", "Asia/Tokyo", 7)
    modify(other, "key", rule=new)
    before = bench.raw("key")
    changed = store.advance(claim, NEXT, NEXT, soon())
    assert changed is not None
    assert changed.rule == new
    assert bench.raw("key") == before
    assert store.advance(Claim(changed, claim.lease), NEXT, NEXT + 7, soon()) is None
    assert stored_times(store) == (NEXT, NEXT + 7)


@pytest.mark.parametrize("change", [{"cron": "5 * * * *"}, {"timezone": "Europe/Paris"}, {"delay": 1}])
def test_each_part_of_the_rule_counts(bench: Bench, store: ScheduleStore, change: dict[str, object]) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    new = replace(Rule("0 * * * *", "UTC"), **change)  # type: ignore[arg-type]
    modify(store, "key", rule=new)
    changed = store.advance(claim, NEXT, NEXT, soon())
    assert changed is not None
    assert changed.rule == new


def test_data_and_type_changed_during_the_run_are_kept(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    modify(store, "key", type="type2", data={"new": 1})
    changed = store.advance(claim, FAR_OFF, FAR_OFF, soon())
    if store.keeps_policies:  # and so a version, of which each change makes another
        assert changed is not None
        assert store.advance(Claim(changed, claim.lease), FAR_OFF, FAR_OFF, soon()) is None
    row = store.get("key")
    assert row is not None
    assert (row.type, row.data, row.next_time) == ("type2", {"new": 1}, FAR_OFF)


def test_a_renewed_lease_settles(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    (lease,) = store.extend([claim.lease], 200)
    assert lease is not None
    assert store.advance(Claim(claim.row, lease), FAR_OFF, FAR_OFF, soon()) is None
    assert stored_times(store) == (FAR_OFF, FAR_OFF)


@pytest.mark.parametrize("following", [FAR_OFF, NEXT])
def test_advancing_twice_is_reported_as_finished_before(bench: Bench, store: ScheduleStore, following: int) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    store.advance(claim, following, following, soon())
    before = bench.raw("key")
    with pytest.raises(IdempotentAlreadyFinishedError, match="key"):
        store.advance(claim, following, following, soon())
    assert bench.raw("key") == before


@pytest.mark.parametrize("verb", ["release", "retry"])
def test_what_was_given_back_cannot_be_settled_under_the_same_lease(
    bench: Bench, store: ScheduleStore, verb: str
) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    settle(store, claim, verb)
    before = bench.raw("key")
    for again in ("release", "retry", "advance"):
        with pytest.raises(LOST, match="key"):
            settle(store, claim, again)
        assert bench.raw("key") == before
    assert store.extend([claim.lease], 100) == [None]
    assert bench.raw("key") == before


@pytest.mark.parametrize("verb", ["release", "retry", "advance"])
def test_settling_a_deleted_row_says_that_it_is_gone(bench: Bench, store: ScheduleStore, verb: str) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    store.delete("key")
    with pytest.raises(NotFoundError, match="key"):
        settle(store, claim, verb)
    assert store.extend([claim.lease], 100) == [None]
    assert bench.raw("key") is None


def settle(store: ScheduleStore, claim: Claim, verb: str) -> None:
    if verb == "release":
        store.release(claim.lease, soon())
    elif verb == "retry":
        store.retry(claim.lease, 50, "error", soon())
    else:
        store.advance(claim, NEXT, NEXT, soon())


def modify(store: ScheduleStore, key: str, **changes: object) -> None:
    seen = store.get(key)
    assert seen is not None
    assert store.modify(seen, replace(seen, **changes))  # type: ignore[arg-type]


def stored_times(store: ScheduleStore) -> tuple[int, float]:
    row = store.get("key")
    assert row is not None
    return row.next_time, row.next_run_time
