"""Acquiring: which rows, in which order, with which leases, and what these leases allow."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator

import pytest

from psched.errors import NotSupportedError
from psched.model import Rule, ScheduleRow
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, eventually, keys_of, soon
from tests.stores.sent_statements import after_each


def test_only_due_rows_are_acquired(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "past")
    bench.add(store, "future", due=FAR_OFF)
    bench.add(store, "in an hour", due=store.now() // 1 + 3600)
    assert keys_of(store.acquire(10, 100)) == ["past"]
    assert store.acquire(10, 100) == []


def test_a_row_is_due_in_the_second_it_names(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "now", due=math.floor(store.now()))
    assert keys_of(store.acquire(1, 100)) == ["now"]


def test_nothing_is_acquired_from_an_empty_table(store: ScheduleStore) -> None:
    assert store.acquire(10, 100) == []


def test_nothing_is_acquired_where_no_row_is_wanted(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    assert store.acquire(0, 100) == []
    assert store.acquire(1, 100, types=[]) == []
    assert keys_of(store.acquire(1, 100)) == ["key"]


def test_the_earliest_rows_come_first_and_no_more_than_the_limit(bench: Bench, store: ScheduleStore) -> None:
    for n in (3, 1, 4, 0, 2):
        bench.add(store, f"key{n}", due=LONG_AGO + n)
    assert keys_of(store.acquire(2, 100)) == ["key0", "key1"]
    assert keys_of(store.acquire(10, 100)) == ["key2", "key3", "key4"]


def test_rows_due_at_the_same_time_come_in_the_order_of_their_keys(bench: Bench, store: ScheduleStore) -> None:
    for key in ("b", "d", "a", "c"):
        bench.add(store, key)
    assert keys_of(store.acquire(3, 100)) == ["a", "b", "c"]
    assert keys_of(store.acquire(3, 100)) == ["d"]


def test_a_large_limit_is_obeyed_and_sufficient(bench: Bench, store: ScheduleStore) -> None:
    bench.fill(store, [f"key{n:03}" for n in range(300)], lambda i: LONG_AGO + i)
    assert keys_of(store.acquire(250, 100)) == [f"key{n:03}" for n in range(250)]
    assert keys_of(store.acquire(250, 100)) == [f"key{n:03}" for n in range(250, 300)]


def test_the_claim_tells_all_that_was_stored(bench: Bench, store: ScheduleStore) -> None:
    rule = Rule("*/5 * * * *", "Asia/Tokyo", 30)
    store.add("key", "type1", rule, LONG_AGO, LONG_AGO + 30, {"a": [1, None, "ä"]})
    row = bench.take(store, "key").row
    assert isinstance(row, ScheduleRow)
    assert (row.type, row.data, row.rule) == ("type1", {"a": [1, None, "ä"]}, rule)
    assert (row.next_time, row.scheduled_time, row.problem) == (LONG_AGO, LONG_AGO, None)


def test_a_lease_lasts_its_time_by_the_databases_clock(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key")
    before = store.now()
    claim = bench.take(store, "key", alive_time=60)
    after = store.now()
    assert before + 60 <= claim.lease.expires_at + 0.001
    assert claim.lease.expires_at <= after + 60 + bench.grain
    assert not claim.lease.cancel_requested


def test_a_leased_row_is_acquired_by_no_worker_until_its_lease_ends(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.add(store, "key")
    first = bench.take(store, "key", bench.lease)
    claims = eventually(lambda: other.acquire(10, 100) or store.acquire(10, 100))
    assert other.now() >= first.lease.expires_at - 0.001, "a lease was taken before its end"
    assert claims[0].lease.fence > first.lease.fence
    if not bench.compat:
        assert claims[0].row.attempts == 2


def test_fences_grow_with_each_acquire_of_any_worker(bench: Bench, store: ScheduleStore, other: ScheduleStore) -> None:
    bench.add(store, "key")
    fences = []
    for n, holder in enumerate((store, other, other, store)):
        claim = bench.take(holder, "key", 100 + n)
        fences.append(claim.lease.fence)
        holder.release(claim.lease, soon())
    assert fences == sorted(set(fences))


def test_a_store_says_whether_its_fence_is_worth_showing(bench: Bench, store: ScheduleStore) -> None:
    assert store.shows_fence is not bench.compat


def test_the_row_tells_who_holds_it_and_how_often_it_was_tried(bench: Bench) -> None:
    bench.add(bench.open("hostname/77/abc"), "key")
    row = bench.take(bench.open("hostname/77/abc"), "key").row
    if bench.compat:
        assert row.node is None
    else:
        assert "hostname" in str(row.node)
        assert row.attempts == 1


def test_types_limit_what_is_acquired_or_are_refused(bench: Bench, store: ScheduleStore) -> None:
    for n, type_ in enumerate(("a", "b", "c", "b")):
        bench.add(store, f"key{n}", due=LONG_AGO + n, type=type_)
    if bench.compat:
        with pytest.raises(NotSupportedError):
            store.acquire(10, 100, types=["b"])
        assert len(store.acquire(10, 100)) == 4
        return
    assert store.acquire(10, 100, types=["x"]) == []
    assert store.acquire(10, 100, types=[]) == []
    assert keys_of(store.acquire(10, 100, types={"b"})) == ["key1", "key3"]
    assert store.acquire(10, 100, types=[""]) == []
    assert keys_of(store.acquire(10, 100, types=("a", "b", "c", "a"))) == ["key0", "key2"]


def test_what_an_acquire_had_leased_whose_answer_was_lost_is_had_again(
    bench: Bench, store: ScheduleStore, other: ScheduleStore
) -> None:
    bench.add(store, "key")
    with pytest.raises(AnswerLostError), losing_answers():
        store.acquire(10, bench.lease if bench.compat else 100)
    assert bench.compat or other.acquire(10, 100) == []
    (claim,) = eventually(lambda: store.acquire(10, 100))  # at once where holders are known, else after the lease
    if not bench.compat:
        assert claim.row.attempts == 1
    assert store.acquire(10, 100) == []
    assert other.acquire(10, 100) == []
    assert store.advance(claim, FAR_OFF, FAR_OFF, soon()) is None


def test_what_is_held_is_not_had_again_because_an_answer_was_lost(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "held")
    held = bench.take(store, "held")
    bench.add(store, "key")
    with pytest.raises(AnswerLostError), losing_answers():
        store.acquire(10, bench.lease if bench.compat else 100)
    assert keys_of(eventually(lambda: store.acquire(10, 100))) == ["key"]
    assert store.advance(held, FAR_OFF, FAR_OFF, soon()) is None


class AnswerLostError(Exception):
    """Raised instead of an answer."""


@contextlib.contextmanager
def losing_answers() -> Iterator[None]:
    """Execute statements that acquire rows, and then raise AnswerLostError instead of returning their answers."""

    def lose(statement: str) -> None:
        if statement.startswith(("UPDATE", "EVAL")):
            raise AnswerLostError

    with after_each(lose):
        yield


def test_a_row_that_becomes_due_is_acquired_by_the_next_call(bench: Bench, store: ScheduleStore) -> None:
    bench.add(store, "key", due=store.now() + bench.lease)
    (claim,) = eventually(lambda: store.acquire(1, 100))
    assert claim.row.key == "key"
