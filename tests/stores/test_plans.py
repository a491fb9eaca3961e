"""The cost of a store's statements with many rows: they use the index of due times, and read few rows.

The statements are those that really run. They are recorded on their way to the driver, and explained in the same
session.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice

import pytest

from psched.model import Lease, ScheduleFilter
from psched.store import ScheduleStore
from tests.stores.bench import FAR_OFF, LONG_AGO, Bench, keys_of, soon
from tests.stores.databases import on_sql
from tests.stores.statements import Watch, watched

pytestmark = [on_sql, pytest.mark.new_table]

DUE, WAITING = 1500, 2000
FEW = 400
"""The maximum number of rows that a call may read, of 3,500. A wrong plan reads all rows, or all due rows."""


@pytest.fixture
def crowd(bench: Bench, store: ScheduleStore) -> ScheduleStore:
    """A store with 1,500 due rows, and 2,000 that are not due."""
    stop_analysing(bench)
    keys = [f"key{n:05}" for n in range(DUE + WAITING)]
    bench.fill(store, keys, lambda i: (LONG_AGO if i < DUE else FAR_OFF) + i)
    return store


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
def test_acquiring_reads_only_what_it_takes(bench: Bench, crowd: ScheduleStore, analysed: bool) -> None:
    if analysed:
        analyse(bench)
    for limit in (10, 120, 10):
        with watched(bench) as watch:
            assert len(crowd.acquire(limit, 100)) == limit
        see_that_few_rows_were_read(watch)
        assert not any("TEMP B-TREE" in plan or "filesort" in plan for plan in watch.plans), watch.plans


def test_acquiring_when_nothing_is_due_reads_next_to_nothing(bench: Bench, store: ScheduleStore) -> None:
    stop_analysing(bench)
    bench.fill(store, [f"key{n:05}" for n in range(WAITING)], lambda i: FAR_OFF + i)
    with watched(bench) as watch:
        assert store.acquire(10, 100) == []
    see_that_few_rows_were_read(watch)
    assert sum(watch.reads) <= 20


def test_acquiring_one_type_does_not_read_the_backlog_of_the_others(bench: Bench, crowd: ScheduleStore) -> None:
    if bench.compat:
        return  # it refuses types: see test_acquire
    bench.write("key01490", type="rare")
    analyse(bench)
    with watched(bench) as watch:
        assert keys_of(crowd.acquire(10, 100, types=["rare"])) == ["key01490"]
    see_that_few_rows_were_read(watch)


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
def test_rows_of_a_type_are_found_without_reading_the_other_types(
    bench: Bench, store: ScheduleStore, analysed: bool
) -> None:
    """With statistics of only one type, and of only one due time, every index looks equally good to PostgreSQL."""
    if bench.compat:
        return  # it refuses types: see test_acquire
    stop_analysing(bench)
    bench.fill(store, [f"key{n:05}" for n in range(DUE)], lambda _: LONG_AGO)
    store.due_by_type()  # from now on, an acquire reads each type by itself
    if analysed:
        analyse(bench)
    types = ["rare", "rarer"]
    for ask in (lambda: store.next_due(types), lambda: store.acquire(10, 100, types)):
        with watched(bench) as watch:
            assert not ask()
        assert sum(watch.reads) <= FEW, "\n".join([*watch.statements, *watch.plans])
        assert not any(plan.startswith("SCAN schedules") for plan in watch.plans), watch.plans


def test_acquiring_locks_no_row_but_those_it_takes(bench: Bench, crowd: ScheduleStore) -> None:
    if bench.database == "sqlite":
        return  # it locks the whole file, for as long as a statement lasts
    with watched(bench, locks=True) as watch:
        claims = crowd.acquire(10, 100)
    assert len(watch.locked) <= 10
    assert watch.locked <= set(keys_of(claims)) or not watch.locked


def get(store: ScheduleStore) -> None:
    assert store.get("key00005")


def add(store: ScheduleStore) -> None:
    seen = store.get("key00005")
    assert seen is not None
    store.add("new", seen.type, seen.rule, seen.next_time, seen.next_run_time, {})


def modify(store: ScheduleStore) -> None:
    seen = store.get("key03000")
    assert seen is not None
    assert store.modify(seen, replace(seen, next_run_time=FAR_OFF + 1))


def delete(store: ScheduleStore) -> None:
    store.delete("key00005")


def extend(store: ScheduleStore) -> None:
    held: list[Lease | None] = [claim.lease for claim in store.acquire(20, 100, ahead=True)]
    for begun in (False, True):
        leases = [lease for lease in held if lease is not None]
        assert len(leases) == 20
        held = store.extend(leases, 100, begun)
    assert None not in held


def settle(store: ScheduleStore) -> None:
    released, retried, advanced = store.acquire(3, 100)
    store.release(released.lease, soon())
    store.retry(retried.lease, 5, "error", soon())
    store.advance(advanced, FAR_OFF, FAR_OFF, soon())


def give_back(store: ScheduleStore) -> None:
    (claim, *_) = store.acquire(5, 100)
    store.give_back("host/9/none", ["key00001"], 10)
    store.held_claims(claim.row.node or "")
    store.give_back(claim.row.node or "", [], 10, claims={claim.row.key: claim.lease.claim})


def test_no_verb_reads_the_whole_table(bench: Bench, crowd: ScheduleStore) -> None:
    for verb in (get, add, modify, extend, settle, give_back, delete):
        with watched(bench) as watch:
            verb(crowd)
        see_that_few_rows_were_read(watch)


@pytest.mark.parametrize("analysed", ["never", "while idle", "while leased"])
def test_giving_back_some_leases_of_a_holder_reads_those_alone(
    bench: Bench, crowd: ScheduleStore, analysed: str
) -> None:
    if bench.compat:
        return  # nothing is given back: see test_give_back
    if analysed == "while idle":
        analyse(bench)
    dead = bench.open("host/9/dead")
    claims = dead.acquire(1000, 100)
    if analysed == "while leased":
        analyse(bench)
    for some in (claims[500:505], claims[600:601]):
        named = {claim.row.key: claim.lease.claim for claim in some}
        with watched(bench) as watch:
            assert crowd.give_back("host/9/dead", [], 10, claims=named) == len(named)
        assert len(watch.statements) == 1
        see_that_few_rows_were_read(watch)


@pytest.mark.parametrize("analysed", ["never", "while idle", "while leased"])
def test_listing_the_leases_of_a_holder_reads_those_alone(bench: Bench, crowd: ScheduleStore, analysed: str) -> None:
    if bench.compat:
        return  # no leases are listed: see test_give_back
    if analysed == "while idle":
        analyse(bench)
    crowd.acquire(700, 100)
    keys = keys_of(bench.open("host/9/dead").acquire(100, 100))
    if analysed == "while leased":
        analyse(bench)
    with watched(bench) as watch:
        assert sorted(crowd.held_claims("host/9/dead")) == sorted(keys)
    assert len(watch.statements) == 1
    see_that_few_rows_were_read(watch)


def test_listing_reads_a_page_at_a_time_by_the_index(bench: Bench, crowd: ScheduleStore) -> None:
    rows = crowd.list()
    with watched(bench) as watch:
        next(rows)
    assert watch.statements
    assert not any("TEMP B-TREE" in plan or "filesort" in plan for plan in watch.plans), watch.plans
    assert sum(watch.reads) < (DUE + WAITING) / 2


def test_late_and_failing_schedules_are_found_by_their_indexes(bench: Bench, store: ScheduleStore) -> None:
    """When the database gathered statistics, no schedule was late."""
    if bench.compat:
        return  # it has no such indexes
    stop_analysing(bench)
    bench.fill(store, [f"key{n:05}" for n in range(DUE + WAITING)], lambda _: FAR_OFF)
    analyse(bench)
    late = f"due = {LONG_AGO * 1000}, next_time = {LONG_AGO * 1000}, attempts = 3, alert_at = {LONG_AGO * 1000}"
    bench.execute(f"UPDATE {{table}} SET {late}")
    alerts = store.alerts
    assert alerts is not None
    for ask in (lambda: alerts.overdue(100), lambda: store.long_due(0, 200), lambda: store.failing(0, 200)):
        with watched(bench) as watch:
            assert len(ask()) >= 100
        see_that_few_rows_were_read(watch)


@pytest.mark.parametrize("of_type", [False, True], ids=["all types", "one type"])
def test_a_page_is_found_among_many_schedules_due_at_once(bench: Bench, store: ScheduleStore, of_type: bool) -> None:
    stop_analysing(bench)
    bench.fill(store, [f"key{n:05}" for n in range(DUE)], lambda _: LONG_AGO)
    seen = store.get("key01200")
    assert seen is not None
    type_ = seen.type if of_type and not bench.compat else None
    for analysed in (False, True):
        if analysed:
            analyse(bench)
        with watched(bench) as watch:
            page = store.list(ScheduleFilter(type_, after=(LONG_AGO, seen.key), page=10))
            assert [row.key for row in islice(page, 10)] == [f"key{n:05}" for n in range(1201, 1211)]
        see_that_few_rows_were_read(watch)
        if bench.database == "sqlite":
            columns = "timeout=? AND id>?" if bench.compat else "due=? AND key>?"
            assert any(columns in plan for plan in watch.plans), watch.plans


def see_that_few_rows_were_read(watch: Watch) -> None:
    """Fail with the statements and plans if a call has read more than `FEW` rows, or a whole table."""
    story = "\n".join([*watch.statements, *watch.plans, str(watch.reads)])
    assert sum(watch.reads) <= FEW, story
    whole = [
        plan for plan in watch.plans if plan.startswith("SCAN schedules") or "type=ALL" in plan or "Seq Scan" in plan
    ]
    assert not [plan for plan in whole if not plan.startswith("schedules type=ALL key=None Deleting")], story


def stop_analysing(bench: Bench, table: str = "{table}") -> None:
    """Keep PostgreSQL from gathering statistics of the table, as in a new table's first minute."""
    if bench.database == "postgresql":
        bench.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")


def analyse(bench: Bench, table: str = "{table}") -> None:
    """Let the database gather its statistics now."""
    bench.execute(
        {"sqlite": "ANALYZE", "mysql": f"ANALYZE TABLE {table}", "postgresql": f"ANALYZE {table}"}[bench.database]
    )
