"""The ledger: each settlement and each change of a definition is recorded in the transaction that makes it."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
import redis
import sqlalchemy as sa

from psched.backends.redis.lease_store import SubmitOnAdvance
from psched.errors import PreemptedError
from psched.model import Policy, Rule, ScheduleRow
from psched.store import ScheduleStore
from psched.store.ledger import Definition, Entry, Ledger, LedgerFilter, LedgerRow
from tests.stores.bench import FAR_OFF, HOURLY, LONG_AGO, Bench, new_row, soon
from tests.stores.sent_statements import before_each


def rows(ledger: Ledger, **wanted: Any) -> list[LedgerRow]:
    return list(ledger.rows(LedgerFilter(**wanted)))


def test_a_finished_occurrence_is_on_record(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key", type="t")
    claim = bench.take(store, "key")
    before = store.now()
    store.advance(
        claim._replace(started=before - 5), FAR_OFF, FAR_OFF, soon(), None, Entry("enqueued", "task-1", before - 5)
    )
    [row] = rows(ledger, key="key")
    assert (row.key, row.scheduled_time, row.fence) == ("key", LONG_AGO, claim.lease.fence)
    assert (row.outcome, row.detail, row.attempts, row.error) == ("enqueued", "task-1", 1, None)
    assert (row.node, row.previous, row.last, row.count) == (store_holder(bench), None, None, 1)
    assert row.started == pytest.approx(before - 5, abs=0.001)
    assert before - 0.001 <= row.ended <= store.now()


def store_holder(bench: Bench) -> str:
    found = bench.raw("key")
    assert found is not None
    return str(found["node"])


def test_each_entry_names_the_one_before(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    for n in range(1, 4):
        store.advance(bench.take(store, "key"), LONG_AGO + n, LONG_AGO + n, soon())
    assert [row.previous for row in rows(ledger, key="key")] == [None, LONG_AGO, LONG_AGO + 1]


def test_what_went_wrong_before_is_on_record_with_the_end(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    bench.add(store, "well")
    for claim in store.acquire(2, 100):
        if claim.row.key == "key":
            store.retry(claim.lease, 0, "ValueError: it broke\n" + "x" * 9000 + "the end", soon())
            assert rows(ledger) == []
        else:
            store.advance(claim, FAR_OFF, FAR_OFF, soon())
    time.sleep(0.002)  # the ledger orders runs by the millisecond in which they ended
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon())
    [row] = rows(ledger, failed=True)
    assert (row.key, row.attempts) == ("key", 2)
    assert row.error is not None
    assert row.error.startswith("ValueError: it broke\n…\nx")
    assert row.error.endswith("xthe end")
    assert len(row.error) <= 2000
    assert [row.key for row in rows(ledger)] == ["well", "key"]


def test_an_entry_may_stand_for_several(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    skipped = Entry("skipped", "late", last=LONG_AGO + 7200, count=3)
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon(), None, skipped)
    [row] = rows(ledger, failed=True)
    assert (row.scheduled_time, row.last, row.count, row.started) == (LONG_AGO, LONG_AGO + 7200, 3, None)
    found = store.get("key")
    assert found is not None
    assert found.previous == LONG_AGO + 7200


def test_who_lost_the_lease_enters_nothing(
    bench: Bench, store: ScheduleStore, other: ScheduleStore, ledger: Ledger
) -> None:
    bench.add(store, "key")
    stale = bench.take(store, "key", 0)
    fresh = bench.take(other, "key")
    with pytest.raises(PreemptedError):
        store.advance(stale, FAR_OFF, FAR_OFF, soon())
    assert rows(ledger) == []
    other.advance(fresh, FAR_OFF, FAR_OFF, soon())
    assert [row.fence for row in rows(ledger)] == [fresh.lease.fence]


def test_an_occurrence_that_is_to_be_computed_anew_is_not_entered(
    bench: Bench, store: ScheduleStore, ledger: Ledger
) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")
    seen = store.get("key")
    assert seen is not None
    new = Rule("5 * * * *", "UTC")
    assert store.modify(seen, replace(seen, rule=new))
    changed = store.advance(claim, FAR_OFF, FAR_OFF, soon())
    assert changed is not None
    assert changed.rule == new
    assert rows(ledger) == []
    assert store.advance(claim._replace(row=changed), FAR_OFF, FAR_OFF, soon()) is None
    assert len(rows(ledger)) == 1


def test_what_else_belongs_to_the_end_fails_with_the_entry(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    claim = bench.take(store, "key")

    def fail(connection: Any) -> None:
        if isinstance(connection, SubmitOnAdvance):
            connection.submit("{psched}:nowhere:meta", [])
        else:
            connection.exec_driver_sql("SELECT nothing FROM nowhere")

    with pytest.raises(Exception, match="nowhere"):
        store.advance(claim, FAR_OFF, FAR_OFF, soon(), fail)
    assert rows(ledger) == []
    store.advance(claim, FAR_OFF, FAR_OFF, soon())
    assert len(rows(ledger)) == 1


def test_an_end_that_cannot_be_entered_is_no_end(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    store.advance(bench.take(store, "key"), LONG_AGO + 3600, LONG_AGO + 3600, soon())
    claim = bench.take(store, "key")
    before = bench.raw("key")
    with bench.rows.no_entry_of("key", LONG_AGO + 3600, claim.lease.fence):
        for _ in range(2):  # the second time would commit what the first time had left in a transaction
            with pytest.raises((sa.exc.IntegrityError, redis.ResponseError)):
                store.advance(claim, FAR_OFF, FAR_OFF, soon())
            assert bench.raw("key") == before
    assert len(rows(ledger)) == 1
    store.advance(claim, FAR_OFF, FAR_OFF, soon())
    assert len(rows(ledger)) == 2


def test_each_change_of_a_definition_is_on_record(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key", due=FAR_OFF, policy=Policy("latest", 60, 90))
    seen = store.get("key")
    assert seen is not None
    new = Rule("5 * * * *", "Asia/Tokyo", 3)
    assert store.modify(seen, replace(seen, rule=new, next_time=FAR_OFF + 60, policy=Policy()))
    store.delete("key")
    added, modified, deleted = ledger.changes("key")
    assert (added.action, added.rule, added.policy) == ("add", HOURLY, Policy("latest", 60, 90))
    assert (added.pending, added.first, added.due, added.type) == (None, FAR_OFF, FAR_OFF, "type1")
    assert (modified.action, modified.rule, modified.policy) == ("modify", new, Policy())
    assert (modified.pending, modified.first) == (FAR_OFF, FAR_OFF + 60)
    assert (deleted.action, deleted.pending) == ("delete", FAR_OFF + 60)
    assert added.version < modified.version < deleted.version
    assert added.at <= modified.at <= deleted.at
    assert added.node == deleted.node
    bench.add(store, "key")
    assert [change.action for change in ledger.changes("key")] == ["add", "modify", "delete", "add"]
    for key in ("key\U0001f600", "keyé", "keyz"):
        bench.add(store, key)
    assert list(ledger.keys()) == ["key", "keyz", "keyé", "key\U0001f600"]
    assert list(ledger.keys("key")) == ["keyz", "keyé", "key\U0001f600"]
    assert list(ledger.keys("keyz")) == ["keyé", "key\U0001f600"]


def test_a_change_that_was_not_made_is_not_on_record(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    seen = store.get("key")
    assert seen is not None
    bench.take(store, "key")
    assert not store.modify(seen, replace(seen, type="other"))
    assert store.modify(seen, seen)
    assert [change.action for change in ledger.changes("key")] == ["add"]


def test_changing_and_passing_over_are_one(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    seen = store.get("key")
    assert seen is not None
    wanted = replace(seen, next_time=FAR_OFF, previous=LONG_AGO + 3600)
    assert store.modify(seen, wanted, "run-now", Entry("skipped", "paused", last=LONG_AGO + 3600, count=2))
    [row] = rows(ledger)
    assert (row.scheduled_time, row.last, row.detail) == (LONG_AGO, LONG_AGO + 3600, "paused")
    assert rows(ledger, failed=True) == []
    assert ledger.changes("key")[-1].action == "run-now"


def test_reading_goes_on_over_many_pages(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon())
    copy_entries(bench, 1200)
    times = [LONG_AGO + n for n in range(1200)]
    assert [row.scheduled_time for row in rows(ledger, key="key")] == times
    assert [row.scheduled_time for row in rows(ledger, key="key", since=times[3], until=times[900])] == times[3:901]
    assert [row.scheduled_time for row in rows(ledger)] == times
    assert [row.scheduled_time for row in rows(ledger, failed=True)] == times[::3]
    for last in (1, 600, 1300):
        assert [row.scheduled_time for row in rows(ledger, key="key", last=last)] == times[-last:]
        assert [row.scheduled_time for row in rows(ledger, last=last)] == times[-last:]
        assert [row.scheduled_time for row in rows(ledger, failed=True, last=last)] == times[::3][-last:]
        of_key = rows(ledger, key="key", failed=True, since=times[3], until=times[900], last=last)
        assert [row.scheduled_time for row in of_key] == times[3:901:3][-last:]
    version = ledger.changes("key")[0].version
    used = Definition("key", version)
    before = ledger.rows_before(times[10], [used, Definition("key", version + 1), Definition("other", version)])
    assert {name: row.scheduled_time for name, row in before.items()} == {used: times[9]}
    assert ledger.rows_before(times[0], [used]) == {}


def test_a_search_for_the_last_entry_of_a_definition_examines_some_entries_at_a_time(
    bench: Bench, store: ScheduleStore, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for backend in ("redis", "sql"):
        monkeypatch.setattr(f"psched.backends.{backend}.ledger._EXAMINED", 250)
    bench.add(store, "key")
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon())
    version = ledger.changes("key")[0].version
    versions = [version + (n in (0, 349, 700)) for n in range(1200)]
    bench.rows.copy_entry({"scheduled_time": (LONG_AGO + n) * 1000, "version": versions[n]} for n in range(1200))
    sent: list[str] = []
    wanted = Definition("key", version + 1)
    ledger.rows_before(LONG_AGO, [wanted])  # Redis knows the script from now on
    for before, found, calls in (
        (1200, 700, 2),
        (700, 349, 2),
        (349, 0, 2),
        (599, 349, 1),
        (600, 349, 2),
        (0, None, 1),
    ):
        sent.clear()
        with before_each(sent.append):
            got = ledger.rows_before(LONG_AGO + before, [wanted])
        expected = {} if found is None else {wanted: LONG_AGO + found}
        assert {name: row.scheduled_time for name, row in got.items()} == expected
        assert len(sent) == (calls if bench.database == "redis" else 1 if found is None else 1 + 2 * calls)
    sent.clear()
    with before_each(sent.append):
        assert ledger.rows_before(LONG_AGO + 1000, [Definition("key", version + 2)]) == {}
    assert len(sent) == (5 if bench.database == "redis" else 11)


def test_the_last_entries_of_several_definitions_are_searched_for_together(
    bench: Bench, store: ScheduleStore, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for backend in ("redis", "sql"):
        monkeypatch.setattr(f"psched.backends.{backend}.ledger._EXAMINED", 100)
    bench.add(store, "key")
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon())
    version = ledger.changes("key")[0].version
    first = {"key": 0, "é'key": 35, "k3": 70, "k4": 95}
    bench.rows.copy_entry(
        {"key": key, "scheduled_time": (LONG_AGO + n) * 1000, "version": version + (n == place)}
        for key, place in first.items()
        for n in range(100)
    )
    wanted = [Definition(key, version + other) for key in first for other in (1, 2)]
    sent: list[str] = []
    with before_each(sent.append):
        found = ledger.rows_before(LONG_AGO + 100, [*wanted, Definition("none", version), Definition("k4", version)])
    times = {Definition(key, version + 1): LONG_AGO + place for key, place in first.items()}
    assert {name: row.scheduled_time for name, row in found.items()} == times | {
        Definition("k4", version): LONG_AGO + 99
    }
    calls = [statement for statement in sent if not statement.startswith("EVAL ")]
    assert len(calls) == (7 if bench.database == "redis" else 1 + 2 * 7)


def test_the_records_of_several_schedules_come_at_once(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    keys = ["one", "k\u00e9y", "O'Neill\"%s:x", "without"]
    for place, key in enumerate(keys[:3]):
        bench.add(store, key)
        for n in range(1, place + 3):
            store.advance(bench.take(store, key), LONG_AGO + n, LONG_AGO + n, soon())
        store.advance(bench.take(store, key), FAR_OFF, FAR_OFF, soon())
    others = [f"other{n}" for n in range(70)]
    found = ledger.last_rows([*others, *keys, "one"], 3)
    assert list(found) == [*others, *keys]
    earlier = ledger.last_rows([*others, *keys], 2, LONG_AGO + 1)
    first = ledger.first_rows([*others, *keys], 2, LONG_AGO + 1, LONG_AGO + 2)
    for key in (*keys, *others):
        assert list(found[key]) == rows(ledger, key=key, last=3)
        assert list(earlier[key]) == rows(ledger, key=key, until=LONG_AGO + 1, last=2)
        assert list(first[key]) == rows(ledger, key=key, since=LONG_AGO + 1, until=LONG_AGO + 2)
    assert [len(found[key]) for key in keys] == [3, 3, 3, 0]
    assert [row.scheduled_time - LONG_AGO for row in ledger.first_rows(keys, 2)[keys[2]]] == [0, 1]
    changes = ledger.changes_of([*others, *keys])
    assert changes == {key: ledger.changes(key) for key in (*others, *keys)}
    assert [len(changes[key]) for key in keys] == [1, 1, 1, 0]
    following = {"": keys[2], keys[2]: keys[1], "k": keys[1], "one": None, **dict.fromkeys(others)}
    assert ledger.next_keys(following) == following
    assert ledger.last_rows([], 3) == ledger.first_rows([], 3) == ledger.changes_of([]) == ledger.next_keys([]) == {}


def copy_entries(bench: Bench, count: int, age: int = 0) -> None:
    """Make `count` copies of the only entry, with occurrences one second apart.

    They were settled `age` seconds ago. Each third one had a failed attempt.
    """
    base = int(bench.open().now() * 1000) - age * 1000
    bench.rows.copy_entry(
        {"scheduled_time": (LONG_AGO + n) * 1000, "ended": base + n // 5, "trouble": int(n % 3 == 0)}
        for n in range(count)
    )


def test_what_is_old_goes_and_what_is_new_stays(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon())
    copy_entries(bench, 700, age=1000)
    assert not ledger.trim(5000, 10_000, 100, "key")
    assert len(rows(ledger)) == 700
    while ledger.trim(900, 10_000, 100, None):
        assert len(rows(ledger)) > 0
    assert rows(ledger) == []


def test_of_each_key_the_last_ones_stay(bench: Bench, store: ScheduleStore, ledger: Ledger) -> None:
    bench.add(store, "key")
    store.advance(bench.take(store, "key"), FAR_OFF, FAR_OFF, soon())
    copy_entries(bench, 700)
    rounds = 1
    while ledger.trim(5000, 150, 100, "key"):
        rounds += 1
        assert len(rows(ledger)) == 700 - 100 * (rounds - 1)
    assert [row.scheduled_time for row in rows(ledger)] == [LONG_AGO + n for n in range(550, 700)]
    assert rounds == 6


def test_changes_stay_as_long_as_anything_on_record_was_run_by_them(
    bench: Bench, store: ScheduleStore, ledger: Ledger
) -> None:
    for key in ("gone", "key"):
        bench.add(store, key, due=FAR_OFF)
        for n in range(3):
            seen = store.get(key)
            assert seen is not None
            store.modify(seen, replace(seen, type=f"type{n}"))
    store.delete("gone")
    for _ in range(3):
        ledger.trim(1000, 10, 100, None)
    assert len(ledger.changes("key")) == 4
    for _ in range(3):
        ledger.trim(-1000, 10, 100, None)
    assert [change.type for change in ledger.changes("key")] == ["type2"]
    assert ledger.changes("gone") == []


@pytest.mark.parametrize("many", [False, True])
def test_a_key_that_comes_again_after_the_clock_was_set_back_has_later_versions_and_fences(
    bench: Bench, store: ScheduleStore, ledger: Ledger, many: bool
) -> None:
    bench.add(store, "key")
    ahead = int(store.now() * 1000) + 60_000
    bench.write("key", fence=ahead, version=ahead + 3)
    first = bench.take(store, "key")
    assert store.advance(first, FAR_OFF, FAR_OFF, soon()) is None
    store.delete("key")
    if many:
        assert store.add_many([new_row("key", {}), new_row("other", {})]) == []
        store.delete("other")
    else:
        bench.add(store, "key")
    second = bench.take(store, "key")
    assert second.lease.fence > first.lease.fence
    assert store.advance(second, FAR_OFF, FAR_OFF, soon()) is None
    entries = list(ledger.rows(LedgerFilter("key")))
    assert [(row.scheduled_time, row.fence) for row in entries] == [
        (LONG_AGO, first.lease.fence),
        (LONG_AGO, second.lease.fence),
    ]
    assert len(list(ledger.rows(LedgerFilter()))) == 2
    assert [change.action for change in ledger.changes("key")] == ["add", "delete", "add"]
    row = store.get("key")
    assert isinstance(row, ScheduleRow)
    assert row.version == ledger.changes("key")[-1].version > ahead + 3


def test_a_key_may_be_added_and_deleted_as_fast_as_one_can(store: ScheduleStore, bench: Bench) -> None:
    for _ in range(30):
        bench.add(store, "key")
        store.delete("key")
