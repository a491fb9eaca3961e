"""Lists of schedules with a filter, in order and in pages, for filters that few or many rows pass."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from psched.model import Policy, ScheduleFilter
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, new_row, soon
from tests.stores.databases import on_our_tables

LATER = [f"later{n * 7 % 30:02}" for n in range(30)]
DUE = [f"due{n * 7 % 30:02}" for n in range(30)]
"""The keys in the order of their due times, which is not the order of the keys."""
PAGE = 7
"""The number of rows that a store reads at a time."""
STEP = 3
"""Lists are continued after every third row. So each place within a page occurs."""


@pytest.fixture(params=["few", "many"])
def rows(request: pytest.FixtureRequest, bench: Bench, store: ScheduleStore) -> Iterator[ScheduleStore]:
    """60 schedules. With "few" a list finds them by the filter's index, with "many" by the index of the order."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "many":
            patch.setattr("psched.backends.sql.paging.FEW", 3)
        patch.setattr("psched.backends.sql.paging.BATCH", PAGE)
        patch.setattr("psched.backends.redis.schedule_store._PAGE", PAGE)
        rows = [new_row(key, {}, FAR_OFF + n, type=f"type{n % 3}") for n, key in enumerate(LATER)]
        rows += [new_row(key, {}, LONG_AGO + n, type=f"type{n % 3}") for n, key in enumerate(DUE)]
        assert store.add_many(rows) == []
        yield store


def listed(store: ScheduleStore, **wanted: object) -> list[str]:
    return [row.key for row in store.list(ScheduleFilter(**wanted))]  # type: ignore[arg-type]


def test_each_filter_passes_its_schedules_in_the_order_of_due_times(rows: ScheduleStore) -> None:
    assert listed(rows) == DUE + LATER
    assert listed(rows, type="type1") == DUE[1::3] + LATER[1::3]
    assert listed(rows, type="none") == []
    assert listed(rows, prefix="later") == LATER
    assert listed(rows, prefix="due1") == [key for key in DUE if key.startswith("due1")]
    assert listed(rows, prefix="later00x") == []
    assert listed(rows, due_until=LONG_AGO + 4) == DUE[:5]
    assert listed(rows, due_from=FAR_OFF + 25) == LATER[25:]
    assert listed(rows, due_from=LONG_AGO + 28, due_until=FAR_OFF + 1) == DUE[28:] + LATER[:2]
    wanted = [key for key in LATER[:16:3] if key.startswith("later1")]
    assert listed(rows, prefix="later1", type="type0", due_until=FAR_OFF + 15) == wanted


@on_our_tables
def test_an_owner_and_a_tag_pass_their_schedules(rows: ScheduleStore) -> None:
    assert listed(rows, owner="me") == listed(rows, tag="a") == []
    for n, key in enumerate(DUE[:24]):
        seen = rows.get(key)
        assert seen is not None
        tags = ("a", "b") if n % 3 else ("b",)
        wanted = Policy(owner="me" if n % 2 else "us", tags=tags, description="50 % of 'it'\n😀")
        assert rows.modify(seen, replace(seen, policy=wanted))
        assert next(rows.list(ScheduleFilter(prefix=key))).policy == wanted
    assert listed(rows, owner="me") == DUE[1:24:2]
    assert listed(rows, owner="Me") == []
    assert listed(rows, tag="a") == [key for n, key in enumerate(DUE[:24]) if n % 3]
    assert listed(rows, owner="me", tag="b", prefix="due0") == [key for key in DUE[1:24:2] if key.startswith("due0")]
    [row] = itertools.islice(rows.list(ScheduleFilter(owner="me")), 4, 5)
    assert listed(rows, owner="me", after=(row.next_run_time, row.key)) == DUE[11:24:2]


@on_our_tables
def test_a_schedule_that_changes_before_its_page_is_read_is_left_out(rows: ScheduleStore) -> None:
    found = rows.list(ScheduleFilter(type="type1"))
    read = [next(found).key]
    last = rows.get(LATER[-2])
    assert last is not None
    assert last.type == "type1"
    assert rows.modify(last, replace(last, type="other"))
    assert [*read, *(row.key for row in found)] == (DUE + LATER[:-2])[1::3]


def test_a_list_goes_on_behind_a_schedule(rows: ScheduleStore) -> None:
    for wanted in ({}, {"type": "type2"}, {"prefix": "later"}, {"due_until": FAR_OFF + 3}):
        whole = list(rows.list(ScheduleFilter(**wanted)))  # type: ignore[arg-type]
        for place, row in [*enumerate(whole)][::STEP]:
            rest = rows.list(ScheduleFilter(after=(row.next_run_time, row.key), **wanted))  # type: ignore[arg-type]
            found = [each.key for each in itertools.islice(rest, PAGE + 1)]
            assert found == [each.key for each in whole[place + 1 : place + PAGE + 2]], (wanted, row.key)


def test_a_prefix_is_text_and_no_pattern(bench: Bench, store: ScheduleStore) -> None:
    keys = [key for key in ("a%b", "a_b", "ab", "a", "a\\b", "aé", "A%", "a\uffff", "a\U0010ffff") if bench.takes(key)]
    for key in keys:
        bench.add(store, key)
    for prefix in ("a%", "a_", "a", "A", "ab", "a\\", "aé", "a\uffff", "a%bc"):
        assert sorted(listed(store, prefix=prefix)) == sorted(key for key in keys if key.startswith(prefix)), prefix


def test_leased_schedules_are_found(rows: ScheduleStore) -> None:
    taken = {claim.row.key for claim in rows.acquire(3, 100)}
    assert taken < set(DUE)
    assert taken <= set(listed(rows, held=True))
    assert not set(listed(rows, held=True)) & (set(DUE) - taken)


@on_our_tables
def test_failing_schedules_are_found(rows: ScheduleStore) -> None:
    claims = rows.acquire(4, 100)
    for claim in claims[:2]:
        rows.retry(claim.lease, 50, "it broke", soon())
    rows.release(claims[2].lease, soon())
    failing = sorted(claim.row.key for claim in claims[:2])
    assert sorted(listed(rows, failing=True)) == failing
    assert sorted(listed(rows, held=True)) == [claims[3].row.key]
    assert listed(rows, failing=True, prefix="later") == []
